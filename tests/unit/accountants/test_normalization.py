"""From rounds to mechanisms: noise, relation, sampling and count."""

import dataclasses

import numpy as np
import pytest

from keras_dp.accountants.normalize.mechanisms import (
    FixedSizeGaussian,
    Gaussian,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    SamplingEvent,
    SumQueryEvent,
    UnverifiedSampling,
)

RELATIONS = ("add_or_remove_one", "replace_one", "zero_out")


def one(sampling: SamplingEvent, *tuples: tuple[float, float]) -> Round:
    """A round with a Gaussian sum for each (bound, stddev)."""
    queries = (GaussianSum(f"{i}", *pair) for i, pair in enumerate(tuples))
    return Round(sampling, tuple(queries))


class TestNoiseMultiplier:
    def test_sums_of_a_round_are_one_sum(self) -> None:
        """z = ((3/10)^2 + (4/10)^2)^(-1/2) = 2, by hand."""
        event = one(PoissonSampling(0.1), (3.0, 10.0), (4.0, 10.0))

        assert normalize([(event, 5)]) == ((SampledGaussian(2.0, 0.1), 5),)

    def test_sums_that_release_nothing_are_free(self) -> None:
        bare_zero = one(FullDataset(), (0.0, 0.0))
        beside = one(FullDataset(), (0.0, 0.0), (1.0, 2.0))

        assert normalize([(bare_zero, 1)]) == ()
        assert normalize([(beside, 1)]) == ((Gaussian(2.0), 1),)

    @pytest.mark.parametrize(
        "query", [GaussianSum("bare", 1.0, 0.0), NonPrivateSum("bare")]
    )
    def test_a_bare_sum_has_no_noise(self, query) -> None:
        event = Round(FullDataset(), (GaussianSum("sum", 1.0, 5.0), query))

        assert normalize([(event, 1)]) == ((Gaussian(0.0), 1),)

    @pytest.mark.parametrize(
        ("bound", "stddev", "expected"),
        [(1e-300, 1e300, 1e100), (1e300, 1e-300, 0.0), (1e-5, 1e300, 1e100)],
    )
    def test_extreme_ratios_round_towards_less_noise(
        self, bound, stddev, expected
    ) -> None:
        """Neither free by underflow, nor an overflow."""
        rounds = normalize([(one(FullDataset(), (bound, stddev)), 1)])

        assert rounds[0].mechanism.noise_multiplier == expected


class TestMerging:
    def test_equal_rounds_are_counted_wherever_they_are(self) -> None:
        a, b = one(FullDataset(), (1, 2)), one(FullDataset(), (1, 3))

        found = normalize([(a, 2), (b, 1), (a, 5)])
        assert found == ((Gaussian(2.0), 7), (Gaussian(3.0), 1))

    def test_rounds_that_differ_in_the_last_bit_merge(self) -> None:
        """As adaptive clipping makes them: bound and noise move together."""
        clips = np.linspace(0.5, 2.0, 200)
        ledger = [
            (one(PoissonSampling(0.1), (clip, clip * 1.1)), 1) for clip in clips
        ]
        ratios = {clip / (clip * 1.1) for clip in clips}

        (merged,) = normalize(ledger)

        assert len(ratios) > 1
        assert merged.rounds == 200
        assert merged.mechanism.noise_multiplier <= 1.1

    def test_who_drew_the_sample_does_not_matter(self) -> None:
        ledger = [
            (one(PoissonSampling(0.1, drawn_by_library=drawn), (1, 2)), 1)
            for drawn in (True, False)
        ]

        assert normalize(ledger) == ((SampledGaussian(2.0, 0.1), 2),)

    def test_counts_beyond_64_bits_add_up(self) -> None:
        event = one(FullDataset(), (1, 2))

        assert normalize([(event, 2**62)] * 4)[0].rounds == 2**64


