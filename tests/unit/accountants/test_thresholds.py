"""Thresholded sums: the chance to pass, and what a ledger makes of it."""

import dataclasses
import itertools
import math

import hypothesis
import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import stats

from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    Exposure,
    Gaussian,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.thresholds import (
    Threshold,
    chance_to_pass,
    least_threshold,
)
from keras_dp.ledger import (
    CoordinateBounds,
    DisjointBatches,
    EncodedSum,
    FullDataset,
    GaussianSum,
    LaplaceNoise,
    PoissonSampling,
    Round,
    ThresholdedSum,
    UnverifiedSampling,
)
from tests.unit.accountants.sums import ROW

WORDS = ThresholdedSum("words", 1.0, 4.0, 10, 25.0)
CHANCE = chance_to_pass(1.0, 4.0, 10, 25.0)
sizes = st.floats(1e-3, 1e3)


def mechanisms(sampling, *queries, neighbours="zero_out", count=1):
    return dict(normalize([(Round(sampling, queries), count)], neighbours))


def exact_chance(bound, stddev, keys, threshold):
    with mpmath.workdps(60):
        weight = mpmath.mpf(bound) / mpmath.sqrt(keys)
        argument = (mpmath.mpf(threshold) - weight) / stddev
        tail = mpmath.erfc(argument / mpmath.sqrt(2)) / 2
        return -mpmath.expm1(keys * mpmath.log1p(-tail))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *itertools.product(
            ["l2_norm_bound", "noise_stddev", "threshold"],
            [0.0, -1.0, math.inf, math.nan],
        ),
        *itertools.product(["max_keys"], [0, -1, 2**63]),
    ],
)
def test_numbers_of_an_event_are_checked(field, value) -> None:
    with pytest.raises(ValueError, match=f"`{field}` must"):
        dataclasses.replace(WORDS, **{field: value})


