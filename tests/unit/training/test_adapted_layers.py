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


def _loaded(model, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


HELD = {
    "itself": lambda model, _: model,
    "inside": lambda model, _: keras.Sequential([keras.Sequential([model])]),
    "loaded": _loaded,
}


@pytest.mark.parametrize("held", HELD)
@pytest.mark.parametrize("kind", KINDS)
def test_adapted_layers_are_found_once_and_named(kind, held, tmp_path) -> None:
    options, data, *inputs = KINDS[kind]
    layer = getattr(layers, kind)(name="kept", **options)
    assert adapted_layers(keras.Sequential([layer])) == []
    layer.adapt(data)

    (found,) = adapted_layers(HELD[held](_model(layer, *inputs), tmp_path))

    assert found.startswith(f"'kept' of class {kind}, with ")


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (layers.Normalization(mean=1.0, variance=2.0), ((2,), "float32")),
        (layers.Discretization(bin_boundaries=[0.0, 1.0]), ((2,), "float32")),
        (layers.IntegerLookup(vocabulary=[1, 2]), ((2,), "int64")),
        (layers.StringLookup(vocabulary=["a", "b"]), ((1,), "string")),
        (layers.TextVectorization(vocabulary=["a", "b"]), ((1,), "string")),
        (layers.Dense(1), ((2,), "float32")),
    ],
    ids=lambda each: type(each).__name__,
)
def test_values_of_the_constructor_are_no_adapted_values(layer, inputs) -> None:
    assert adapted_layers(_model(layer, *inputs)) == []


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
