"""Gradients of adapted and quantized layers against the loop over examples."""

import keras
import numpy as np
import pytest
from keras import layers

from keras_dp.gradients.registry import rule_for
from keras_dp.gradients.rules import lora
from tests.slow_loop import (
    assert_model_agrees,
    model_of,
    normal,
    spread,
)

IDS = np.array([[1, 2, 2], [0, 0, 5], [6, -1, 6], [3, 4, 3]], "int32")

# Name: layer, shape of its input.
ADAPTED = {
    "dense": (lambda: layers.Dense(5, activation="tanh"), (4,)),
    "dense_of_sequences": (lambda: layers.Dense(5, use_bias=False), (3, 4)),
    "einsum_heads": (
        lambda: layers.EinsumDense("abc,cde->abde", (3, 2, 4), bias_axes="de"),
        (3, 5),
    ),
    "einsum_merge": (
        lambda: layers.EinsumDense(
            "abcd,cde->abe", (3, 4), bias_axes="e", activation="tanh"
        ),
        (3, 2, 5),
    ),
    "einsum_ellipsis": (
        lambda: layers.EinsumDense("...x,xy->...y", 4, bias_axes="y"),
        (3, 5),
    ),
    "einsum_transposed": (
        lambda: layers.EinsumDense("abc,cd->adb", (4, 3), bias_axes="d"),
        (3, 5),
    ),
}


def _adapted(make, shape, dtype="float32"):
    keras.utils.set_random_seed(5)
    with_dtype = make()
    config = with_dtype.get_config() | {"dtype": dtype}
    layer = type(with_dtype).from_config(config)
    model = model_of(layer, (shape, dtype))
    layer.enable_lora(2, lora_alpha=3)
    spread(model)
    return layer, model


# The others are compiled at night: `tests/unit/gradients/test_layer_table.py`.
COMPILED = ["dense_of_sequences", "einsum_merge"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "mode"),
    [*((name, "graph") for name in ADAPTED), *((n, "jit") for n in COMPILED)],
)
def test_adapted_layers_agree_with_the_loop(name, mode) -> None:
    make, shape = ADAPTED[name]
    layer, model = _adapted(make, shape)

    assert rule_for(layer) is not None
    assert_model_agrees(model, [normal(*shape)], mode)


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 2])
def test_a_quantized_einsum_agrees_with_the_loop(rank) -> None:
    """Keras calls another method of it, which is tapped all the same."""
    keras.utils.set_random_seed(6)
    make, shape = ADAPTED["einsum_heads"]
    layer = make()
    model = model_of(layer, shape)
    layer.quantize("int8")
    if rank:
        layer.enable_lora(rank)
        spread(model)

    assert rule_for(layer) is not None
    assert_model_agrees(model, [normal(*shape)], "graph")


@pytest.mark.full
def test_an_adapted_embedding_agrees_with_the_loop() -> None:
    layer = layers.Embedding(7, 4)
    model = model_of(layer, ((3,), "int32"))
    layer.enable_lora(2, lora_alpha=3)
    spread(model)

    assert rule_for(layer) is lora.embedding_lora
    assert_model_agrees(model, [IDS], "graph")


@pytest.mark.parametrize("name", ["dense", "einsum_heads"])
def test_factors_keep_their_float32_inside_a_layer_of_float64(name) -> None:
    """Keras holds A and B in float32, whatever the layer computes in."""
    make, shape = ADAPTED[name]
    _, model = _adapted(make, shape, "float64")

    assert_model_agrees(model, [normal(*shape, dtype="float64")], "graph")
