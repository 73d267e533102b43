"""Finds layers that hold values which `adapt` computed from data.

`Normalization.adapt` stores exact means, and `TextVectorization.adapt` stores
words. They have no noise, and the saved model contains them.
"""

from typing import Any

import keras

from keras_dp.keras_internals import layers_of


def adapted_layers(model: keras.Model) -> list[str]:
    """Returns a text on each layer that holds adapted values, at any depth.

    Values that the constructor of a layer was given (`vocabulary=`, `mean=`)
    are taken to be public, because they are part of the caller's program. A
    layer that derives from no preprocessing layer of Keras is always returned
    if it has a method `adapt`, because its values are not known.

    >>> import numpy as np
    >>> layer = keras.layers.Normalization(name="scales")
    >>> model = keras.Sequential([keras.Input((2,)), layer])
    >>> adapted_layers(model)
    []
    >>> layer.adapt(np.array([[1.0, 2.0], [3.0, 5.0]]))
    >>> adapted_layers(model)
    ["'...scales' of class Normalization, with means and variances"]
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
