"""Normalizations and PReLU, read from the graph, against single examples."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.engine import GradientEngine
from tests.pairwise import pairwise
from tests.slow_loop import (
    BATCH,
    assert_model_agrees,
    losses_of,
    model_of,
    normal,
)

GROUP = keras.layers.GroupNormalization
LAYER = keras.layers.LayerNormalization
RMS = keras.layers.RMSNormalization
PRELU = keras.layers.PReLU

# Layer class, its options, shape of an example.
CASES = [
    (GROUP, {"groups": 2}, (5, 4)),
    (GROUP, {"groups": 3}, (4, 3, 6)),
    (GROUP, {"groups": 1}, (3, 3, 4)),
    (GROUP, {"groups": -1}, (3, 3, 4)),
    (GROUP, {"groups": 2}, (6,)),
    (GROUP, {"groups": 2, "axis": 1}, (4, 3, 5)),
    (GROUP, {"groups": 3, "axis": 2}, (4, 6, 5)),
    (GROUP, {"groups": 3, "axis": -2}, (4, 6, 5)),
    (GROUP, {"groups": 2, "scale": False}, (5, 4)),
    (GROUP, {"groups": 2, "center": False}, (5, 4)),
    (GROUP, {"groups": 2, "epsilon": 0.5}, (2, 3, 2, 4)),
    (LAYER, {}, (5, 4)),
    (LAYER, {}, (6,)),
    (LAYER, {"axis": [1, 3]}, (3, 4, 5)),
    (LAYER, {"axis": 2, "scale": False}, (3, 4, 5)),
    (LAYER, {"axis": 1, "center": False}, (3, 4, 5)),
    (LAYER, {"axis": [-1, -2]}, (3, 4, 5)),
    (LAYER, {"axis": [1, 2, 3], "epsilon": 0.5}, (3, 2, 2)),
    (LAYER, {"rms_scaling": True}, (3, 4)),
    (LAYER, {"rms_scaling": True, "axis": [1, 3]}, (3, 4, 2)),
    (RMS, {}, (5, 4)),
    (RMS, {}, (6,)),
    (RMS, {"axis": [1, 2], "epsilon": 0.5}, (3, 4)),
    (RMS, {"axis": [2, 3]}, (2, 3, 4)),
    # Keras broadcasts the scale against the last axis all the same.
    (RMS, {"axis": 1}, (4, 4)),
    (RMS, {"axis": 1}, (1, 4)),
    (PRELU, {}, (3, 4)),
    (PRELU, {"shared_axes": [1]}, (3, 4)),
    (PRELU, {"shared_axes": [1, 2]}, (3, 2, 4)),
    (PRELU, {"shared_axes": [3]}, (3, 2, 4)),
    (PRELU, {"shared_axes": [1, 2, 3]}, (3, 2, 4)),
]


def _model(layer_class, options, shape, dtype="float32"):
    with warnings.catch_warnings():
        if options.get("rms_scaling"):
            warnings.simplefilter("ignore", UserWarning)  # It is deprecated.
        layer = layer_class(**options, dtype=dtype)
    return model_of(layer, shape, dtype=dtype)


def _name(case):
    layer_class, options, shape = case
    said = "-".join(f"{key}={value}" for key, value in options.items())
    return f"{layer_class.__name__}-{said}-{'x'.join(map(str, shape))}"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:You passed `rms_scaling=True`")
@pytest.mark.parametrize(
    ("case", "mode", "dtype"),
    [
        pytest.param(*row.values(), id=f"{_name(row['case'])}-{row['mode']}")
        for row in pairwise(
            {
                "case": CASES,
                "mode": ["graph", "jit"],
                "dtype": ["float32", "float64"],
            }
        )
    ],
)
def test_gradients_agree_with_the_loop(case, mode, dtype) -> None:
    model = _model(*case, dtype)

    engine = assert_model_agrees(
        model, [normal(*case[-1], dtype=dtype)], mode, dtype
    )

    assert {*engine.readings.values()} == {"from its graph"}
    assert engine.is_proven_apart


@pytest.mark.parametrize(
    "layer",
    [
        GROUP(2, axis=0),
        LAYER(axis=[0, 1]),
        LAYER(axis=-2),
        RMS(axis=0),
        RMS(axis=[0, 1]),
    ],
    ids=lambda layer: f"{type(layer).__name__}-{layer.axis}",
)
def test_normalizing_over_the_batch_is_refused(layer) -> None:
    inputs = keras.Input(batch_shape=(BATCH, 4))
    model = keras.Model(inputs, layer(inputs))

    with pytest.raises(UnsupportedLayerError, match="over the batch axis"):
        GradientEngine(model)


@pytest.mark.parametrize("case", [CASES[0], CASES[11], CASES[20], CASES[-1]])
def test_an_infinite_example_leaves_the_others_alone(case) -> None:
    model = _model(*case)
    data = normal(*case[-1])
    weights = tf.constant([0.0] + [1.0] * (BATCH - 1))

    @tf.function(autograph=False)
    def sums(data):
        found = GradientEngine(model).gradients([data], losses_of, BATCH)
        return [records.weighted_sum(weights) for records in found.records]

    want = sums(tf.constant(data))
    bad = np.concatenate([data[:1] * np.inf, data[1:]])
    got = sums(tf.constant(bad))

    for ours, own in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, own, atol=1e-6)
