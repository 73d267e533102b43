"""From a model with batch normalization to one in which examples are alone."""

from collections.abc import Callable
from typing import Any

import keras

from keras_dp.errors import UnsupportedLayerError
from keras_dp.keras_internals import layers_of, passes_training_on

# The least number of channels in a group.
_CHANNELS = 16
# Both kinds of layer have these arguments.
_SHARED = (
    "name",
    "dtype",
    "axis",
    "epsilon",
    "center",
    "scale",
    "beta_initializer",
    "gamma_initializer",
    "beta_regularizer",
    "gamma_regularizer",
    "beta_constraint",
    "gamma_constraint",
)


def replace_batch_normalization(model: keras.Model) -> keras.Model:
    """Returns a model that normalizes each example by itself.

    Every `BatchNormalization` that is trained becomes a `GroupNormalization`
    of the same name, with its gamma and beta. A group has at least 16 channels,
    or all of a layer with fewer; the number of groups is the largest that
    divides the channels. All other layers are equal to those of `model`, with
    equal weights; nothing is shared. Frozen layers of batch normalization stay,
    for they mix no examples. A pretrained model needs training afterwards: it
    was fitted to the statistics that are gone.

    Args:
        model: Functional or Sequential, built; such models inside it are
            treated alike.

    Returns:
        A new model, not compiled.

    Raises:
        TypeError: `model` is neither functional nor Sequential.
        UnsupportedLayerError: A layer that is no such model holds batch
            normalization.
        ValueError: `model` is not built.

    Source: Y. Wu, K. He (2018), arXiv:1803.08494v3, where 16 channels a group
    do as well as 32 groups.

    >>> model = keras.Sequential([
    ...     keras.Input((8, 8, 3)), keras.layers.Conv2D(64, 3),
    ...     keras.layers.BatchNormalization(), keras.layers.Flatten()])
    >>> replaced = replace_batch_normalization(model)
    >>> replaced.layers[1].groups
    4
    """
    _check_reachable(model)
    pairs: dict[int, tuple[Any, Any]] = {}

    def cloned(layer: Any) -> Any:
        if id(layer) not in pairs:  # Else it is shared.
            pairs[id(layer)] = layer, new_layer(layer)
        return pairs[id(layer)][1]

    def new_layer(layer: Any) -> Any:
        if isinstance(layer, keras.Layer):
            if passes_training_on(layer):
                return _cloned(layer, cloned)
            if _is_trained_normalization(layer):
                return _replacement(layer)
        return type(layer).from_config(layer.get_config())

    result = _cloned(model, cloned)
    for old, new in pairs.values():
        if _is_trained_normalization(old):
            for name in ("gamma", "beta"):
                if getattr(old, name) is not None:
                    getattr(new, name).assign(getattr(old, name))
        elif isinstance(old, keras.Layer) and not passes_training_on(old):
            new.trainable = old.trainable
            new.set_weights(old.get_weights())
    return result


def _cloned(model: keras.Model, cloned: Callable[[Any], Any]) -> keras.Model:
    """Returns the model with each layer exchanged for `cloned(layer)`."""

    def called(layer: Any, *args: Any, **options: Any) -> Any:
        if isinstance(layer, keras.layers.GroupNormalization):
            # Keras notes the arguments of batch normalization.
            options = {k: v for k, v in options.items() if k == "inputs"}
        return layer(*args, **options)

    is_sequential = isinstance(model, keras.Sequential)
    return keras.models.clone_model(
        model,
        clone_function=cloned,
        call_function=None if is_sequential else called,
    )


def _is_trained_normalization(layer: keras.Layer) -> bool:
    return (
        isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    )


def _replacement(layer: keras.Layer) -> keras.Layer:
    config = layer.get_config()
    shared: dict[str, Any] = {name: config[name] for name in _SHARED}
    channels = layer.moving_mean.shape[0]
    groups = max(
        each
        for each in range(1, channels + 1)
        if channels % each == 0 and (each == 1 or channels // each >= _CHANNELS)
    )
    return keras.layers.GroupNormalization.from_config(
        {**shared, "groups": groups}
    )


def _check_reachable(model: Any) -> None:
    """Raises for models whose layers cannot be exchanged from outside."""
    if not isinstance(model, keras.Model) or not passes_training_on(model):
        raise TypeError(
            "`model` must be functional or Sequential: the layers of a "
            "subclassed model are made and called by its own code. Received: "
            f"class {type(model).__name__}. Write GroupNormalization for "
            "BatchNormalization there."
        )
    if not model.built:
        raise ValueError(
            "`model` must be built, for the groups depend on the channels. "
            "Received: a model without weights. Call it on a batch first, or "
            "give it a keras.Input."
        )
    reachable: set[int] = set()

    def visit(layer: keras.Layer) -> None:
        reachable.add(id(layer))
        if passes_training_on(layer):
            for each in layer.layers:
                visit(each)

    visit(model)
    hidden = [
        layer.path
        for layer in layers_of(model)
        if id(layer) not in reachable and _is_trained_normalization(layer)
    ]
    if hidden:
        raise UnsupportedLayerError(
            "Every BatchNormalization must be in a functional or Sequential "
            f"model to be replaced. Received: {hidden!r}, held by layers of "
            "other classes. Write GroupNormalization in their code."
        )
