"""Rules of normalizations and PReLU against a loop over single examples."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.records.records import MaterializedRecords
from keras_dp.gradients.rules import group_normalization as group_rule
from keras_dp.gradients.rules import layer_normalization as layer_rule
from keras_dp.gradients.rules import prelu, rms_normalization
from tests.pairwise import pairwise
from tests.slow_loop import (
    BATCH,
    assert_rule_agrees,
    call_of,
    loop_of_layer,
    rule_of,
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


def _layer(layer_class, options, shape, dtype="float32"):
    """A built layer with weights that are neither 0 nor 1."""
    with warnings.catch_warnings():
        if options.get("rms_scaling"):
            warnings.simplefilter("ignore", UserWarning)  # It is deprecated.
        layer = layer_class(**options, dtype=dtype)
    layer.build((None, *shape))
    rng = np.random.default_rng(4)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return layer


def _data(shape, dtype="float32", offset=0.0):
    rng = np.random.default_rng(len(shape))
    inputs = offset + rng.normal(size=(BATCH, *shape))
    return tf.constant(inputs, dtype), tf.constant(
        rng.normal(size=(BATCH, *shape)), dtype
    )


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
                "mode": ["eager", "jit"],
                "dtype": ["float32", "float64"],
            }
        )
    ],
)
def test_gradients_agree_with_the_loop(case, mode, dtype) -> None:
    layer = _layer(*case, dtype)

    assert_rule_agrees(layer, *_data(case[-1], dtype), mode)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize(
    "case",
    [
        (GROUP, {"groups": 8}, (16, 16, 32)),
        (GROUP, {"groups": 4}, (8, 8, 16)),
        (LAYER, {}, (64, 32)),
        (RMS, {}, (64, 32)),
    ],
    ids=_name,
)
def test_a_mean_of_100_standard_deviations_costs_no_accuracy(
    case, mode
) -> None:
    """In float32 the layers' own gradients are off by 1e-4 there.

    The reference is the loop in float64. XLA adds up in order, so that its
    mean is off by some ulp of 100, in the layer as in the rule.
    """
    single, double = _layer(*case), _layer(*case, "float64")
    inputs, cotangent = _data(case[-1], offset=100.0)
    want = loop_of_layer(
        double, *(tf.cast(t, "float64") for t in (inputs, cotangent))
    )

    assert_rule_agrees(single, inputs, cotangent, mode, want)


def test_large_means_are_found_if_gradients_are_not_centred() -> None:
    """Control: the sums of the layer's own backward pass miss the bound."""
    case = (GROUP, {"groups": 8}, (16, 16, 32))
    single, double = _layer(*case), _layer(*case, "float64")
    inputs, cotangent = _data(case[-1], offset=100.0)
    want = loop_of_layer(
        double, *(tf.cast(t, "float64") for t in (inputs, cotangent))
    )
    got = loop_of_layer(single, inputs, cotangent)
    norm = np.sqrt(sum(np.sum(g[0] ** 2) for g in want))

    assert np.linalg.norm(got[0][0] - want[0][0]) > 1e-5 * norm


@pytest.mark.parametrize(
    ("module", "case"),
    [
        (group_rule, (GROUP, {"groups": 2}, (5, 4))),
        (layer_rule, (LAYER, {}, (5, 4))),
    ],
    ids=["group", "layer"],
)
def test_the_loop_finds_a_rule_without_the_mean(module, case) -> None:
    """Control: what is not centred is found."""
    moments = tf.nn.moments

    def without_mean(*args, **kwargs):
        mean, variance = moments(*args, **kwargs)
        return tf.zeros_like(mean), variance

    layer = _layer(*case)
    data = _data(case[-1], offset=1.0)
    want = loop_of_layer(layer, *data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.tf.nn, "moments", without_mean)
        with pytest.raises(AssertionError):
            assert_rule_agrees(layer, *data, "eager", want)


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
    layer.build((BATCH, 4))
    inputs, cotangent = _data((4,))

    with pytest.raises(UnsupportedLayerError, match="over the batch axis"):
        rule_of(layer)(call_of(layer, inputs, cotangent))


@pytest.mark.parametrize("case", [CASES[0], CASES[11], CASES[20], CASES[-1]])
def test_an_infinite_example_leaves_the_others_alone(case) -> None:
    layer = _layer(*case)
    inputs, cotangent = _data(case[-1])
    want = loop_of_layer(layer, inputs, cotangent)
    bad = tf.concat([inputs[:1] * np.inf, inputs[1:]], axis=0)
    weights = tf.constant([0.0] + [1.0] * (BATCH - 1))

    pairs = rule_of(layer)(call_of(layer, bad, cotangent))

    for (_, records), gradient in zip(pairs, want, strict=True):
        np.testing.assert_allclose(
            records.weighted_sum(weights), gradient[1:].sum(0), atol=1e-4
        )


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("case", [CASES[1], CASES[11], CASES[20], CASES[-2]])
def test_half_precision_is_computed_in_float32(case, policy) -> None:
    """The reference is float64 on the same rounded inputs."""
    half, double = _layer(*case, policy), _layer(*case, "float64")
    inputs, cotangent = _data(case[-1], half.compute_dtype)
    want = loop_of_layer(
        double, *(tf.cast(t, "float64") for t in (inputs, cotangent))
    )

    pairs = rule_of(half)(call_of(half, inputs, cotangent))

    for (_, records), gradient in zip(pairs, want, strict=True):
        got = records.materialize()
        assert got.dtype == tf.float32
        assert np.linalg.norm(got - gradient) <= 1e-5 * np.linalg.norm(gradient)


def test_the_layers_have_these_rules() -> None:
    """A rule that silently stopped to apply would only be slow."""
    rules = {
        GROUP: group_rule.group_normalization,
        LAYER: layer_rule.layer_normalization,
        RMS: rms_normalization.rms_normalization,
        PRELU: prelu.prelu,
    }

    for layer_class, options, shape in CASES:
        layer = _layer(layer_class, options, shape)
        assert rule_of(layer) is rules[layer_class]
        pairs = rule_of(layer)(call_of(layer, *_data(shape)))
        assert all(isinstance(r, MaterializedRecords) for _, r in pairs)


@pytest.mark.parametrize("axis", [-1, 1, [1, 2]])
def test_unit_normalization_has_no_weights(axis) -> None:
    layer = keras.layers.UnitNormalization(axis)
    layer.build((None, 3, 4))

    assert layer.variables == []
