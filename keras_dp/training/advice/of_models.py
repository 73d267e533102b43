"""Conditions on a model, and on how it is compiled."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import layers_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.training.advice.adapted_layers import adapted_layers
from keras_dp.training.advice.condition import Condition
from keras_dp.training.advice.other_trainings import is_known

# The remedy for each method of a model that the private model does not run.
_INSTEAD_OF_METHODS = {
    "train_step": "Give its loss to compile(loss=...) and its metrics to "
    "compile(metrics=...), even where it only calls super().train_step.",
    "compute_loss": "Give the loss to compile(loss=...); return what it needs "
    "besides the outputs as one more output of the model.",
    "compute_metrics": "Give the metrics to compile(metrics=...).",
}
# Layers of which all weights of these names have one value before a training,
# and what gives it.
_FRESH = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.LayerNormalization,
    keras.layers.BatchNormalization,
)
_BEGINNINGS = {
    "bias": "bias_initializer",
    "gamma": "gamma_initializer",
    "beta": "beta_initializer",
}


class Compiling(NamedTuple):
    """The arguments of a call of `compile`.

    Attributes:
        optimizer: The argument, which may be of any kind.
        loss: As in `compile`.
        options: Other arguments.
        are_many: Whether several replicas share a batch.
    """

    optimizer: Any
    loss: Any
    options: Mapping[str, Any]
    are_many: bool


def _own_methods(model: keras.Model) -> Any:
    own = [
        name
        for name in _INSTEAD_OF_METHODS
        if getattr(type(model), name) is not getattr(keras.Model, name)
    ]
    remedies = " ".join(_INSTEAD_OF_METHODS[name] for name in own)
    return own and (", ".join(own), type(model).__name__, remedies)


def _preprocessor(model: keras.Model) -> Any:
    """Tasks of KerasHub preprocess in `fit` and `predict`."""
    found = getattr(model, "preprocessor", None)
    return found is not None and type(found).__name__


def _loss_of_batches(compiling: Compiling) -> str | None:
    """Returns a loss of Keras that is no mean or sum over examples.

    The self-check finds other such losses.
    """
    losses = keras.losses
    for each in keras.tree.flatten(compiling.loss):
        found = losses.get(each) if isinstance(each, str) else each
        by_weights = (
            getattr(found, "reduction", None) == "mean_with_sample_weight"
        )
        of_pairs = isinstance(found, losses.Circle)
        ratio = isinstance(found, losses.Dice | losses.Tversky)
        if (
            by_weights
            or of_pairs
            or (ratio and found.axis is None)
            or found in (losses.circle, losses.dice, losses.tversky)
        ):
            return repr(each)
    return None


def _no_count(compiling: Compiling) -> Any:
    count = compiling.options.get("steps_per_execution", 1)
    is_count = isinstance(count, int) and count >= 1
    return not is_count and count != "auto" and repr(count)


def _trained_before(model: keras.Model) -> str | None:
    """Returns what shows that weights were trained or set, if anything does.

    Layers of a kind all begin with the same biases and scales.
    """
    optimizer, initial = getattr(model, "optimizer", None), keras.initializers
    if isinstance(optimizer, keras.optimizers.Optimizer):
        steps = int(keras.ops.convert_to_numpy(optimizer.iterations))
        if steps:
            return f"its own optimizer trained it for {steps} steps"
    for layer in () if is_known(model) else layers_of(model):
        for name, how in (
            _BEGINNINGS.items() if isinstance(layer, _FRESH) else ()
        ):
            value = getattr(layer, name, None)
            begins = getattr(layer, how, None)
            if isinstance(value, keras.Variable) and isinstance(
                begins, initial.Zeros | initial.Ones | initial.Constant
            ):
                first = begins(value.shape, value.dtype)
                if bool(keras.ops.any(value != first)):
                    return (
                        f"layer {layer.path!r} has others than it begins with"
                    )
    return None


def _lacking_operation(core: Any, arguments: tuple[Any, ...]) -> Any:
    """Returns an operation that XLA lacks, on machines without a GPU."""
    if tf.config.list_physical_devices("GPU"):
        return None
    try:
        core.experimental_get_compiler_ir(*arguments)(stage="hlo")
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        lacking = re.search(r"XLA_CPU_JIT: ([^(]+) \(", str(error))
        return lacking and lacking[1]
    return None


# These are asked of what is to be wrapped.
WRAPPED = (
    Condition(
        lambda model: (
            not isinstance(model, keras.Model) and _check.shown(model)
        ),
        TypeError,
        "`model` must be a keras.Model. Received: model={}. Pass a Sequential, "
        "functional or subclassed model.",
    ),
    Condition(
        _own_methods,
        PrivateTrainingError,
        "`model` must not override {}: the private model runs its own, which "
        "keeps examples apart, and would not call yours. Received: class {}. "
        "{}",
    ),
    Condition(
        _preprocessor,
        PrivateTrainingError,
        "`model` must not preprocess: the private model trains on records as "
        "they are drawn, and would not call the preprocessor. Received: "
        "preprocessor={}. Preprocess the data beforehand, and set "
        "model.preprocessor = None.",
    ),
)

# These are asked of a `Compiling`.
COMPILED = (
    Condition(
        lambda compiling: (
            not isinstance(compiling.optimizer, DPOptimizer)
            and repr(compiling.optimizer)
        ),
        TypeError,
        "`optimizer` must be a keras_dp.optimizers.DPOptimizer, such as "
        "DPAdam(1e-3, query=..., ledger=...). Received: optimizer={}.",
    ),
    Condition(
        lambda compiling: compiling.loss is None,
        ValueError,
        "`loss` must be given: a loss that a layer adds is one number for the "
        "whole batch. Received: loss=None. Pass loss= to compile.",
    ),
    Condition(
        _loss_of_batches,
        ValueError,
        "`loss` must be a mean or sum over examples. Received: loss={}, which "
        "compares the examples of a batch with each other, or divides by sums "
        "over all of them. Use a loss of single examples: with "
        "reduction='sum_over_batch_size', and for images with the axes of one "
        "example, such as keras.losses.Dice(axis=(1, 2, 3)).",
    ),
    Condition(
        _no_count,
        ValueError,
        '`steps_per_execution` must be an integer >= 1, or "auto": so many '
        "rounds run between two calls of callbacks. Received: "
        "steps_per_execution={}. Leave it out.",
    ),
    Condition(
        lambda compiling: (
            compiling.are_many
            and compiling.options.get("jit_compile", "auto") is True
        ),
        ValueError,
        '`jit_compile` must be False or "auto" with replicas: XLA cannot '
        "compile a step that updates variables on each of them. Received: "
        "jit_compile=True. Leave it out.",
    ),
)

# These are asked of the user's model, once it is held and compiled.
HELD = (
    Condition(
        lambda model: ", ".join(adapted_layers(model)),
        None,
        "The model has layers that hold what their `adapt` may have computed "
        "on data: {}. If the data was private, this is in the saved model "
        "without noise, and no ledger covers it. Adapt them with "
        "keras_dp.preprocessing or on public data, or give the values to the "
        "constructor.",
    ),
    Condition(
        _trained_before,
        None,
        "The weights of the model are not fresh: {}. If private data decided "
        "them, no ledger covers that: begin with a new model.",
    ),
)

# These are asked of a model that is built.
BUILT = (
    Condition(
        lambda model: not model.trainable_variables and repr(model.name),
        PrivateTrainingError,
        "`model` must have variables to train. Received: model {}, all of "
        "whose layers are frozen or own no weights. Set layer.trainable = "
        "True, or add a layer.",
    ),
)

# With several replicas, these are asked of an optimizer and the strategy of its
# model.
REPLICATED = (
    Condition(
        lambda optimizer, strategy: not optimizer.state_is_made_in(strategy),
        PrivateTrainingError,
        "The state of the private optimizer must be made in the scope of the "
        "strategy of its model. Otherwise each replica has its own seeds, adds "
        "other noise, and has other weights. Compile a new optimizer inside "
        "`with strategy.scope():`.",
    ),
)

# These are asked of a function with `jit_compile=True`, and of its arguments.
COMPILED_BY_XLA = (
    Condition(
        _lacking_operation,
        ValueError,
        "`jit_compile` must be False for this model. Received: "
        "jit_compile=True, and an operation that XLA does not have: {}. No "
        "round ran.",
    ),
)
