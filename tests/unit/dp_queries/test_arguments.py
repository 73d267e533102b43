"""Arguments that are refused, and where randomness comes from."""

import numpy as np
import pytest

import keras_dp
from keras_dp.dp_queries import (
    GaussianAverageQuery,
    GaussianSumQuery,
    NestedQuery,
)
from keras_dp.noise import seeds

# Arguments.

NOT_NEGATIVE = [-1.0, float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("value", NOT_NEGATIVE)
@pytest.mark.parametrize(
    ("query", "name"),
    [
        (GaussianSumQuery, "l2_norm_clip"),
        (GaussianSumQuery, "stddev"),
        (GaussianAverageQuery, "l2_norm_clip"),
        (GaussianAverageQuery, "sum_stddev"),
    ],
)
def test_clips_and_noise_are_finite_and_not_negative(query, name, value):
    with pytest.raises(
        ValueError,
        match=rf"^`{name}` must be finite and >= 0\. Received: {name}=-?\w+",
    ):
        make(query, **{name: value})


@pytest.mark.parametrize("value", [*NOT_NEGATIVE, 0, 0.0])
def test_denominators_are_positive(value):
    with pytest.raises(ValueError, match="`denominator` must"):
        make(GaussianAverageQuery, denominator=value)


@pytest.mark.parametrize("value", ["1", True, [1.0]])
@pytest.mark.parametrize("name", ["l2_norm_clip", "sum_stddev", "denominator"])
def test_arguments_are_numbers(name, value):
    with pytest.raises(TypeError, match=rf"^`{name}` must be a number\. Rec"):
        make(GaussianAverageQuery, **{name: value})


@pytest.mark.parametrize(
    "make_query",
    [
        lambda z: GaussianSumQuery(3.0, noise_multiplier=z),
        lambda z: GaussianAverageQuery(3.0, noise_multiplier=z, denominator=9),
        lambda z: keras_dp.dp_queries.JointClipQuery(
            [1.0], 3.0, noise_multiplier=z, denominator=9
        ),
        lambda z: keras_dp.dp_queries.QuantileAdaptiveClipSumQuery(
            3.0, z, 0.5, 0.2, 1.0, 9.0
        ),
        lambda z: keras_dp.dp_queries.DiscretizedSumQuery(
            0.1, 3.0, noise_multiplier=z
        ),
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


def make(query, **changed):
    arguments = {"l2_norm_clip": 1.0}
    if query is GaussianAverageQuery:
        arguments |= {"sum_stddev": 1.0, "denominator": 1.0}
    else:
        arguments |= {"stddev": 1.0}
    return query(**{**arguments, **changed})


def test_numbers_are_stored_as_floats():
    """So that equal queries print, hash and are saved alike."""
    query = GaussianAverageQuery(np.float32(1.5), np.int64(2), 3)

    assert query == GaussianAverageQuery(1.5, 2.0, 3.0)
    assert repr(query) == repr(GaussianAverageQuery(1.5, 2.0, 3.0))
    clip, stddev, denominator, *_ = query.get_config().values()
    assert [type(v) for v in (clip, stddev, denominator)] == [float] * 3


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


def test_a_denominator_must_be_given() -> None:
    with pytest.raises(TypeError, match="`denominator` must"):
        keras_dp.GaussianAverageQuery(1.0, noise_multiplier=1.0)