class TestSampling:
    @pytest.mark.parametrize("sampling", [FullDataset(), UnverifiedSampling()])
    def test_without_a_known_draw_nothing_amplifies(self, sampling) -> None:
        ledger = [(one(sampling, (1.0, 3.0)), 4)]

        assert normalize(ledger, "zero_out") == ((Gaussian(3.0), 4),)
        assert normalize(ledger, "replace_one") == ((Gaussian(1.5), 4),)

    def test_poisson(self) -> None:
        ledger = [(one(PoissonSampling(0.25), (1.0, 3.0)), 4)]

        poisson = ((SampledGaussian(3.0, 0.25), 4),)
        assert normalize(ledger) == poisson
        assert normalize(ledger, "zero_out") == poisson
        assert normalize(ledger, "replace_one") == (
            (SampledGaussianReplaceOne(3.0, 0.25), 4),
        )

    def test_poisson_of_everything_is_the_full_data(self) -> None:
        ledger = [(one(PoissonSampling(1.0), (1.0, 3.0)), 4)]
        full = [(one(FullDataset(), (1.0, 3.0)), 4)]

        for neighbours in RELATIONS:
            assert normalize(ledger, neighbours) == normalize(full, neighbours)

    def test_fixed_size_doubles_the_distance(self) -> None:
        event = one(FixedSizeWithoutReplacement(5, 20), (1.0, 3.0))

        assert normalize([(event, 2)], "replace_one") == (
            (FixedSizeGaussian(1.5, 0.25), 2),
        )

    def test_fixed_size_of_everything_is_the_full_data(self) -> None:
        event = one(FixedSizeWithoutReplacement(20, 20), (1.0, 3.0))

        assert normalize([(event, 2)], "replace_one") == ((Gaussian(1.5), 2),)


class TestDisjointBatches:
    def test_an_epoch_costs_its_most_expensive_batch(self) -> None:
        """Once, however often and wherever its rounds are written."""
        cheap = one(DisjointBatches("a"), (1.0, 3.0))
        dear = one(DisjointBatches("a"), (1.0, 1.0), (1.0, 1.0))
        other = one(FullDataset(), (1.0, 9.0))
        ledger = [(cheap, 100), (other, 1), (dear, 50), (cheap, 100)]

        assert normalize(ledger, "zero_out") == (
            (Gaussian(float("0.707106781186")), 1),
            (Gaussian(9.0), 1),
        )

    def test_epochs_compose(self) -> None:
        ledger = [
            (one(DisjointBatches(epoch), (1.0, 3.0)), 100) for epoch in "abc"
        ]

        assert normalize(ledger, "zero_out") == ((Gaussian(3.0), 3),)
        assert normalize(ledger, "replace_one") == ((Gaussian(1.5), 3),)

    def test_a_free_epoch_is_free(self) -> None:
        ledger = [(one(DisjointBatches("a"), (0.0, 3.0)), 100)]

        assert normalize(ledger, "zero_out") == ()

    def test_one_bare_batch_makes_the_epoch_bare(self) -> None:
        ledger = [
            (one(DisjointBatches("a"), (1.0, 3.0)), 9),
            (Round(DisjointBatches("a"), (NonPrivateSum("x"),)), 1),
        ]

        assert normalize(ledger, "zero_out") == ((Gaussian(0.0), 1),)


class TestFailsClosed:
    def test_an_unknown_query_raises(self) -> None:
        @dataclasses.dataclass(frozen=True)
        class Histogram(SumQueryEvent):
            name: str = "histogram"

        ledger = [(Round(FullDataset(), (Histogram(),)), 1)]

        with pytest.raises(UnsupportedEventError, match="Histogram"):
            normalize(ledger)

    def test_an_unknown_sampling_raises_even_if_free(self) -> None:
        @dataclasses.dataclass(frozen=True)
        class Stratified(SamplingEvent):
            pass

        ledger = [(one(Stratified(), (0.0, 1.0)), 1)]

        with pytest.raises(UnsupportedEventError, match="Stratified"):
            normalize(ledger)

    @pytest.mark.parametrize(
        "ledger", [3, [3], [()], [(1, 2)], [one(FullDataset(), (1, 2))]]
    )
    def test_what_is_no_ledger_raises(self, ledger) -> None:
        with pytest.raises(TypeError, match="`ledger`"):
            normalize(ledger)

    def test_the_path_of_a_ledger_is_to_be_opened(self) -> None:
        with pytest.raises(TypeError, match=r"a.ledger.* PrivacyLedger"):
            normalize("a.ledger")

    @pytest.mark.parametrize(
        ("count", "kind"),
        [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("1", TypeError)],
    )
    def test_an_impossible_count_raises(self, count, kind) -> None:
        with pytest.raises(kind, match="`count`"):
            normalize([(one(FullDataset(), (1, 2)), count)])


def test_the_first_bad_round_is_found_after_good_ones() -> None:
    good = one(FullDataset(), (1, 2))
    bad = one(FixedSizeWithoutReplacement(1, 2), (1, 2))

    with pytest.raises(UnsupportedEventError):
        normalize([(good, 10), (bad, 1)], "zero_out")
