"""Every private name of Keras and TensorFlow that the package touches.

One function each. Its docstring says which name it reads, the version it was
seen in, and what breaks without it. `tests/unit/test_keras_internals.py` asks
whether each exists, and finds private names that are touched elsewhere.
"""

import collections
import contextlib
import copy
import functools
import gc
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.models import functional
from keras.src.trainers import trainer
from keras.src.trainers.data_adapters.array_data_adapter import (
    ArrayDataAdapter,
    can_convert_arrays,
)
from keras.src.trainers.data_adapters.array_slicing import (
    convert_to_sliceable,
    train_validation_split,
)
from keras.src.utils import io_utils
from keras.src.utils.python_utils import pythonify_logs

from keras_dp._devices import has_accelerator
from keras_dp._override import override

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "Keras must run on TensorFlow to train with keras_dp. Received: "
        f"backend {keras.backend.backend()!r}. Set the environment variable "
        "KERAS_BACKEND=tensorflow before Keras is imported."
    )

_NOTHING = object()
_NAMES, _SEEDS = "object_name_uids", "global_seed_generator"


@contextlib.contextmanager
def replaced_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces an attribute of an object or a module while the context is open.

    It is set in `vars(owner)`, past the tracking of `Layer.__setattr__`,
    Keras 3.15. Without it Keras saves hooks as parts of a layer, or refuses to
    set them on a layer that is built. In the end, `owner` is as it was before.
    """
    own = vars(owner)
    before = own.get(name, _NOTHING)
    own[name] = value
    try:
        yield
    finally:
        if before is _NOTHING:
            del own[name]
        else:
            own[name] = before


# Layers.


def layers_of(layer: keras.Layer) -> list[keras.Layer]:
    """Returns the layer and all layers inside it, at any depth.

    `Layer._flatten_layers`, Keras 3.15. `Model.layers` stops at the first
    level. Without it unsupported layers inside others are not found.
    """
    return list(layer._flatten_layers())


def sublayers_of(layer: keras.Layer) -> list[keras.Layer]:
    """Returns the layers that a layer holds itself.

    `Layer._layers`, Keras 3.15. Without it no hook is put on the layers
    inside others.
    """
    return list(layer._layers)


def own_trainable_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables that the layer owns, without those of sublayers.

    `Layer._trainable_variables`, Keras 3.15. It holds what `add_weight` made
    trainable, frozen or not. Without it nobody knows which layers need a hook.
    """
    return list(layer._trainable_variables)


def seed_generators_of(layer: keras.Layer) -> list[Any]:
    """Returns the seed generators of a layer and of all layers inside it.

    `Layer._seed_generators`, Keras 3.15. Without it the states of seeds cannot
    be told from variables that keep data.
    """
    return [
        generator
        for each in layers_of(layer)
        for generator in each._seed_generators
    ]


def is_seed_state(variable: keras.Variable) -> bool:
    """Whether the variable is the state of a seed generator.

    `SeedGenerator` names it "seed_generator_state", Keras 3.15. Without it
    layers that draw random numbers are refused where records are mapped.
    """
    return bool(variable.name == "seed_generator_state")


def takes_training(layer: keras.Layer) -> bool:
    """Whether the layer's call has the argument `training`.

    `Layer._call_has_training_arg`, Keras 3.15. Without it models that lack the
    argument cannot be called in training mode.
    """
    return bool(layer._call_has_training_arg)


def training_of_call() -> bool | None:
    """Returns the argument `training` that layers called now take over.

    The attribute "current_call_ctx" of Keras's global state, Keras 3.15.
    `None` outside of a call, or if no layer was given the argument. Without it
    a layer that is called again leaves a Dropout inside of it out.
    """
    context = global_state.get_global_attribute("current_call_ctx")
    return None if context is None else context.get_value("training")


def takes_mask(layer: keras.Layer) -> bool:
    """Whether the layer's call has the argument `mask`.

    `Layer._call_has_mask_arg`, Keras 3.15. Without it masks do not reach the
    layer inside `TimeDistributed`.
    """
    return bool(layer._call_has_mask_arg)


def adds_losses(layer: keras.Layer) -> bool:
    """Whether the layer itself called `add_loss` in the last call.

    `Layer._losses`, Keras 3.15. `Layer.losses` mixes in the penalties of
    weights. Without it losses on a whole batch are not found.
    """
    return bool(layer._losses)