class TestTheChance:
    @pytest.mark.parametrize("threshold", [1e-3, 0.9, 1.5, 5.0, 20.0, 38.0])
    @pytest.mark.parametrize("keys", [1, 7, 10**6])
    def test_is_the_definition_rounded_up(self, threshold, keys) -> None:
        """Up to 1e-11; below every float it is the least of them."""
        exact = max(exact_chance(1, 1, each, threshold) for each in (1, keys))

        found = chance_to_pass(1.0, 1.0, keys, threshold)

        assert found >= exact
        assert found <= exact * (1 + 1e-11) + math.ulp(0.0)

    @hypothesis.given(sizes, st.floats(1.0, 1e3), sizes, st.integers(1, 2000))
    def test_is_the_largest_of_all_numbers_of_keys(
        self, bound, stddev, threshold, most
    ) -> None:
        """The largest is at one end: the proof is in `thresholds`.

        Up to 1e-8: the argument of the tail is rounded, by 1e-15 of at most
        2e3, where the tail falls by at most 2e3 of itself.
        """
        found = chance_to_pass(bound, stddev, most, threshold)

        each = [
            chance_to_pass(bound, stddev, keys, threshold)
            for keys in range(1, most + 1, max(1, most // 50))
        ]
        one = [
            float(exact_chance(bound, stddev, keys, threshold))
            for keys in {1, most}
        ]
        assert found >= max(each)
        assert found <= max(one) * (1 + 1e-8) + math.ulp(0.0)

    @pytest.mark.parametrize("keys", [1, 40, 10**6, 10**15])
    @pytest.mark.parametrize("chance", [0.5, 1e-3, 1e-9, 1e-200])
    def test_gives_the_threshold(self, keys, chance) -> None:
        threshold = least_threshold(1.0, 3.0, keys, chance)

        assert chance_to_pass(1.0, 3.0, keys, threshold) <= chance
        assert chance_to_pass(1.0, 3.0, keys, threshold * (1 - 1e-9)) > chance


class TestNormalization:
    @pytest.mark.parametrize(
        ("sampling", "neighbours", "expected"),
        [
            (FullDataset(), "add_or_remove_one", {Gaussian(4.0), CHANCE}),
            (FullDataset(), "replace_one", {Gaussian(2.0), CHANCE}),
            (UnverifiedSampling(), "zero_out", {Gaussian(4.0), CHANCE}),
            (
                PoissonSampling(0.25),
                "zero_out",
                {SampledGaussian(4.0, 0.25), 0.25 * CHANCE},
            ),
            (
                PoissonSampling(0.25),
                "replace_one",
                {SampledGaussianReplaceOne(4.0, 0.25), 0.25 * CHANCE},
            ),
            (PoissonSampling(1.0), "zero_out", {Gaussian(4.0), CHANCE}),
        ],
    )
    def test_puts_slack_beside_the_mechanism(
        self, sampling, neighbours, expected
    ) -> None:
        found = mechanisms(sampling, WORDS, neighbours=neighbours, count=3)

        assert set(found.values()) == {3}
        slack = [each for each in found if isinstance(each, Exposure)]
        assert {each for each in expected if not isinstance(each, float)} == {
            *found
        } - {*slack}
        (least,) = [each for each in expected if isinstance(each, float)]
        assert least <= slack[0].chance <= least * (1 + 1e-13)

    def test_adds_what_thresholds_of_a_round_expose(self) -> None:
        more = ThresholdedSum("pairs", 1.0, 3.0, 10, 20.0)
        chances = CHANCE + chance_to_pass(1.0, 3.0, 10, 20.0)

        found = mechanisms(FullDataset(), WORDS, more)

        assert {Gaussian(2.4), *found} == {*found}
        (slack,) = [each for each in found if isinstance(each, Exposure)]
        assert chances < slack.chance <= chances * (1 + 1e-13)

    def test_joins_other_sums_of_the_round(self) -> None:
        sampling = PoissonSampling(0.5)
        bounds = CoordinateBounds.from_vectors([[0.5]])
        laplace = EncodedSum("e", bounds, LaplaceNoise(2.0))

        gaussian = mechanisms(sampling, WORDS, GaussianSum("g", 3.0, 4.0))
        assert SampledGaussian(1.26491106406, 0.5) in gaussian
        assert any(
            isinstance(each, AdditiveNoise)
            for each in mechanisms(sampling, WORDS, laplace)
        )
        for queries in ((laplace,), (GaussianSum("g", 1.0, 1.0),)):
            found = mechanisms(sampling, WORDS, *queries)
            (slack,) = [each for each in found if isinstance(each, Exposure)]
            assert slack.chance == pytest.approx(CHANCE / 2, rel=1e-14)

    def test_beside_correlated_noise_is_not_amplified(self) -> None:
        found = mechanisms(PoissonSampling(0.01), WORDS, ROW)

        assert Exposure(((threshold_of(WORDS),),)) in found

    def test_of_an_epoch_counts_once(self) -> None:
        """With the most that a round of it exposes."""
        epoch = DisjointBatches("epoch")
        looser = ThresholdedSum("words", 1.0, 5.0, 10, 25.0)
        rounds = [
            (Round(epoch, (WORDS,)), 3),
            (Round(epoch, (looser,)), 2),
            (Round(epoch, (GaussianSum("g", 1.0, 8.0),)), 5),
            (Round(DisjointBatches("other"), (WORDS,)), 3),
        ]

        found = dict(normalize(rounds, "zero_out"))

        both = Exposure(((threshold_of(WORDS),), (threshold_of(looser),)))
        one = Exposure(((threshold_of(WORDS),),))
        assert found == {Gaussian(4.0): 2, both: 1, one: 1}
        most = Exposure(((threshold_of(looser),),)).chance
        assert one.chance < both.chance == most


class TestGroups:
    """Of records that share keys with each other, and with nobody else."""

    @hypothesis.given(
        st.lists(st.lists(st.booleans(), min_size=5), min_size=2, max_size=4),
        st.floats(0.5, 9.0),
        st.floats(0.3, 3.0),
    )
    def test_of_any_records_is_bounded(self, held, threshold, noise) -> None:
        sums = np.zeros(max(map(len, held)))
        for keys in held:
            if sum(keys):
                sums[: len(keys)] += np.array(keys) / math.sqrt(sum(keys))
        most = max(1, *map(sum, held))
        stay = stats.norm(scale=noise).logcdf(threshold - sums[sums > 0])

        bound = chance_to_pass(1.0, noise, most, threshold, len(held))

        assert -math.expm1(stay.sum()) <= bound

    def test_can_be_in_other_rounds_of_an_epoch(self) -> None:
        looser = Threshold(1.0, 5.0, 10, 25.0)
        epoch = ((threshold_of(WORDS),), (looser,))

        group = Exposure(epoch, records=2)

        chances = [chance_to_pass(*each, 2) for (each,) in epoch]
        assert group.chance == pytest.approx(sum(chances))

    def test_are_sampled_if_one_of_them_is(self) -> None:
        alone = Exposure(((threshold_of(WORDS),),), records=3)

        sampled = dataclasses.replace(alone, sampling_probability=0.1)

        assert sampled.chance == pytest.approx(0.271 * alone.chance)


def threshold_of(query):
    return Threshold(
        query.l2_norm_bound, query.noise_stddev, query.max_keys, query.threshold
    )
