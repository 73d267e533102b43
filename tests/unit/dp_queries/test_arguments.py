"""Arguments that are refused, and where randomness comes from."""

import math

import pytest
import tensorflow as tf

import keras_dp
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    AdaptiveScaleQuery,
    DiscretizedSumQuery,
    ErrorCorrectedQuery,
    GaussianAverageQuery,
    GaussianSumQuery,
    JointClipQuery,
    KSDenoisedQuery,
    NestedQuery,
    NormalizedQuery,
    QuantileAdaptiveClipSumQuery,
    QuantileEstimatorQuery,
)
from keras_dp.dp_queries.discrete.encoded_sum_query import EncodedSumQuery
from keras_dp.dp_queries.discrete.preselected_vectors import PreselectedVectors
from keras_dp.ledger import CoordinateBounds
from keras_dp.ledger.events.noise_families import GaussianNoise, LaplaceNoise
from keras_dp.noise import seeds

SUM = GaussianSumQuery(1.0, 1.0)
VALID = {
    GaussianSumQuery: {"l2_norm_clip": 1.0, "stddev": 1.0},
    GaussianAverageQuery: {
        "l2_norm_clip": 1.0,
        "sum_stddev": 1.0,
        "denominator": 1.0,
    },
    JointClipQuery: {
        "scales": [1.0, 2.0],
        "l2_norm_clip": 1.0,
        "sum_stddev": 1.0,
        "denominator": 1.0,
    },
    DiscretizedSumQuery: {
        "threshold": 0.5,
        "l2_norm_clip": 1.0,
        "stddev": 1.0,
    },
    EncodedSumQuery: {
        "vectors": CoordinateBounds.from_vectors([[1.0, 1.0]]),
        "noise": LaplaceNoise(1.0),
    },
    PreselectedVectors: {
        "distribution": GaussianNoise(1.0),
        "count": 1,
        "size": 2,
        "l2_norm": 1.0,
    },
    AdaptiveClipSumQuery: {
        "initial_l2_norm_clip": 2.0,
        "noise_multiplier": 0.0,
        "norm_noise_multiplier": 0.0,
        "expected_num_records": 2,
    },
    QuantileAdaptiveClipSumQuery: {
        "initial_l2_norm_clip": 1.0,
        "noise_multiplier": 0.0,
        "target_unclipped_quantile": 0.5,
        "learning_rate": 0.2,
        "clipped_count_stddev": 0.0,
        "expected_num_records": 2.0,
    },
    QuantileEstimatorQuery: {
        "initial_estimate": 1.0,
        "target_quantile": 0.5,
        "learning_rate": 0.2,
        "below_estimate_stddev": 0.0,
        "expected_num_records": 2.0,
        "geometric_update": False,
    },
    AdaptiveScaleQuery: {
        "query": SUM,
        "record_specs": [tf.TensorSpec([4, 3])],
    },
    NormalizedQuery: {"numerator_query": SUM, "denominator": 2.0},
    ErrorCorrectedQuery: {"query": SUM, "threshold": 1.0},
    KSDenoisedQuery: {"query": SUM},
}
NO_SIZE = [-1.0, math.nan, math.inf, -math.inf]
NO_NUMBER = ["1", True, [1.0]]
WRONG = [*NO_SIZE, *NO_NUMBER]
GAUSSIAN_SUMS = {
    "gamma": [0.0, math.inf, 1e-13, 1e7],
    "l2_norm_clip": WRONG,
    "rescale": [1],
    "precision": ["exact"],
}
AVERAGES = {
    **GAUSSIAN_SUMS,
    "sum_stddev": WRONG,
    "denominator": [0, 0.0, *WRONG],
}
REFUSED = {
    GaussianSumQuery: {**GAUSSIAN_SUMS, "stddev": WRONG},
    GaussianAverageQuery: AVERAGES,
    JointClipQuery: {
        **AVERAGES,
        "scales": [[0.0, 1.0], [math.nan, 1.0], [1e-31, 1.0]],
    },
    DiscretizedSumQuery: {
        "threshold": [-0.1, math.nan, math.inf],
        "l2_norm_clip": [-1.0],
        "stddev": [1e-40],
        "chunk_bytes": [0, 2.5],
    },
    EncodedSumQuery: {
        "vectors": [
            [[1.0, 1.0]],
            CoordinateBounds.from_arrays([[1, 2]], [1, 1]),
        ],
        "noise": [1.0, LaplaceNoise(1e-40)],
        "chunk_bytes": [0],
    },
    PreselectedVectors: {
        "distribution": ["gaussian", (), (GaussianNoise(1.0), 3)],
        "count": [0, 1.5],
        "size": [0],
        "levels": [0],
        "seed": [-1],
        "l2_norm": [0.0, math.inf],
        "floor": [-1.0, math.nan],
    },
    AdaptiveClipSumQuery: {
        "initial_l2_norm_clip": [0.0, 1e21, "1"],
        "noise_multiplier": [-1],
        "norm_noise_multiplier": [1e11],
        "expected_num_records": [0],
    },
    QuantileAdaptiveClipSumQuery: {
        "initial_l2_norm_clip": [-1.0, 0.0, 1e-21, math.nan],
        "noise_multiplier": [-1.0, 1e-11, math.inf, "1"],
        "target_unclipped_quantile": [1.1, -0.1],
        "learning_rate": [-0.1],
        "clipped_count_stddev": [-0.1],
        "expected_num_records": [0.0],
        "geometric_update": [1],
    },
    QuantileEstimatorQuery: {
        "initial_estimate": [math.nan, "1"],
        "target_quantile": [1.5],
        "learning_rate": [math.inf],
        "below_estimate_stddev": [-1.0],
        "expected_num_records": [0],
        "geometric_update": [None],
    },
    AdaptiveScaleQuery: {
        "power": [0.0, 1.5, math.nan],
        "decay": [1.0, -0.1],
        "floor": [-1.0, math.inf],
        "first_rounds": [0],
        "scale_range": [0.5, 1e4],
    },
    NormalizedQuery: {
        "numerator_query": [None, GaussianSumQuery, [1.0]],
        "denominator": [0.0, *NO_SIZE],
    },
    ErrorCorrectedQuery: {"query": [3], "threshold": [0.0, -1.0]},
    KSDenoisedQuery: {"query": [None, 1.0, GaussianSumQuery]},
}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (kind, name, value)
        for kind, refused in REFUSED.items()
        for name, values in refused.items()
        for value in values
    ],
    ids=str,
)
def test_an_argument_is_refused_by_its_name(kind, name, value):
    with pytest.raises((TypeError, ValueError), match=f"`{name}` must"):
        kind(**(VALID[kind] | {name: value}))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gamma", {"gamma": 1e-12, "l2_norm_clip": 1e10}),
        ("l2_norm_clip", {"rescale": True, "l2_norm_clip": 0.0}),
        ("l2_norm_clip", {"rescale": True, "l2_norm_clip": 1e21}),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "kind", [GaussianSumQuery, GaussianAverageQuery, JointClipQuery]
)
def test_clips_that_do_not_fit_are_refused(kind, name, changes):
    others = {
        key: value
        for key, value in VALID[kind].items()
        if key not in {"stddev", "sum_stddev"}
    }

    with pytest.raises(ValueError, match=f"`{name}` must"):
        kind(**(others | changes), noise_multiplier=1.0)