def rematerialized_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Returns the layers that are called again in the backward pass.

    These are the layer and layers inside it that were made in a
    `keras.RematScope`. `Layer._remat_mode`, Keras 3.15. Without it the hook of
    such a layer sees tensors of another graph.
    """
    return [each for each in layers_of(layer) if each._remat_mode is not None]


@contextlib.contextmanager
def without_rematerialization(layer: keras.Layer) -> Iterator[None]:
    """Keeps what layers compute, although they were made in a `RematScope`.

    `Layer._remat_mode`, Keras 3.15. Without it models with such layers cannot
    be trained privately.
    """
    with contextlib.ExitStack() as stack:
        for each in rematerialized_layers(layer):
            stack.enter_context(replaced_attribute(each, "_remat_mode", None))
        yield


def passes_training_on(layer: keras.Layer) -> bool:
    """Whether the layer is a model that trains all of its layers.

    `Functional.call` and `Sequential.call`, Keras 3.15: they pass their own
    argument `training` on, whatever the layers were called with. Without it
    batch normalization is refused only once the model is called.
    """
    kinds = functional.Functional, keras.Sequential
    return type(layer).call in [kind.call for kind in kinds]


def attributes_of(layer: keras.Layer) -> dict[str, Any]:
    """Returns the attributes of a layer that its own class or its user set.

    All but those of `Layer` and `Trainer`, those of TensorFlow's tracking
    (`_self_...`), and the `_dropout_mask` and `_recurrent_dropout_mask` of
    recurrent cells, Keras 3.15. Without it what Keras notes while it calls a
    layer is taken for values of the data.
    """
    own = _attributes_of_keras()
    return {
        name: value
        for name, value in vars(layer).items()
        if name not in own and not name.startswith("_self_")
    }


def tokens_of_texts(
    layer: keras.layers.TextVectorization, texts: tf.Tensor
) -> Any:
    """Returns the tokens of texts, `[batch, 1]`: a tensor, maybe a ragged one.

    `TextVectorization._preprocess`, Keras 3.15: standardizes, splits and joins
    to n-grams, as `call` does. Without it a vocabulary is not of the tokens
    that the layer looks up.
    """
    return layer._preprocess(texts)


@functools.cache
def _attributes_of_keras() -> set[str]:
    masks = {"_dropout_mask", "_recurrent_dropout_mask"}
    return masks | set(vars(keras.Model(name="attributes")))


# Tensors.


def mask_of(tensor: Any) -> Any:
    """Returns the Keras mask of a tensor, `None` if it has none.

    `Tensor._keras_mask`, Keras 3.15. Without it losses count masked positions.
    """
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Gives a tensor a Keras mask.

    `Tensor._keras_mask`, Keras 3.15. Without it losses count masked positions.
    """
    tensor._keras_mask = mask


