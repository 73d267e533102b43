"""Kernels of convolutions and dense layers against a loop over examples."""

import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.gradients.records import cost_model
from keras_dp.gradients.rules import convolution_taps
from tests.pairwise import pairwise
from tests.slow_loop import (
    BATCH,
    assert_rule_agrees,
    loop_of_layer,
)

CONV2D = [
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": 3, "strides": 2, "padding": "same"},
    {"kernel_size": 4, "strides": 2, "padding": "valid"},
    {"kernel_size": (5, 2), "strides": (3, 1), "padding": "valid"},
    {"kernel_size": (3, 4), "dilation_rate": (2, 1), "padding": "same"},
    {"kernel_size": 1},
    {"kernel_size": 1, "strides": 3},
    {"kernel_size": (1, 3), "strides": (2, 3), "padding": "same"},
    {"kernel_size": 3, "groups": 2, "padding": "same"},
    {"kernel_size": 2, "strides": 2, "groups": 4},
    {"kernel_size": 2, "use_bias": False},
]
CONV1D = [
    {"kernel_size": 3, "padding": "causal"},
    {"kernel_size": 3, "padding": "causal", "dilation_rate": 2},
    {"kernel_size": 5, "strides": 2, "padding": "same"},
    {"kernel_size": 4, "strides": 3, "padding": "valid"},
    {"kernel_size": 3, "groups": 2, "padding": "same"},
]
CONV3D = [
    {"kernel_size": 2, "padding": "same"},
    {"kernel_size": (3, 2, 1), "strides": (2, 1, 1), "padding": "valid"},
    {"kernel_size": 2, "dilation_rate": (1, 2, 1), "padding": "same"},
]
CASES = [
    *((layers.Conv2D, (7, 9), options) for options in CONV2D),
    *((layers.Conv1D, (11,), options) for options in CONV1D),
    *((layers.Conv3D, (4, 5, 6), options) for options in CONV3D),
]
# Of the channels: few are copied by a convolution, many by slices.
CHANNELS = (1, 4, 12)
WAYS = {"built": True, "gram": False}


def _shown(case):
    kind, _, options = case
    shown = "-".join(str(value) for value in options.values())
    return f"{kind.__name__}-{shown}"


def _layer(case, channels, dtype="float32"):
    kind, size, options = case
    groups = options.get("groups", 1)
    shape = (*size, -(-channels // groups) * groups)
    layer = kind(8, dtype=dtype, activation=None, **options)
    layer.build((None, *shape))
    generator = np.random.default_rng(5)
    inputs = tf.constant(generator.normal(size=(BATCH, *shape)), dtype)
    outputs = layer(inputs).shape
    cotangent = tf.constant(generator.normal(size=outputs), dtype)
    return layer, inputs, cotangent


def _is_known(case, dtype, **_):
    """Whether TensorFlow has the gradients on CPU, which the loop needs."""
    return dtype == "float32" or not {"groups", "dilation_rate"} & {*case[2]}


PAIRS = [
    pytest.param(*row.values(), id=f"{_shown(row['case'])}-{row['channels']}")
    for row in pairwise(
        {
            "case": CASES,
            "channels": CHANNELS,
            "way": [*WAYS],
            "dtype": ["float32", "float64"],
        },
        _is_known,
    )
]


@pytest.mark.full
@pytest.mark.parametrize(("case", "channels", "way", "dtype"), PAIRS)
def test_kernels_agree_with_the_loop(
    case, channels, way, dtype, monkeypatch
) -> None:
    monkeypatch.setattr(cost_model, "instantiates", lambda *_: WAYS[way])
    layer, inputs, cotangent = _layer(case, channels, dtype)

    assert_rule_agrees(layer, inputs, cotangent, "eager")


# Without XLA graphs take the ways that eager passes take.
@pytest.mark.full
@pytest.mark.parametrize("case", CASES[::3], ids=_shown)
def test_compiled_kernels_agree_with_the_loop(case) -> None:
    layer, inputs, cotangent = _layer(case, 4)

    assert_rule_agrees(layer, inputs, cotangent, "jit")


@pytest.mark.parametrize("kind", [layers.Conv1D, layers.Conv2D])
@pytest.mark.parametrize("last", [5, 8])
def test_channels_first_agree_with_a_transposed_layer(kind, last) -> None:
    """TensorFlow on CPU cannot run the layer itself."""
    rank = {layers.Conv1D: 1, layers.Conv2D: 2}[kind]
    size = (9,) * (rank - 1) + (last + 2,)
    generator = np.random.default_rng(1)
    make = {"kernel_size": 3, "padding": "valid", "use_bias": False}
    first = kind(8, data_format="channels_first", **make)
    first.build((None, 6, *size))
    last_one = kind(8, data_format="channels_last", **make)
    last_one.build((None, *size, 6))
    inputs = generator.normal(size=(BATCH, *size, 6)).astype("float32")
    outputs = last_one(inputs).shape
    cotangent = generator.normal(size=outputs).astype("float32")
    want = loop_of_layer(last_one, tf.constant(inputs), tf.constant(cotangent))

    assert_rule_agrees(
        first,
        tf.constant(np.moveaxis(inputs, -1, 1)),
        tf.constant(np.moveaxis(cotangent, -1, 1)),
        "eager",
        want,
    )


def test_a_row_of_taps_in_the_wrong_place_is_found(monkeypatch) -> None:
    """Control: the comparison above can fail."""
    right = convolution_taps.split_products

    def swapped(*arguments):
        return [
            block._replace(rows=tuple(row[::-1] for row in block.rows))
            for block in right(*arguments)
        ]

    monkeypatch.setattr(cost_model, "instantiates", lambda *_: True)
    monkeypatch.setattr(
        "keras_dp.gradients.rules.convolution.split_products", swapped
    )
    layer, inputs, cotangent = _layer(
        (layers.Conv2D, (7, 9), {"kernel_size": 3}), 12
    )

    with pytest.raises(AssertionError):
        assert_rule_agrees(layer, inputs, cotangent, "eager")
