"""Checks conditions that must hold before a private model trains."""

import math
import os
import re
from collections.abc import Collection, Mapping
from typing import Any

import keras
import tensorflow as tf
from absl import logging

from keras_dp import _check
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import layers_of, optimizers_in, strategy_of
from keras_dp.ledger import PrivacyLedger, Round
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.ledger_of_chief import LedgerOfChief

# The gradient of a cross-entropy with respect to a logit is at most 1. With
# this scale it can grow by a factor of 2^6 on its way back before float16
# overflows, and it can shrink by 2^10 more before it underflows.
_LOSS_SCALE = 2.0**10
_LARGEST_LOSS_SCALE = 2.0**15  # The largest power of two in float16.

# The variables of the environment that let oneDNN round factors.
_MODES_OF_ONEDNN = (
    "TF_SET_ONEDNN_FPMATH_MODE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
)

_UNSUPPORTED = (
    tf.distribute.ParameterServerStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
)

# The remedy for each method of a model that the private model does not run.
_INSTEAD_OF_METHODS = {
    "train_step": "Give its loss to compile(loss=...) and its metrics to "
    "compile(metrics=...), even where it only calls super().train_step.",
    "compute_loss": "Give the loss to compile(loss=...); return what it needs "
    "besides the outputs as one more output of the model.",
    "compute_metrics": "Give the metrics to compile(metrics=...).",
}


# The numbers of batches, of rows or of epochs that `fit` takes.
_COUNTS = (
    "batch_size",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
)

# The remedy for each option that must not be given with a sampler.
_INSTEAD = {
    "y": "Pass PoissonBatches((x, y), ...).",
    "batch_size": "Give the sampler sampling_probability=... for its samples, "
    "and physical_batch_size=... for the rows that are computed at once.",
    "sample_weight": "Pass PoissonBatches((x, y, sample_weight), ...).",
    "validation_split": "Hold records back, and pass validation_data=(x, y).",
}


def check_no_batching(**options: Any) -> None:
    """Raises for options of `fit`, `evaluate` or `predict` besides a sampler.

    Args:
        **options: The options of the call. Others than those of `_INSTEAD` are
            ignored.

    Raises:
        ValueError: An option is given that the sampler says already.
    """
    given = [
        name
        for name in _INSTEAD
        if options.get(name) is not None
        and not (name == "validation_split" and options[name] == 0)
    ]
    if given:
        raise ValueError(
            f"`{given[0]}` must not be given with a sampler, "
            "whose records hold the inputs, targets and sample weights, and "
            f"whose sizes are drawn. Received: {given!r}. {_INSTEAD[given[0]]}"
        )


def check_counts(epochs: int, options: Mapping[str, Any]) -> None:
    """Raises for numbers of `fit` for which nothing, or too much, would run.

    Keras takes 0 for the default, or fails once it has trained.

    Args:
        epochs: The epoch to stop before.
        options: Other arguments of `fit`.

    Raises:
        TypeError: A number is not an integer.
        ValueError: It is below 1, `initial_epoch` below 0, or
            `validation_split` not in [0, 1).
    """
    _check.integer_at_least(1, epochs=epochs)
    for name in _COUNTS:
        value = options.get(name)
        is_list = name == "validation_freq" and isinstance(value, Collection)
        if value is not None and not is_list:
            remedy = " Leave it out for the default."
            _check.integer_at_least(1, remedy, **{name: value})
    share = options.get("validation_split") or 0
    _check.share("[0, 1)", validation_split=share)
    _check.integer_at_least(0, initial_epoch=options.get("initial_epoch", 0))


def invalid_validation_data(error: Exception) -> ValueError:
    """Returns what says that the model cannot be evaluated.

    Args:
        error: The error that one batch raised. An error of TensorFlow may show
            values, so that its text is left out.
    """
    said = str(error)
    if isinstance(error, tf.errors.OpError):
        said = (
            f"{type(error).__name__}: are its values of the kind, and in the "
            "range, that the model and the loss take?"
        )
    return ValueError(
        "`validation_data` must be data that the model can be evaluated on, "
        f"like that on which it is trained. No round ran. Received: {said}"
    )


