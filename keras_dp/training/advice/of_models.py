"""Conditions on a model, and on how it is compiled.

Among them are layers that hold values which `adapt` computed from data:
`Normalization.adapt` stores exact means, and `TextVectorization.adapt` stores
words. They have no noise, and the saved model contains them.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import PrivateTrainingError
from keras_dp.keras_internals import layers_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.training.advice.condition import Condition
from keras_dp.training.advice.other_trainings import is_known

# The remedy for each method of a model that the private model does not run.
_INSTEAD_OF_METHODS = {
    "train_step": "Give its loss to compile(loss=...) and its metrics to "
    "compile(metrics=...), even where it only calls super().train_step.",
    "compute_loss": "Give the loss to compile(loss=...); return what it needs "
    "besides the outputs as one more output of the model.",
    "compute_metrics": "Give the metrics to compile(metrics=...).",
    "test_step": "Give the metrics to compile(metrics=...).",
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
    """The arguments of a call of `compile`, which may be of any kind."""

    optimizer: Any
    loss: Any
    options: Mapping[str, Any]


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


def adapted_layers(model: keras.Model) -> list[str]:
    """Returns a text on each layer that holds adapted values, at any depth.

    Values that the constructor of a layer was given (`vocabulary=`, `mean=`)
    are taken to be public, because they are part of the caller's program. A
    layer that derives from no preprocessing layer of Keras is always returned
    if it has a method `adapt`, because its values are not known.
    """
    found = []
    inside: set[int] = set()  # The lookup layer of a `TextVectorization`.
    for layer in layers_of(model):
        if id(layer) in inside or not hasattr(layer, "adapt"):
            continue
        if isinstance(layer, keras.layers.TextVectorization):
            inside |= {id(each) for each in layers_of(layer)}
        holds = _adapted_values(layer)
        if holds:
            name = type(layer).__name__
            found.append(f"{layer.path!r} of class {name}, with {holds}")
    return found


def _adapted_values(layer: Any) -> str:
    """Returns the kind of the adapted values, "" if there are none."""
    if isinstance(layer, keras.layers.Normalization):
        return _if(_is_fitted(layer), "means and variances")
    if isinstance(layer, keras.layers.Discretization):
        fitted = layer.num_bins is not None and bool(layer.bin_boundaries)
        return _if(fitted, "quantiles")
    if isinstance(
        layer,
        (
            keras.layers.TextVectorization,
            keras.layers.StringLookup,
            keras.layers.IntegerLookup,
        ),
    ):
        given = layer.get_config()["vocabulary"] is not None
        words = [] if given else layer.get_vocabulary(False)
        return _if(len(words) > 0, "a vocabulary")
    if isinstance(layer, keras.utils.FeatureSpace):
        return ""  # The layers inside hold the values.
    return "what its method `adapt` computed"


def _is_fitted(layer: keras.layers.Normalization) -> bool:
    if layer.input_mean is not None or not layer.built:
        return False
    mean, variance = layer.adapt_mean, layer.adapt_variance
    ops = keras.ops
    return bool(ops.any(mean != 0)) or bool(ops.any(variance != 1))


def _if(holds: bool, what: str) -> str:
    return what if holds else ""


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


def lacking_operation(core: Any, arguments: tuple[Any, ...]) -> Any:
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
        lacking_operation,
        ValueError,
        "`jit_compile` must be False for this model. Received: an operation "
        "that XLA does not have: {}. No round ran. Pass jit_compile=False.",
    ),
)
