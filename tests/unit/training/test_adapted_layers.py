"""Which layers hold values that were computed on data before training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.training.advice.of_models import adapted_layers

NUMBERS = np.array([[1.0, 2.0], [3.0, 5.0], [4.0, 9.0]], "float32")
WORDS = np.array(["secretname1", "secretname2"])


# Class to options, data, and the shape and type of inputs.
KINDS = {
    "Normalization": ({}, NUMBERS, (2,), "float32"),
    "Discretization": ({"num_bins": 2}, NUMBERS, (2,), "float32"),
    "StringLookup": ({}, WORDS, (1,), "string"),
    "IntegerLookup": ({}, np.array([7, 8]), (1,), "int64"),
    "TextVectorization": ({}, WORDS, (1,), "string"),
}


def _model(layer, shape=(2,), dtype="float32"):
    inputs = keras.Input(shape, dtype=dtype)
    return keras.Model(inputs, layer(inputs))


def _layer(kind):
    return getattr(layers, kind)(name="kept", **KINDS[kind][0])


def _adapted(kind):
    _, data, shape, dtype = KINDS[kind]
    layer = _layer(kind)
    layer.adapt(data)
    return _model(layer, shape, dtype)


@pytest.mark.parametrize("kind", KINDS)
class TestAdaptedLayers:
    def test_are_none_before_they_are_adapted(self, kind) -> None:
        assert adapted_layers(keras.Sequential([_layer(kind)])) == []

    def test_are_found_once_and_named(self, kind) -> None:
        model = _adapted(kind)

        (found,) = adapted_layers(model)

        assert found.startswith(f"'kept' of class {kind}, with ")

    def test_are_found_in_models_inside(self, kind) -> None:
        inner = _adapted(kind)
        outer = keras.Sequential([keras.Sequential([inner])])

        (found,) = adapted_layers(outer)
        assert f"of class {kind}," in found

    def test_are_found_in_a_loaded_model(self, kind, tmp_path) -> None:
        model = _adapted(kind)
        model.save(tmp_path / "model.keras")

        loaded = keras.saving.load_model(tmp_path / "model.keras")

        (found,) = adapted_layers(loaded)
        assert f"of class {kind}," in found


@pytest.mark.parametrize(
    "layer",
    [
        layers.Normalization(mean=1.0, variance=2.0),
        layers.Discretization(bin_boundaries=[0.0, 1.0]),
        layers.IntegerLookup(vocabulary=[1, 2]),
        layers.Dense(1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_values_of_the_constructor_are_no_adapted_values(layer) -> None:
    dtype = "int64" if isinstance(layer, layers.IntegerLookup) else "float32"

    assert adapted_layers(_model(layer, dtype=dtype)) == []


def test_words_of_the_constructor_are_no_adapted_values() -> None:
    for layer_class in (layers.StringLookup, layers.TextVectorization):
        layer = layer_class(vocabulary=["a", "b"])

        assert adapted_layers(_model(layer, (1,), "string")) == []


def test_a_feature_space_names_the_layers_inside() -> None:
    space = keras.utils.FeatureSpace(
        {"age": "float_normalized", "name": "string_categorical"},
        output_mode="concat",
    )
    columns = {"age": [1.0, 4.0], "name": list(WORDS)}
    space.adapt(tf.data.Dataset.from_tensor_slices(columns))

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.space = space

    one, two = sorted(adapted_layers(Model()))

    assert "of class Normalization," in one + two
    assert "of class StringLookup," in one + two


def test_an_unknown_layer_that_adapts_is_named() -> None:
    class Whitens(layers.Layer):
        def adapt(self, data): ...

        def call(self, x):
            return x

    (found,) = adapted_layers(_model(Whitens(name="own")))

    assert found.startswith("'own' of class Whitens")
    assert "adapt" in found