_DRAWS = (
    "beta",
    "binomial",
    "categorical",
    "dropout",
    "gamma",
    "normal",
    "randint",
    "truncated_normal",
    "uniform",
)
# Draws in place of a function: it gets the name of the function, the function,
# its positional arguments and its keyword arguments.
Drawing = Callable[
    [str, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any
]


@contextlib.contextmanager
def replaced_draws(draw: Drawing) -> Iterator[None]:
    """Replaces the functions through which layers draw random numbers.

    The functions of `keras.src.backend.random`, Keras 3.15, which layers and
    `keras.random` call. Without it layers that draw whether or not they train
    cannot be told from layers that compute with the row number, and layers with
    Dropout inside cannot be called again.

    Args:
        draw: Is called in place of each of them.
    """
    source = keras.src.backend.random

    def replaced(name: str) -> Callable[..., Any]:
        original = getattr(source, name)
        return lambda *args, **options: draw(name, original, args, options)

    with contextlib.ExitStack() as stack:
        for name in _DRAWS:
            stack.enter_context(
                replaced_attribute(source, name, replaced(name))
            )
        yield


# The session.


def name_counts() -> dict[str, int]:
    """Returns how many objects of each kind got a name in this thread.

    The attribute "object_name_uids" of Keras's global state, Keras 3.15.
    Without it the names of the layers of a trial tell how many came before.
    """
    found = global_state.get_global_attribute(_NAMES)
    return {} if found is None else dict(found)


@contextlib.contextmanager
def counting_names_from(counts: Mapping[str, int]) -> Iterator[None]:
    """Names objects as if others had got names only as often as `counts` says.

    The attributes "object_name_uids" and "global_seed_generator" of Keras's
    global state, Keras 3.15. The generator of seeds is made anew inside. Both
    are as before in the end. Without it trials are not alike.

    Args:
        counts: From `name_counts`.
    """
    kept = {
        name: global_state.get_global_attribute(name)
        for name in (_NAMES, _SEEDS)
    }
    own = collections.defaultdict(int, counts)
    global_state.set_global_attribute(_NAMES, own)
    global_state.set_global_attribute(_SEEDS, None)
    try:
        yield
    finally:
        for name, value in kept.items():
            global_state.set_global_attribute(name, value)


def global_seed() -> int | None:
    """Returns the seed that `tf.random.set_seed` set, `None` for none.

    `tensorflow.python.eager.context.global_seed`, TensorFlow 2.21. Without it
    a chosen seed cannot be put back.
    """
    from tensorflow.python.eager import context

    found: int | None = context.global_seed()
    return found


@contextlib.contextmanager
def counting_traces_anew() -> Iterator[None]:
    """Counts the traces of functions anew inside, and as before in the end.

    `polymorphic_function._frequent_tracing_detector_manager._detectors`,
    TensorFlow 2.21. All models share the counts. Without it a warning of many
    traces, or that there is none, tells how many models were called.
    """
    from tensorflow.python.eager.polymorphic_function import (
        polymorphic_function,
    )

    manager = polymorphic_function._frequent_tracing_detector_manager
    with manager._lock:
        kept, manager._detectors = (
            manager._detectors,
            weakref.WeakKeyDictionary(),
        )
    try:
        yield
    finally:
        with manager._lock:
            manager._detectors = kept


# Models.


class FitHooks(keras.Model):
    """A model that says itself how `fit` builds it and what `fit` shows.

    `Trainer._maybe_symbolic_build` and `Trainer._get_metrics_result_or_logs`,
    Keras 3.15. Without the first one `fit` draws a batch before its round is
    in the ledger; without the second one it shows raw metrics of the data.
    """

    def build_for_fit(self, iterator: Any, data_batch: Any) -> None:
        """Builds what is not built, from an iterator or from a batch."""
        super()._maybe_symbolic_build(iterator, data_batch)

    def logs_to_show(self, logs: Any) -> Any:
        """Returns what callbacks get at the end of an epoch."""
        return super()._get_metrics_result_or_logs(logs)

    def _maybe_symbolic_build(
        self, iterator: Any = None, data_batch: Any = None
    ) -> None:
        self.build_for_fit(iterator, data_batch)

    @override
    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        return self.logs_to_show(logs)


def build_from_batch(model: keras.Model, data_batch: Any) -> None:
    """Builds the model, its loss, metrics and optimizer for a batch.

    `Trainer._symbolic_build`, Keras 3.15. Without it the loss is not built
    before the step is compiled. It gives the model an argument by name, which
    a rematerialized layer cannot take in a graph. What must run eagerly cannot
    be built from symbols: it is called once, on the batch itself.
    """
    if model.run_eagerly:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data_batch)
        outputs = model(x, training=False)
        model.compute_metrics(x, y, outputs, sample_weight=weight)
        model._compute_loss(x, y, outputs, weight, training=False)
        model.reset_metrics()
        return
    with without_rematerialization(model):
        model._symbolic_build(data_batch=data_batch)


def check_compiled(model: keras.Model, method: str) -> None:
    """Raises unless the model was compiled.

    `Trainer._assert_compile_called`, Keras 3.15. Without it the error of a
    missing `compile` is another one than Keras's.
    """
    model._assert_compile_called(method)