def check_unit(
    ledger_unit: str,
    rows_per_unit: int,
    drawn_unit: str,
    side_queries: Collection[str],
) -> None:
    """Raises if the ledger's unit is not the unit that is drawn.

    Args:
        ledger_unit: The unit in the ledger's header. "microbatch" goes with
            microbatches only. Users need a word for a person or thing.
        rows_per_unit: The number of records of a unit in the ledger's header.
        drawn_unit: The unit that is drawn: "example", "microbatch" or "user".
        side_queries: The names of the side queries, which examples answer.

    Raises:
        PrivateTrainingError: The units differ, or there are side queries and
            the drawn unit is not an example.
    """
    if drawn_unit != "example" and side_queries:
        raise PrivateTrainingError(
            "`private_metrics` and `batch_statistics` must be None with "
            f"samples of unit {drawn_unit!r}: such a unit gives them a record "
            "for each of its examples, and they bound one record. Received: "
            f"{sorted(side_queries)!r}. Compile without them, or draw single "
            "examples or RandomMicrobatches."
        )
    of_rows = ledger_unit in UNITS_OF_ROWS
    if drawn_unit == "user":
        if of_rows or rows_per_unit > 1:
            raise PrivateTrainingError(
                "The unit of the ledger must be the user, with "
                "rows_per_unit=1, because UserBatches draw whole users. "
                f"Received: a ledger of unit {ledger_unit!r} with "
                f"rows_per_unit={rows_per_unit}. Open another ledger with "
                'unit="user", or a word for those whom `user_ids` name.'
            )
        return
    if (ledger_unit == "microbatch") != (drawn_unit == "microbatch"):
        raise PrivateTrainingError(
            "The unit of the ledger must be what is sampled: a guarantee for "
            "microbatches says nothing of their examples. Received: a ledger "
            f"of unit {ledger_unit!r} and samples of unit {drawn_unit!r}. Open "
            "another ledger, or use RandomMicrobatches, which protect examples."
        )


def check_precision() -> None:
    """Raises on devices whose rounding breaks the guarantee.

    Raises:
        PrivateTrainingError: There is a GPU, and TensorFloat-32 is on; or
            oneDNN may compute float32 products in bfloat16.
    """
    for name in _MODES_OF_ONEDNN:
        mode = os.environ.get(name, "")
        if mode.upper() not in {"", "STRICT"}:
            raise PrivateTrainingError(
                "Private training must multiply float32 numbers as such. In "
                "bfloat16 or TensorFloat-32, clipped gradients exceed their "
                f"bound by a relative 1e-2 or 1e-3. Received: {name}="
                f"{_check.shown(mode)}. Unset it before TensorFlow is imported."
            )
    if (
        tf.config.list_physical_devices("GPU")
        and tf.config.experimental.tensor_float_32_execution_enabled()
    ):
        raise PrivateTrainingError(
            "Private training on a GPU must run without TensorFloat-32, whose "
            "rounding lets clipped gradients exceed their bound by a relative "
            "1e-3. Call "
            "tf.config.experimental.enable_tensor_float_32_execution(False) "
            "first."
        )


def check_strategies(
    model: keras.Model,
    optimizer: DPOptimizer,
    strategy: tf.distribute.Strategy,
) -> None:
    """Raises unless everything was made under the model's strategy.

    Raises:
        PrivateTrainingError: The strategy is not supported, or a part was made
            under another one.
    """
    if isinstance(strategy, _UNSUPPORTED):
        raise PrivateTrainingError(
            "Private training must run under MirroredStrategy, "
            "MultiWorkerMirroredStrategy or no strategy: each replica must "
            "have a copy of all variables. Received: "
            f"{type(strategy).__name__}. Build and compile the model in the "
            "scope of one of those."
        )
    others = [
        ("The wrapped model", model.distribute_strategy),
        ("The optimizer", strategy_of(optimizer)),
        *[
            ("The inner optimizer", strategy_of(each))
            for each in optimizers_in(optimizer.inner)
        ],
    ]
    for what, own in others:
        if own is not strategy:
            raise PrivateTrainingError(
                f"{what} must be made in the scope of the strategy of the "
                f"private model. Received: {type(own).__name__}, where the "
                f"private model has {type(strategy).__name__}. Make and "
                "compile all of them inside `with strategy.scope():`."
            )


def check_created_in(
    strategy: tf.distribute.Strategy, optimizer: DPOptimizer
) -> None:
    """Raises unless the strategy keeps the state of the queries in step.

    Raises:
        PrivateTrainingError: The state was made outside of the strategy.
    """
    if not optimizer.state_is_made_in(strategy):
        raise PrivateTrainingError(
            "The state of the private optimizer must be made in the scope of "
            "the strategy of its model. Otherwise each replica has its own "
            "seeds, adds other noise, and has other weights. Compile a new "
            "optimizer inside `with strategy.scope():`."
        )


