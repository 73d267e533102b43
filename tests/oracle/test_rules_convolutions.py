"""Rules of depthwise, separable and transposed convolutions against a loop."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.gradients.records import cost_model
from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.registry import rule_for
from tests.pairwise import pairwise
from tests.slow_loop import (
    BATCH,
    assert_rule_agrees,
    call_of,
    loop_of_layer,
    rule_of,
)

KERNELS = {1: [3, 1, 2], 2: [(3, 2), 1, (2, 3)], 3: [3, 1, 2]}
SIZES = {1: [(7,), (8,)], 2: [(6, 7), (7, 5)]}
# Both at once is a different operation of Keras; an input that is not used.
STRIDED_AND_DILATED = [
    ({"strides": 2, "dilation_rate": 2, "padding": "same"}, (7, 8)),
    ({"strides": 3, "dilation_rate": 2}, (8, 9)),
    ({"strides": 2, "dilation_rate": 3}, (9, 8)),
]


def _is_known(strides, dilation_rate, output_padding=None, **_):
    """Whether Keras has the operation, and on CPU."""
    either = strides == 1 or dilation_rate == 1
    return either and (output_padding is None or output_padding < strides)


def _cases(layer_class, axes, **options):
    """Every two options; the layer, what it is made with, and the size."""
    rows = pairwise(
        {
            "kernel_size": KERNELS[axes],
            "strides": [1, 2, 3],
            # TensorFlow has no dilation of transposed kernels in 3D on CPU.
            "dilation_rate": [1, 2][: 4 - axes],
            "padding": ["valid", "same"],
            "data_format": ["channels_last", "channels_first"],
            "use_bias": [True, False],
            "size": SIZES.get(axes),
            **options,
        },
        _is_known,
    )
    return [(layer_class, row, row.pop("size")) for row in rows]


def _strided_and_dilated(layer_class, **options):
    return [
        (layer_class, {"kernel_size": 2} | options | each, size)
        for each, size in STRIDED_AND_DILATED
    ]


DEPTHS = {"depth_multiplier": [1, 2]}
SEPARABLE = DEPTHS | {"filters": [3]}
TRANSPOSED = {"filters": [4], "output_padding": [None, 1, 2]}


def _has_float64(case):
    """Whether TensorFlow computes the layer itself on CPU in float64."""
    layer_class, options, _ = case
    limited = (
        options.get("data_format") == "channels_first"
        or options.get("dilation_rate", 1) > 1
    )
    return not (limited and "Transpose" in layer_class.__name__)


def _has_float32(case):
    """Whether the gradient of TensorFlow itself is right in float32.

    Where strides exceed the kernel of a transpose, oneDNN in TensorFlow 2.21
    computes garbage at times.
    """
    layer_class, options, _ = case
    within = options.get("strides", 1) <= np.min(options["kernel_size"])
    return within or "Transpose" not in layer_class.__name__


ALL = [
    *_cases(keras.layers.DepthwiseConv1D, 1, **DEPTHS),
    *_cases(keras.layers.DepthwiseConv2D, 2, **DEPTHS),
    *_strided_and_dilated(keras.layers.DepthwiseConv2D, depth_multiplier=2),
    *_cases(keras.layers.SeparableConv1D, 1, **SEPARABLE),
    *_cases(keras.layers.SeparableConv2D, 2, **SEPARABLE),
    *_strided_and_dilated(keras.layers.SeparableConv2D, filters=3),
    *_cases(keras.layers.Conv1DTranspose, 1, size=[(3,)], **TRANSPOSED),
    *_cases(keras.layers.Conv2DTranspose, 2, size=[(3, 2)], **TRANSPOSED),
    *_cases(keras.layers.Conv3DTranspose, 3, size=[(3, 2, 3)], **TRANSPOSED),
]
CASES = [case for case in ALL if _has_float32(case)]
IN_FLOAT64 = [case for case in ALL if case not in CASES and _has_float64(case)]
CHANNELS = 2


def _name(case):
    layer_class, options, size = case
    said = "-".join(str(value) for value in options.values())
    return f"{layer_class.__name__}-{said}-{'x'.join(map(str, size))}"


def _made(case, dtype="float32", offset=0.0):
    """The layer without its activation, inputs, and a cotangent."""
    layer_class, options, size = case
    layer = layer_class(**options, bias_initializer="ones", dtype=dtype)
    last = layer.data_format == "channels_last"
    shape = (*size, CHANNELS) if last else (CHANNELS, *size)
    rng = np.random.default_rng(len(size))
    inputs = tf.constant(offset + rng.normal(size=(BATCH, *shape)), dtype)
    layer.activation = None
    outputs = layer(inputs)
    return (
        layer,
        inputs,
        tf.constant(rng.normal(size=outputs.shape), outputs.dtype),
    )


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_gradients_agree_with_the_loop(case) -> None:
    dtype = "float64" if _has_float64(case) else "float32"

    assert_rule_agrees(*_made(case, dtype), "eager")
    assert_rule_agrees(*_made(case), "graph")


@pytest.mark.parametrize("case", IN_FLOAT64, ids=_name)
def test_gradients_of_strides_beyond_the_kernel_agree_with_the_loop(
    case,
) -> None:
    for mode in ("eager", "graph"):
        assert_rule_agrees(*_made(case, "float64"), mode)


@pytest.mark.parametrize(
    "case",
    [c for c in CASES if "Transpose" in c[0].__name__][::4],
    ids=_name,
)
def test_gradients_that_are_not_built_agree_with_the_loop(
    case, monkeypatch
) -> None:
    """The Gram form of transposed convolutions."""
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: False)
    layer, inputs, cotangent = _made(case)

    (_, records), *_ = rule_of(layer)(call_of(layer, inputs, cotangent))

    assert isinstance(records, OuterProductRecords)
    assert_rule_agrees(layer, inputs, cotangent, "eager")


def test_layers_with_weights_in_their_activation_have_no_rule() -> None:
    layer = keras.layers.DepthwiseConv2D(2, activation=keras.layers.PReLU())
    layer(np.zeros((1, 4, 4, 2), "float32"))  # Builds the activation.

    assert rule_for(layer) is None


@pytest.mark.parametrize(
    ("layer_class", "attribute", "wrong"),
    [
        (keras.layers.DepthwiseConv2D, "strides", (2, 2)),
        (keras.layers.DepthwiseConv2D, "dilation_rate", (2, 1)),
        (keras.layers.Conv2DTranspose, "dilation_rate", (2, 2)),
    ],
)
def test_the_loop_finds_a_rule_that_looks_elsewhere(
    layer_class, attribute, wrong
) -> None:
    """Control: gradients of another convolution are found."""
    case = next(case for case in CASES if case[0] is layer_class)
    layer, inputs, cotangent = _made(case)
    want = loop_of_layer(layer, inputs, cotangent)
    setattr(layer, attribute, wrong)

    with pytest.raises(AssertionError):
        assert_rule_agrees(layer, inputs, cotangent, "eager", want)