@pytest.mark.parametrize("initial", [0.0, -1.0])
def test_geometric_estimates_are_positive(initial):
    changes = {"initial_estimate": initial, "geometric_update": True}

    with pytest.raises(ValueError, match="`initial_estimate` must"):
        QuantileEstimatorQuery(**(VALID[QuantileEstimatorQuery] | changes))


def test_valid_arguments_are_taken():
    """Control."""
    for kind, arguments in VALID.items():
        kind(**arguments)


@pytest.mark.parametrize(
    "make_query",
    [
        lambda z: GaussianSumQuery(3.0, noise_multiplier=z),
        lambda z: GaussianAverageQuery(3.0, noise_multiplier=z, denominator=9),
        lambda z: JointClipQuery([1.0], 3.0, noise_multiplier=z, denominator=9),
        lambda z: QuantileAdaptiveClipSumQuery(3.0, z, 0.5, 0.2, 1.0, 9.0),
        lambda z: DiscretizedSumQuery(0.1, 3.0, noise_multiplier=z),
    ],
)
def test_noise_that_is_too_small_for_the_grid_is_refused(make_query):
    """Sums of a few records would be cut off."""
    make_query(1e-6)
    make_query(0.0)
    with pytest.raises(ValueError, match="`noise_multiplier` must be 0 or at"):
        make_query(9e-7).initial_global_state()


def test_noise_is_large_enough_for_the_number_of_records():
    with pytest.raises(ValueError, match="`noise_multiplier` must be 0 or at"):
        GaussianAverageQuery(1.0, noise_multiplier=1e-6, denominator=512)


def test_noise_that_float32_would_round_away_is_refused():
    with pytest.raises(ValueError, match="`stddev` must"):
        GaussianSumQuery(1e-36, 1e-36)
    with pytest.raises(ValueError, match="`sum_stddev` must"):
        GaussianAverageQuery(1e-36, 1e-36, 1)


@pytest.mark.parametrize("seed", [-1, 0.5, "1"])
@pytest.mark.parametrize(
    "query", [GaussianSumQuery(1, 1), NestedQuery([GaussianSumQuery(1, 1)])]
)
def test_seeds_are_integers(query, seed):
    with pytest.raises((ValueError, TypeError), match=r"^`seed` must be an in"):
        query.initial_global_state(seed)


# Sources of randomness.


def test_children_of_seeds_differ_and_stay_in_range():
    children = seeds.children(0, 1000)

    assert len({*children, *seeds.children(1, 1000)}) == 2000
    assert all(0 <= child < 2**63 for child in children)
    assert seeds.children(None, 2) == [None, None]


GAUSSIAN = {
    "GaussianSumQuery": ({}, "stddev"),
    "GaussianAverageQuery": ({"denominator": 64}, "sum_stddev"),
    "DiscretizedSumQuery": ({"threshold": 0.1}, "stddev"),
    "JointClipQuery": (
        {"scales": {"a": 1.0, "b": 2.0}, "denominator": 64},
        "sum_stddev",
    ),
}


@pytest.mark.parametrize("name", GAUSSIAN)
class TestNoiseOverTheClip:
    def test_is_the_same_as_the_stddev(self, name) -> None:
        others, stddev = GAUSSIAN[name]
        query = getattr(keras_dp.dp_queries, name)

        by_ratio = query(l2_norm_clip=3.0, noise_multiplier=1.5, **others)

        assert by_ratio == query(l2_norm_clip=3.0, **{stddev: 4.5}, **others)
        assert by_ratio.noise_multiplier == 1.5
        assert type(by_ratio).from_config(by_ratio.get_config()) == by_ratio

    @pytest.mark.parametrize("given", ["both", "neither"])
    def test_goes_without_the_stddev(self, name, given) -> None:
        others, stddev = GAUSSIAN[name]
        noise = {stddev: 4.5, "noise_multiplier": 1.5}

        with pytest.raises(TypeError, match=f"`{stddev}` or `noise_multiplier"):
            getattr(keras_dp.dp_queries, name)(
                l2_norm_clip=3.0, **(noise if given == "both" else {}), **others
            )