def check_one_worker(
    ledger: PrivacyLedger | LedgerOfChief, workers: int
) -> PrivacyLedger:
    """Returns the ledger of a training with a target.

    A target would stop the chief alone.

    Raises:
        ValueError: There is more than one.
    """
    if workers > 1 or not isinstance(ledger, PrivacyLedger):
        raise ValueError(
            "`target_epsilon` must be None with several workers, because only "
            f"the chief has the ledger. Received: {workers} workers. Choose "
            "the noise for your epochs with calibrate_noise."
        )
    return ledger


def check_compiled_steps(options: dict[str, Any]) -> None:
    """Raises unless `steps_per_execution` is a number of rounds.

    Args:
        options: The options of `compile`.

    Raises:
        ValueError: It is not an integer >= 1.
    """
    count = options.get("steps_per_execution", 1)
    if not isinstance(count, int) or count < 1:
        raise ValueError(
            "`steps_per_execution` must be an integer >= 1: rounds are "
            "recorded one by one, and nothing is gained by finding a best "
            f"number. Received: steps_per_execution={count!r}. Leave it out."
        )


def check_sums_fit(planned: Round, rows: int) -> None:
    """Raises where the grid of the noise would cut a sum of these rows off.

    Args:
        planned: A round.
        rows: The number of rows of a physical batch.

    Raises:
        ValueError: So many records, each at its bound, exceed 2^27 standard
            deviations of the noise.
    """
    for query in planned.queries:
        bound = getattr(query, "l2_norm_bound", 0.0)
        stddev = getattr(query, "noise_stddev", 0.0)
        if 0 < stddev < bound * rows * 2.0**-27:
            raise ValueError(
                "`noise_multiplier` must be 0 or at least "
                f"{rows * 2.0**-27:.3g} for batches of {rows:,} rows. "
                f"Received: {stddev / bound:.3g} for {query.name!r}. Sums are "
                "cut off at 2^27 standard deviations of their noise. 0 trains "
                "without noise, to compare with."
            )