def metrics_in_order(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Returns the values of the metrics as Keras orders them in a list.

    `Trainer._flatten_metrics_in_order`, Keras 3.15. Without it
    `train_on_batch` cannot return a list.
    """
    return model._flatten_metrics_in_order(logs)


def python_values(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs by name, with Python numbers where they are scalars.

    `python_utils.pythonify_logs`, Keras 3.15. Without it a metric of several
    numbers ends `train_on_batch` after its round.
    """
    found: dict[str, Any] = pythonify_logs(logs)
    return found


def compile_arguments_of(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of `compile` as the user gave them, {} without.

    `Trainer._compile_config`, Keras 3.15. It holds what "auto" stood for as
    `jit_compile`, and no `auto_scale_loss`, of which the optimizer tells.
    Without it a compiled model must be described once more to be made private.
    """
    config = getattr(model, "_compile_config", None)
    if config is None:
        return {}
    found = dict(config.config)
    # They may have been set since.
    found["run_eagerly"] = model.run_eagerly
    found["jit_compile"] = model.jit_compile
    if model.run_eagerly or (
        model.jit_compile == model._resolve_auto_jit_compile()
    ):
        del found["jit_compile"]
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if model.dtype_policy.name == "mixed_float16" and not scales:
        found["auto_scale_loss"] = False
    return found


def print_line(text: str) -> None:
    """Prints a line where Keras prints its progress.

    `io_utils.print_msg`, Keras 3.15: `keras.utils.disable_interactive_logging`
    turns it into a log entry. Without it that switch has no effect on the line.
    """
    io_utils.print_msg(text)


def compiled_loss_of(model: keras.Model) -> Any:
    """Returns the loss that `compile` made, all outputs together.

    `Trainer._compile_loss`, Keras 3.15. Without it there is no loss of a
    batch of one.
    """
    return model._compile_loss


_OF_COUNTS = (
    keras.metrics.AUC,
    keras.metrics.FalseNegatives,
    keras.metrics.FalsePositives,
    keras.metrics.FBetaScore,
    keras.metrics.Precision,
    keras.metrics.PrecisionAtRecall,
    keras.metrics.Recall,
    keras.metrics.RecallAtPrecision,
    keras.metrics.SensitivityAtSpecificity,
    keras.metrics.SpecificityAtSensitivity,
    keras.metrics.TrueNegatives,
    keras.metrics.TruePositives,
)


def metric_updates(
    model: keras.Model, y: Any, outputs: Any, weight: Any
) -> list[tuple[Any, Any, Any, Any]] | None:
    """Returns each metric of `compile` with its targets, outputs and weights.

    `CompileMetrics.update_state`, Keras 3.15, which gives no weights to what
    was compiled as `metrics`. Without it rows of padding must be cut off.

    Returns:
        Rows `(metric, y, outputs, weight)`; `None` where the model updates its
        metrics in its own way, or has an output without a target.
    """
    if type(model).compute_metrics is not trainer.Trainer.compute_metrics:
        return None
    compiled = model._compile_metrics
    if compiled is None:
        return []
    if not compiled.built:
        return None
    targets, outputs = compiled._flatten_y(y), compiled._flatten_y(outputs)
    weights = [None] if weight is None else compiled._flatten_y(weight)
    if len(weights) < len(targets):
        weights = weights[:1] * len(targets)
    if not len(targets) == len(outputs) == len(weights):
        return None
    found = []
    for metrics, are_weighted in (
        (compiled._flat_metrics, False),
        (compiled._flat_weighted_metrics, True),
    ):
        for each, target, output, own in zip(
            metrics, targets, outputs, weights, strict=True
        ):
            found += [
                (metric, target, output, own if are_weighted else None)
                for metric in getattr(each, "metrics", ())
            ]
    return found


_OF_ROWS = (
    keras.metrics.BinaryAccuracy,
    keras.metrics.BinaryCrossentropy,
    keras.metrics.CategoricalAccuracy,
    keras.metrics.MeanAbsoluteError,
    keras.metrics.MeanSquaredError,
    keras.metrics.TopKCategoricalAccuracy,
)
_OF_LABELS = (
    keras.metrics.SparseCategoricalAccuracy,
    keras.metrics.SparseCategoricalCrossentropy,
    keras.metrics.SparseTopKCategoricalAccuracy,
)


def weighs_rows(metric: keras.metrics.Metric, y: Any, output: Any) -> bool:
    """Whether a metric by weights 0 and 1 is that of the rows that weigh 1.

    `MeanMetricWrapper._fn_kwargs`, Keras 3.15. It holds for metrics of Keras
    that are a mean over rows and finite for an output of zeros, and for those
    of counts, if targets and outputs have one rank. Others may mix rows, count
    them, ignore weights or become NaN. Without it padding must be cut off for
    all metrics.

    Args:
        metric: The metric.
        y: Its targets, `[batch, ...]`.
        output: The outputs, `[batch, ...]`.
    """
    kind, rank = type(metric), output.shape.rank
    options = getattr(metric, "_fn_kwargs", {})
    if options.get("axis", -1) != -1 or options.get("ignore_class") is not None:
        return False
    if kind in _OF_LABELS:
        return rank >= 2 and y.shape.rank in (rank - 1, rank)
    are_alike = rank >= 2 and y.shape.rank == rank
    return are_alike and (
        kind in _OF_ROWS or (kind in _OF_COUNTS and rank == 2)
    )


def loss_tracker_of(model: keras.Model) -> Any:
    """Returns the metric that averages the loss.

    `Trainer._loss_tracker`, Keras 3.15. Without it `fit` shows no loss.
    """
    return model._loss_tracker


def losses_in(compiled_loss: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Returns the losses of a compiled loss that is built, as Keras calls them.

    `CompileLoss._flat_losses`, Keras 3.15. Without it a loss that leaves out
    entries, such as by `ignore_class`, is refused for some batches.

    Returns:
        The path to the output of each loss, and the loss.
    """
    return [(each.path, each.loss) for each in compiled_loss._flat_losses]


def part_trackers_of(compiled_loss: Any) -> list[Any]:
    """Returns the metrics of several losses: the list that the loss uses.

    `CompileLoss._metrics`, Keras 3.15. The list is changed in place. Without
    it the losses of several outputs are averaged over their batches of one.
    """
    trackers: list[Any] = compiled_loss._metrics
    return trackers


# Optimizers.


def strategy_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """Returns the distribution strategy that the optimizer was made under.

    `TFOptimizer._distribution_strategy`, Keras 3.15. Without it an optimizer
    of another strategy is not refused, and replicas can add noise of their own.
    """
    return optimizer._distribution_strategy


def learning_rate_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """Returns the variable or the schedule behind the learning rate.

    `BaseOptimizer._learning_rate`, Keras 3.15. The public property evaluates a
    schedule. Without it the step goes on with a schedule that was exchanged.
    """
    return optimizer._learning_rate


def releases_of(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """Returns the variable that counts what the optimizer itself did.

    `BaseOptimizer._iterations`, Keras 3.15; `iterations` may be those of
    another one. Without it releases are not counted where an optimizer inside
    does not count.
    """
    return optimizer._iterations


def own_variables_of(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.Variable]:
    """Returns the variables that the optimizer made itself.

    `BaseOptimizer._variables`, Keras 3.15. Without it the state of a query is
    not saved with the optimizer.
    """
    return list(optimizer._variables)


def optimizers_in(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizer, and all that it holds, each once.

    `OptimizerMap` and `MultiOptimizer`, Keras 3.15, hold theirs in attributes,
    lists and dicts, as optimizers of one's own do. Without it an optimizer that
    another one holds is not looked at.
    """
    found: dict[int, keras.optimizers.Optimizer] = {}

    def look(value: Any) -> None:
        if isinstance(value, keras.optimizers.Optimizer):
            if id(value) not in found:
                found[id(value)] = value
                look(list(vars(value).values()))
        elif isinstance(value, keras.optimizers.OptimizerMap):
            look(list(vars(value).values()))
        elif isinstance(value, dict):
            look(list(value.values()))
        elif isinstance(value, (list, tuple)):
            for each in value:
                look(each)

    look(optimizer)
    return list(found.values())


def _reaches(value: Any, optimizer: Any) -> bool:
    """Whether a function or an object of the user holds an optimizer."""
    if isinstance(value, (keras.Variable, keras.optimizers.OptimizerMap)):
        return False
    cells = getattr(value, "__closure__", None) or ()
    held = []
    for cell in cells:
        with contextlib.suppress(ValueError):  # It may be empty.
            held.append(cell.cell_contents)
    if not type(value).__module__.startswith(("keras", "builtins")):
        held += list(getattr(value, "__dict__", {}).values())
    return any(each is optimizer for each in held)


# The options that all optimizers of Keras 3.15 have in common.
_OPTIONS = (
    "name",
    "weight_decay",
    "clipnorm",
    "clipvalue",
    "global_clipnorm",
    "use_ema",
    "ema_momentum",
    "ema_overwrite_frequency",
    "loss_scale_factor",
    "gradient_accumulation_steps",
)


def fresh_copy_of(
    optimizer: keras.optimizers.Optimizer, learning_rate: Any = None
) -> Any:
    """Returns an optimizer that does what another one does, and is not built.

    `get_config` does not say all that an optimizer does: which variables it
    excludes from weight decay, functions, and what a class of one's own forgot.
    So the copy gets new variables from the constructor of the base class, and
    every other attribute of the other one (`vars`, Keras 3.15). Optimizers
    inside are copied, too. Without it an optimizer belongs to the first model
    that it trains.

    Args:
        optimizer: Is not changed.
        learning_rate: A number, a schedule or a function in the place of that
            of the optimizer.
    """
    # One body, because each kind of value may hold each other kind.
    made: dict[int, tuple[Any, Any]] = {}  # With what was copied, to keep ids.

    def of_optimizer(given: Any, rate: Any = None) -> Any:
        kind: Any = type(given)
        new = kind.__new__(kind)
        made[id(given)] = given, new
        if rate is None:
            rate = learning_rate_of(given)
        if not callable(rate):
            rate = float(keras.ops.convert_to_numpy(rate))
        keras.optimizers.Optimizer.__init__(
            new,
            learning_rate=rate,
            **{name: getattr(given, name) for name in _OPTIONS},
        )

        def is_slot(value: Any) -> bool:
            """Whether `build` made the value, and will make another."""
            return given.built and isinstance(value, keras.Variable)

        def copied(value: Any) -> Any:
            if id(value) in made:
                return made[id(value)][1]
            if getattr(value, "__self__", None) is given:
                return types.MethodType(value.__func__, new)
            if _reaches(value, given):
                raise ValueError(
                    "`optimizer` must be a new one: it refers to itself, and "
                    "another training has it already. Received: a "
                    f"{type(given).__name__}. Make another one for each "
                    "training."
                )
            if isinstance(value, keras.optimizers.Optimizer):
                return of_optimizer(value)
            if isinstance(value, keras.optimizers.OptimizerMap):
                chosen = copy.copy(value)
                made[id(value)] = value, chosen
                vars(chosen).update(copied(vars(value)))
                return chosen
            if isinstance(value, keras.Variable):
                variable = new.add_variable(
                    value.shape, dtype=value.dtype, name=value.name
                )
                made[id(value)] = value, variable
                variable.assign(value)
                return variable
            if isinstance(value, dict):
                items = [(k, v) for k, v in value.items() if not is_slot(v)]
                return {key: copied(each) for key, each in items}
            if isinstance(value, (list, tuple)):
                parts = [copied(each) for each in value if not is_slot(each)]
                return parts if isinstance(value, list) else tuple(parts)
            return value

        own = vars(given).keys() - vars(new).keys() - {"apply"}
        for name in [name for name in vars(given) if name in own]:
            setattr(new, name, copied(vars(given)[name]))
        if isinstance(given, keras.optimizers.MultiOptimizer):
            chooser = given._optimizer_map
            if not isinstance(chooser, keras.optimizers.OptimizerMap):
                new._optimizer_map = lambda variable: copied(chooser(variable))
        return new

    return of_optimizer(optimizer, learning_rate)


def averages_of(
    optimizer: keras.optimizers.Optimizer,
) -> list[tuple[keras.Variable, keras.Variable]]:
    """Returns each variable that is averaged, with its average.

    `BaseOptimizer._model_variables_moving_average`, Keras 3.15, which is there
    once an optimizer with `use_ema` is built. Without it no weights are
    averaged.
    """
    if not (optimizer.use_ema and optimizer.built):
        return []
    return [
        (variable, average)
        for variable, average in zip(
            optimizer._trainable_variables,
            optimizer._model_variables_moving_average,
            strict=True,
        )
        if average is not None
    ]


def trainable_variables_of(
    optimizer: keras.optimizers.Optimizer,
) -> list[keras.Variable]:
    """Returns the variables that the optimizer was built for.

    `BaseOptimizer._trainable_variables`, Keras 3.15. Without it a model whose
    `trainable` flags were changed is trained with the sums of other weights.
    """
    return list(optimizer._trainable_variables)


def gradient_reduction() -> str:
    """Returns the name of the method that sums gradients over replicas.

    `TFOptimizer._all_reduce_sum_gradients`, Keras 3.15. Without it noised
    gradients are summed once more over replicas, all with the same noise.
    """
    return "_all_reduce_sum_gradients"


def penalties_of(model: keras.Model) -> list[Any]:
    """Returns the penalties of the model's weights, one scalar each.

    `Layer._get_regularization_losses`, Keras 3.15. `Layer.losses` mixes in
    what layers add in a call. Without it weight penalties do not train.
    """
    return list(model._get_regularization_losses())


# TensorFlow.


def untuned_arrays(given: dict[str, Any]) -> dict[str, Any]:
    """Returns arguments of `fit`, with arrays as a data set without tuning.

    `ArrayDataAdapter` and `train_validation_split`, Keras 3.15. TensorFlow 2.21
    has a thread that tunes the data set, and may wake it too early when the
    iterator ends. `fit` then waits until it wakes by itself, for up to as long
    as the training took.

    Args:
        given: `x`, `y`, `batch_size` and other arguments.

    Returns:
        Arguments that train on the same batches; the same ones if `x`, `y` and
        `sample_weight` are not arrays.
    """
    arrays = given["x"], given["y"], given.get("sample_weight")
    if not can_convert_arrays(arrays):
        return given
    held_back, share = (
        given.get("validation_data"),
        given.get("validation_split"),
    )
    if share and held_back is None:
        arrays, held_back = train_validation_split(arrays, share)
    adapter = ArrayDataAdapter(
        *arrays,
        batch_size=given["batch_size"],
        steps=given.get("steps_per_epoch"),
        shuffle=given.get("shuffle", True),
        class_weight=given.get("class_weight"),
    )
    dataset = adapter.get_tf_dataset().with_options(_untuned())
    count = tf.data.experimental.assert_cardinality(adapter.num_batches)
    # Keras still takes the batch size for validation data.
    return {
        **given,
        **dict.fromkeys(("y", "sample_weight", "class_weight")),
        "x": dataset.apply(count),
        "shuffle": False,
        "validation_data": held_back,
        "validation_split": 0.0,
    }


def sliced_arrays(
    x: Any, y: Any, weight: Any, batch_size: int | None, steps: int | None
) -> tuple[Any, Any, Any]:
    """Returns arrays as a data set of the batches that Keras evaluates.

    `ArrayDataAdapter` and `convert_to_sliceable`, Keras 3.15. Its own data set
    calls functions, which TensorFlow prepares anew for each iterator, and Keras
    makes two iterators for each pass. Without these names, to evaluate a small
    model takes several times as long.

    Args:
        x: Inputs, as Keras takes them.
        y: Targets, as Keras takes them.
        weight: Weights of samples, as Keras takes them.
        batch_size: As in Keras.
        steps: As in Keras.

    Returns:
        A data set, and `None` for targets and weights. Or the same three, if
        they are not dense arrays, if Keras caps the steps of all epochs, or if
        Keras will raise for them.
    """
    given = x, y, weight
    if not can_convert_arrays(given) or keras.config.max_steps_per_epoch():
        return given
    with contextlib.suppress(Exception):
        adapter = ArrayDataAdapter(
            x, y, sample_weight=weight, batch_size=batch_size, steps=steps
        )
        arrays = convert_to_sliceable(
            adapter._inputs, target_backend="tensorflow"
        )
        leaves = keras.tree.flatten(arrays)
        if all(isinstance(leaf, np.ndarray | tf.Tensor) for leaf in leaves):
            return _batches_of(arrays, leaves[0].shape[0], adapter.batch_size)
    return given


def _batches_of(arrays: Any, records: int, size: int) -> tuple[Any, Any, Any]:
    whole, rows = divmod(records, size)

    def several(leaf: Any) -> tf.Tensor:
        first = leaf[: whole * size]
        return tf.reshape(first, [whole, size, *leaf.shape[1:]])

    def part(function: Callable[[Any], Any]) -> Any:
        return keras.tree.lists_to_tuples(
            keras.tree.map_structure(function, arrays)
        )

    with tf.device("CPU"):
        batches = tf.data.Dataset.from_tensor_slices(part(several))
        if rows:
            rest = part(lambda leaf: tf.convert_to_tensor(leaf[-rows:]))
            last = tf.data.Dataset.from_tensors(rest)
            batches = batches.concatenate(last)
    return batches.with_options(_untuned()), None, None


def _untuned() -> tf.data.Options:
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


@contextlib.contextmanager
def counting_one_replica() -> Iterator[None]:
    """Makes the code inside count one replica.

    `distribute_lib._push_per_thread_mode`, `_pop_per_thread_mode` and
    `_get_default_replica_mode`, TensorFlow 2.21. Without them Keras divides a
    mean loss by the number of replicas.
    """
    from tensorflow.python.distribute import distribute_lib

    distribute_lib._push_per_thread_mode(
        distribute_lib._get_default_replica_mode()
    )
    try:
        yield
    finally:
        distribute_lib._pop_per_thread_mode()


@contextlib.contextmanager
def eager_operations(
    callback: Callable[[str, Sequence[Any]], None],
) -> Iterator[None]:
    """Calls back after every operation that runs eagerly inside.

    `op_callbacks.add_op_callback`, TensorFlow 2.21. Without it writes of an
    eager model to variables and tables of its own are not found.

    Args:
        callback: Takes the type of the operation, or the name of the function
            that ran, and the inputs.
    """
    from tensorflow.python.framework import op_callbacks

    def observe(
        kind: Any,
        inputs: Any,
        attributes: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        if graph is None:
            callback(tf.compat.as_str(kind), inputs)

    op_callbacks.add_op_callback(observe)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(observe)


@contextlib.contextmanager
def keeping_variable_scope() -> Iterator[None]:
    """Leaves the variable scope of a graph as it was.

    `tf.map_fn` and `tf.scan` of TensorFlow 2.21 set a caching device on it
    meanwhile, and leave it there if what they call raises, as a layer that is
    refused does. Without this function no strategy can be entered afterwards.
    """
    if tf.executing_eagerly():
        yield
        return
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        yield
    finally:
        scope.set_caching_device(before)


def trace_of(function: Any, *arguments: Any) -> Any:
    """Returns the trace of a `tf.function`, whose graph is freed with it.

    `ConcreteFunction._garbage_collector`, TensorFlow 2.21. TensorFlow calls it
    off for the first trace of each function, whose graph then stays until the
    process ends. Without it each `fit` would leave several megabytes behind.

    A trace makes many objects that stay. To search them for cycles, again and
    again, takes a sixth of its time, so that Python does it afterwards.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        trace = function.get_concrete_function(*arguments)
    finally:
        if collects:
            gc.enable()
    trace._garbage_collector._func_graph = trace.graph
    return trace


def rewritten_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a traced function, whose graph TensorFlow rewrites in one pass.

    `Context.function_call_options`, TensorFlow 2.21. By itself TensorFlow
    rewrites twice, and looks for layouts and for memory that only accelerators
    gain by. On a CPU a step takes as long without all this. Without it the
    first `fit` of a U-Net takes half a second longer.
    """
    from tensorflow.python.eager import context

    if has_accelerator():
        return function
    held = context.context()
    config = held.config
    options = config.graph_options.rewrite_options
    options.meta_optimizer_iterations = options.ONE
    options.memory_optimization = options.NO_MEM_OPT
    options.layout_optimizer = options.OFF
    options.disable_tfg_optimizer = True
    executor = held.function_call_options.executor_type
    once = context.FunctionCallOptions(executor, config)

    def rewritten(*arguments: Any) -> Any:
        before = held.function_call_options
        held.function_call_options = once
        try:
            return function(*arguments)
        finally:
            held.function_call_options = before

    return rewritten


def function_nodes(name: str) -> list[Any]:
    """Returns the nodes of a function that a graph or eager code calls.

    `context.get_function_def`, TensorFlow 2.21. Without it writes inside
    conditions, loops and compiled functions are not found.
    """
    from tensorflow.python.eager import context

    return list(context.context().get_function_def(name).node_def)


@contextlib.contextmanager
def registered_functions(definitions: Any) -> Iterator[None]:
    """Lets graphs call these functions while the context is open.

    `context.add_function_def` and `remove_function`, TensorFlow 2.21. Without
    it a function with a loop, in a data set, is not tried with a seed.
    """
    from tensorflow.python.eager import context

    own = context.context()
    for each in definitions:
        own.add_function_def(each)
    try:
        yield
    finally:
        for each in definitions:
            own.remove_function(each.signature.name)


def called_graph(graph: Any, name: str) -> Any:
    """Returns the graph of a function that a graph calls, `None` without one.

    `Graph._get_function` and `AtomicFunction.graph`, TensorFlow 2.21. Without
    it no model with a loop or a condition is shown to keep examples apart.
    """
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return getattr(function, "graph", None)
        graph = getattr(graph, "outer_graph", None)
    return None


def custom_gradient_of(operation: Any) -> Callable[..., Any] | None:
    """Returns the gradient that `tf.custom_gradient` set, `None` without one.

    `ops.get_gradient_function`, TensorFlow 2.21. Without it no model with a
    `silu` is shown to keep examples apart.
    """
    from tensorflow.python.framework import ops

    name = operation.get_attr("_gradient_op_type")
    if not name.startswith(b"CustomGradient-"):
        return None
    found: Callable[..., Any] | None = ops.get_gradient_function(operation)
    return found


def xla_call_module() -> Callable[..., Any]:
    """Returns the operation that runs a StableHLO module.

    `tensorflow.compiler.tf2xla.python.xla.call_module`, TensorFlow 2.21.
    Without it noise is drawn by ordinary operations, which are slower.

    Raises:
        ImportError: This TensorFlow has none.
    """
    from tensorflow.compiler.tf2xla.python import xla

    call_module: Callable[..., Any] = xla.call_module
    return call_module
