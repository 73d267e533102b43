"""Layers that hold values which were computed on data before training.

`Normalization.adapt` stores exact means, `TextVectorization.adapt` stores
words. No noise was added to them, and the saved model contains them.
"""

from typing import Any, NamedTuple

import keras

from keras_dp.keras_internals import layers_of


class AdaptedLayer(NamedTuple):
    """A layer that holds adapted values.

    Attributes:
        path: Path of the layer in its model.
        class_name: Class of the layer.
        holds: The kind of the values.
    """

    path: str
    class_name: str
    holds: str


def adapted_layers(model: keras.Model) -> list[AdaptedLayer]:
    """Returns the layers of a model that hold adapted values, nested ones too.

    Values that the constructor of a layer was given (`vocabulary=`, `mean=`)
    are taken to be public, because they are part of the caller's program. A
    layer of another class with a method `adapt` is returned in any case,
    because its values cannot be read.

    >>> import numpy as np
    >>> layer = keras.layers.Normalization(name="scales")
    >>> model = keras.Sequential([keras.Input((2,)), layer])
    >>> adapted_layers(model)
    []
    >>> layer.adapt(np.array([[1.0, 2.0], [3.0, 5.0]]))
    >>> adapted_layers(model)[0].holds
    'means and variances'
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
            found.append(AdaptedLayer(layer.path, type(layer).__name__, holds))
    return found


def _adapted_values(layer: Any) -> str:
    """Returns what the layer holds of data, "" if that is nothing."""
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