def check_compiles(core: Any, arguments: tuple[Any, ...]) -> None:
    """Raises if XLA lacks an operation of a step, on machines without a GPU.

    Args:
        core: A function with `jit_compile=True`.
        arguments: Its arguments.

    Raises:
        ValueError: XLA cannot compile it.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    try:
        core.experimental_get_compiler_ir(*arguments)(stage="hlo")
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        lacking = re.search(r"XLA_CPU_JIT: ([^(]+) \(", str(error))
        if lacking is not None:
            raise ValueError(
                "`jit_compile` must be False for this model. Received: "
                "jit_compile=True, and an operation that XLA does not have: "
                f"{lacking[1]}. No round ran."
            ) from None


def check_no_jit(options: dict[str, Any]) -> None:
    """Turns off XLA for a step that runs on replicas.

    Args:
        options: The options of `compile`. `jit_compile` is set to `False`.

    Raises:
        ValueError: `jit_compile` is `True`.
    """
    if options.get("jit_compile", "auto") is True:
        raise ValueError(
            '`jit_compile` must be False or "auto" with replicas: XLA cannot '
            "compile a step that updates variables on each of them. "
            "Received: jit_compile=True. Leave it out."
        )
    options["jit_compile"] = False


def resolved_loss_scale(given: float | None, model: keras.Model) -> float:
    """Returns the loss scale.

    Args:
        given: The argument `loss_scale` of `compile`. By default it is 1024 if
            a layer computes in float16, else 1.
        model: The user's model.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not a power of two from 1 to 32768.
    """
    if given is None:
        layers = layers_of(model)
        half = any(layer.compute_dtype == "float16" for layer in layers)
        return _LOSS_SCALE if half else 1.0
    _check.finite_positive(loss_scale=given)
    if math.frexp(given)[0] != 0.5 or not 1 <= given <= _LARGEST_LOSS_SCALE:
        raise ValueError(
            "`loss_scale` must be a power of two from 1 to "
            f"{_LARGEST_LOSS_SCALE:g}, so that float32 divides by it without "
            f"rounding. Received: loss_scale={given!r}. Pass 1024, or leave it "
            "out."
        )
    return float(given)


def check_wrapped(model: Any) -> None:
    """Raises for models that cannot be made private by wrapping them.

    Raises:
        TypeError: `model` is not a Keras model.
        PrivateTrainingError: The model has a step, a loss or metrics of its
            own, or preprocesses in `fit`.
    """
    if not isinstance(model, keras.Model):
        raise TypeError(
            "`model` must be a keras.Model. Received: "
            f"model={_check.shown(model)}. Pass a Sequential, "
            "functional or subclassed model."
        )
    overridden = {
        method: instead
        for method, instead in _INSTEAD_OF_METHODS.items()
        if getattr(type(model), method) is not getattr(keras.Model, method)
    }
    if overridden:
        raise PrivateTrainingError(
            f"`model` must not override {', '.join(overridden)}: the private "
            "model runs its own, which keeps examples apart, and would not "
            f"call yours. Received: class {type(model).__name__}. "
            + " ".join(overridden.values())
        )
    # Tasks of KerasHub preprocess in `fit` and `predict`.
    if getattr(model, "preprocessor", None) is not None:
        raise PrivateTrainingError(
            "`model` must not preprocess: the private model trains on records "
            "as they are drawn, and would not call the preprocessor. "
            f"Received: preprocessor={type(model.preprocessor).__name__}. "
            "Preprocess the data beforehand, and set model.preprocessor = None."
        )


def warn_of_test_step(model: keras.Model) -> None:
    """Warns if the model has its own `test_step`, which is not run."""
    if type(model).test_step is not keras.Model.test_step:
        logging.warning(
            "`test_step` of class %s is not run by the private model: its "
            "evaluate computes the loss and the metrics of its own compile. "
            "For yours, compile %r itself after training, and call its "
            "evaluate.",
            type(model).__name__,
            model.name,
        )


def check_trained(model: keras.Model) -> None:
    """Raises for a model without trainable variables.

    Raises:
        PrivateTrainingError: It has none.
    """
    if not model.trainable_variables:
        raise PrivateTrainingError(
            "`model` must have variables to train. Received: model "
            f"{model.name!r}, all of whose layers are frozen or own no "
            "weights. Set layer.trainable = True, or add a layer."
        )


def check_optimizer(optimizer: Any) -> None:
    """Raises unless the optimizer that `compile` is given is private.

    Raises:
        TypeError: It is not a `DPOptimizer`.
    """
    if not isinstance(optimizer, DPOptimizer):
        raise TypeError(
            "`optimizer` must be a keras_dp.optimizers.DPOptimizer, such as "
            "DPAdam(1e-3, query=..., ledger=...). "
            f"Received: optimizer={optimizer!r}."
        )


def check_loss(loss: Any) -> None:
    """Raises for losses of Keras that are not a mean or sum over examples.

    The self-check finds other such losses.

    Args:
        loss: The argument `loss` of `compile`.

    Raises:
        ValueError: There is no loss, or one of them is no mean or sum.
    """
    if loss is None:
        raise ValueError(
            "`loss` must be given: a loss that a layer adds is one number for "
            "the whole batch. Received: loss=None. Pass loss= to compile."
        )
    for each in keras.tree.flatten(loss):
        found = keras.losses.get(each) if isinstance(each, str) else each
        if found is keras.losses.circle or isinstance(
            found, keras.losses.Circle
        ):
            raise ValueError(
                "`loss` must be a mean or sum over examples. Received: "
                f"loss={each!r}, which compares the examples of a batch with "
                "each other. Use a loss of single examples, such as "
                "CategoricalCrossentropy."
            )
        if getattr(found, "reduction", None) == "mean_with_sample_weight":
            raise ValueError(
                "`loss` must be a mean or sum over examples. Received: "
                f"loss={each!r} with reduction='mean_with_sample_weight', "
                "which divides by the weights of the whole batch. Use "
                "reduction='sum_over_batch_size'."
            )
        whole = (keras.losses.Dice, keras.losses.Tversky)
        if found in (keras.losses.dice, keras.losses.tversky) or (
            isinstance(found, whole) and found.axis is None
        ):
            raise ValueError(
                "`loss` must be a mean or sum over examples. Received: "
                f"loss={each!r} with axis=None, a ratio of sums over the whole "
                "batch. Give it the axes of one example: for images, "
                "keras.losses.Dice(axis=(1, 2, 3))."
            )
