"""The rule of `StandardizedConv2D` against a loop over single examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.convolution_records import StandardizedRecords
from keras_dp.gradients.registry import rule_for
from keras_dp.layers import StandardizedConv2D
from tests.slow_loop import (
    BATCH,
    assert_rule_agrees,
    call_of,
    loop_of_layer,
    rule_of,
)

OPTIONS = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "strides": (2, 1), "padding": "same"},
    {"kernel_size": 2, "dilation_rate": 2, "use_bias": False},
]
# Its gradients are not built. So its norms are bounds.
ONE_TAP = {"kernel_size": 1, "use_bias": False}


def made(options, dtype="float32", size=7):
    keras.utils.set_random_seed(2)
    layer = StandardizedConv2D(5, dtype=dtype, **options)
    generator = np.random.default_rng(0)
    inputs = generator.normal(0.5, size=(BATCH, size, size, 3)).astype(dtype)
    outputs = layer(inputs)
    cotangent = generator.normal(size=outputs.shape).astype(dtype)
    return layer, inputs, cotangent


def squared(gradients):
    axes = tuple(range(1, gradients.ndim))
    return np.sum(np.square(gradients, dtype="float64"), axis=axes)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_agree_with_the_loop(options, dtype) -> None:
    assert_rule_agrees(*made(options, dtype), "eager")


@pytest.mark.full
def test_compiled_gradients_agree_with_the_loop() -> None:
    assert_rule_agrees(*made(OPTIONS[1]), "jit")


@pytest.mark.parametrize("options", [*OPTIONS, ONE_TAP], ids=str)
def test_norms_without_the_gradients_are_close_upper_bounds(
    options, monkeypatch
) -> None:
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: False)
    layer, inputs, cotangent = made(options)
    (want, *_) = loop_of_layer(layer, inputs, cotangent)

    (_, records), *_ = rule_of(layer)(call_of(layer, inputs, cotangent))

    assert isinstance(records, StandardizedRecords)
    found = np.asarray(records.squared_norms())
    assert np.all(found >= squared(want) * (1 - 1e-6))
    # They have one direction of each filter too many, of three if it has one
    # tap, and of twelve or more else.
    most = 4 if options is ONE_TAP else 1.3
    assert np.all(found <= most * squared(want))
    weights = tf.linspace(0.2, 1.4, BATCH)
    np.testing.assert_allclose(
        records.weighted_sum(tf.cast(weights, tf.float32)),
        np.tensordot(weights, want, axes=1),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("builds", [True, False])
@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e12])
def test_what_is_clipped_is_no_longer_than_the_clip(
    builds, size, monkeypatch
) -> None:
    """Images of one color have gradients that the map cancels to rounding.

    So have cotangents along the outputs. The sum of clipped gradients is
    compared with the clip, with what float32 adds.
    """
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: builds)
    layer, inputs, cotangent = made({"kernel_size": 3, "use_bias": False})
    inputs[:] = 1
    inputs[1] += 1e-4 * np.random.default_rng(1).normal(size=inputs[1].shape)
    cotangent[:2] = size
    cotangent[2:] = size * np.asarray(layer(inputs))[2:]

    (_, records), *_ = rule_of(layer)(call_of(layer, inputs, cotangent))
    norms = np.sqrt(np.asarray(records.squared_norms(), "float64"))
    weights = np.where(norms > 1, 1 / np.maximum(norms, 1e-300), 1)

    for example in range(BATCH):
        alone = np.where(np.arange(BATCH) == example, weights, 0)
        total = records.weighted_sum(tf.constant(alone, tf.float32))
        assert np.linalg.norm(np.asarray(total, "float64")) <= 1 + 1e-4


def test_a_tiny_filter_is_not_made_long() -> None:
    layer, inputs, cotangent = made({"kernel_size": 3, "use_bias": False})
    layer.kernel.assign(tf.zeros_like(layer.kernel))

    np.testing.assert_array_equal(layer(inputs), 0)
    assert_rule_agrees(layer, inputs, cotangent, "eager")


def test_filters_are_standardized_by_definition() -> None:
    layer, inputs, _ = made({"kernel_size": 3, "use_bias": False})
    kernel = np.asarray(layer.kernel, "float64")
    kernel -= kernel.mean(axis=(0, 1, 2))
    kernel /= np.sqrt((kernel**2).sum(axis=(0, 1, 2)) + 1e-5)

    plain = tf.nn.conv2d(inputs, tf.cast(kernel, tf.float32), 1, "VALID")

    np.testing.assert_allclose(layer(inputs), plain, atol=1e-5)


def test_groups_of_channels_have_no_rule() -> None:
    layer = StandardizedConv2D(4, 2, groups=2)
    layer(np.zeros((1, 4, 4, 2), "float32"))

    assert rule_for(layer) is None
