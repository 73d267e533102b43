"""Mechanisms with correlated noise: what is amplified, and what is not."""

import dataclasses
import math
from collections import Counter

import pytest

from keras_dp.accountants import RDP, Fourier, strategy_sensitivity
from keras_dp.accountants.coverage import spans_of
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    Gaussian,
    SampledGaussian,
    SampledGaussianReplaceOne,
    Slack,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.truncation import truncation_exposure
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    BandedToeplitz,
    CorrelatedSum,
    CyclicPoissonSampling,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from tests.unit.accountants.sums import LAPLACE, over

STRATEGY = BandedToeplitz((1.0, 0.5, 0.25))
NORM = math.sqrt(1 + 0.25 + 0.0625)
EVENT = CorrelatedSum("sum", 1.0, 2.0, STRATEGY, 10, "one")


def cycle(number, count=4, *queries, draw="draw", probability=0.25):
    sampling = CyclicPoissonSampling(f"{draw}-{number}", 4, probability)
    return over(sampling, *(queries or (EVENT,)), count=count)


def in_five_cycles(probability, classes=20):
    """Returns independent noise, in the form of a mechanism."""
    independent = BandedToeplitz((1.0,))
    event = CorrelatedSum("sum", 1.0, 1.0, independent, 5 * classes, "one")
    return [
        over(
            CyclicPoissonSampling(f"draw-{number}", classes, probability),
            event,
            count=classes,
        )
        for number in range(5)
    ]


WHOLE = [cycle(0), cycle(1), cycle(2, 2)]


def priced(rounds, neighbours=None):
    """Returns the mechanisms of the upper bound, and their counts."""
    counts = Counter()
    for mechanism, count in normalize(rounds, neighbours):
        names = {"most_noise"} & {*mechanism.__dataclass_fields__}
        reached = dict.fromkeys(names)
        counts[dataclasses.replace(mechanism, **reached)] += count
    return counts


def only(rounds, neighbours=None):
    ((mechanism, count),) = priced(rounds, neighbours).items()
    return mechanism, count


class TestCyclicSamples:
    def test_are_a_poisson_round_a_cycle(self) -> None:
        mechanism, count = only(WHOLE)

        assert count == 3
        assert mechanism.sampling_probability == 0.25
        assert isinstance(mechanism, SampledGaussian)
        assert mechanism.noise_multiplier == pytest.approx(2 / NORM)

    def test_have_a_price_for_every_relation(self) -> None:
        assert isinstance(
            only(WHOLE, "replace_one")[0], SampledGaussianReplaceOne
        )
        assert only(WHOLE, "zero_out") == only(WHOLE, "add_or_remove_one")

    @pytest.mark.parametrize("ran", [1, 2])
    def test_cost_the_whole_after_a_part(self, ran) -> None:
        assert priced(WHOLE[:ran]) == priced(WHOLE)
        assert priced([cycle(0, 1)]) == priced(WHOLE)

    def test_do_not_care_for_the_order_of_a_ledger(self) -> None:
        assert normalize(WHOLE[::-1]) == normalize(WHOLE)

    def test_begin_with_any_cycle(self) -> None:
        assert priced([cycle(7), cycle(8)]) == priced(WHOLE)

    @pytest.mark.parametrize(
        "rounds",
        [
            [cycle(0), cycle(1, 3), cycle(2, 2)],  # A round is missing.
            [cycle(0), cycle(2)],  # A cycle is missing.
            [cycle(0), cycle(0, 1, draw="other")],  # Classes are drawn anew.
            [cycle(0), over(FullDataset(), EVENT)],
            [cycle(0, 4), cycle(0, 1, GaussianSum("other", 0.0, 1.0))],
            # The last cycle may begin with the other sum.
            [
                cycle(0),
                cycle(1, 2),
                cycle(1, 1, GaussianSum("other", 0.0, 1.0)),
            ],
        ],
    )
    def test_out_of_step_are_not_amplified(self, rounds) -> None:
        mechanisms = [each for each, _ in normalize(rounds)]

        assert all(isinstance(each, Gaussian) for each in mechanisms)
        least = min(each.noise_multiplier for each in mechanisms)
        every = strategy_sensitivity(STRATEGY, 10).upper
        assert least == pytest.approx(2 / every)

    def test_with_more_bands_than_classes_are_not_amplified(self) -> None:
        event = dataclasses.replace(
            EVENT, strategy=BandedToeplitz((1.0, 0.5, 0.4, 0.3, 0.2))
        )

        mechanism, count = only([cycle(0, 4, event), cycle(1, 2, event)])

        expected = strategy_sensitivity(event.strategy, 10, 4).upper
        assert (type(mechanism), count) == (Gaussian, 1)
        assert mechanism.noise_multiplier == pytest.approx(2 / expected)

    @pytest.mark.parametrize("probability", [0.5, 0.9, 0.999])
    @pytest.mark.parametrize("accountant", [Fourier(), RDP()], ids=repr)
    def test_cost_no_more_than_sure_ones(self, accountant, probability) -> None:
        sure, less = (
            accountant.epsilon(in_five_cycles(each), delta=1e-5)
            for each in (1.0, probability)
        )

        assert 0 < less <= sure

    def test_are_amplified_if_nobody_takes_part_twice(self) -> None:
        event = dataclasses.replace(
            EVENT, strategy=BandedToeplitz((1.0, *[0.5] * 9)), rounds=4
        )

        mechanism, count = only([cycle(0, 4, event)])

        assert (type(mechanism), count) == (SampledGaussian, 1)

    def test_add_the_squares_of_other_sums(self) -> None:
        found = normalize([cycle(0, 4, EVENT, GaussianSum("other", 1.0, 1.0))])

        # The cycles to come hold rounds of the mechanism alone.
        (both, of_both), (alone, of_alone) = found
        assert (of_both, of_alone) == (1, 2)
        expected = 1 / math.hypot(NORM / 2, 1)
        assert both.noise_multiplier == pytest.approx(expected)
        assert alone.noise_multiplier == pytest.approx(2 / NORM)

    def test_of_one_round_release_as_poisson_samples_do(self) -> None:
        """Without a mechanism, a record takes part once a cycle."""
        plain = GaussianSum("plain", 1.0, 2.0)
        rounds = [cycle(0, 4, plain), cycle(1, 1, plain), cycle(2, 9, plain)]

        mechanism, count = only(rounds)
        expected, of_expected = only(
            [over(PoissonSampling(0.25), plain, count=1 + 1 + 3)]
        )
        assert count == of_expected
        assert repr(mechanism) == repr(expected)

    def test_of_a_group_are_in_different_rounds(self) -> None:
        """So a group has the textbook bound, and no pair of its own."""
        accountant = Fourier()

        one = accountant.group(WHOLE, None, 2)
        other = accountant.group(
            [over(PoissonSampling(0.25), GaussianSum("a", 1.0, 2 / NORM))],
            None,
            2,
        )

        assert (one.is_pair, other.is_pair) == (False, True)


ALL = {"probability": 1.0}
SURE = [cycle(0, **ALL), cycle(1, **ALL), cycle(2, 2, **ALL)]


class TestSureRecords:
    """Every record takes part in the round of its class."""

    @pytest.mark.parametrize(
        ("neighbours", "distance"),
        [("add_or_remove_one", 1), ("replace_one", 2)],
    )
    def test_are_not_amplified(self, neighbours, distance) -> None:
        mechanism, count = only(SURE, neighbours)

        assert (type(mechanism), count) == (Gaussian, 3)
        assert mechanism.noise_multiplier == pytest.approx(2 / NORM / distance)

    @pytest.mark.parametrize(
        "rounds",
        [
            [cycle(0, **ALL), cycle(1, 3, **ALL), cycle(2, 2, **ALL)],
            [cycle(0, **ALL), cycle(0, 1, draw="other", **ALL)],
        ],
    )
    def test_out_of_step_cost_as_in_every_round(self, rounds) -> None:
        ((mechanism, count),) = priced(rounds).items()

        every = strategy_sensitivity(STRATEGY, 10).upper
        assert (type(mechanism), count) == (Gaussian, 1)
        assert mechanism.noise_multiplier == pytest.approx(2 / every)


class TestOtherSamples:
    @pytest.mark.parametrize(
        "sampling", [FullDataset(), UnverifiedSampling(), PoissonSampling(0.1)]
    )
    def test_take_part_in_every_round(self, sampling) -> None:
        mechanism, count = only([over(sampling, EVENT, count=3)], "zero_out")

        every = strategy_sensitivity(STRATEGY, 10).upper
        assert count == 1
        assert mechanism.noise_multiplier == pytest.approx(2 / every)

    def test_nothing_over_its_samples_is_amplified(self) -> None:
        """The mechanism gives the sample away; other rounds are amplified."""
        sampling = PoissonSampling(0.1)
        other = GaussianSum("other", 1.0, 4.0)
        rounds = normalize(
            [
                over(sampling, EVENT, other),
                over(sampling, EVENT, LAPLACE),
                over(sampling, other),
            ]
        )

        kinds = {type(mechanism): mechanism for mechanism, _ in rounds}
        assert kinds[SampledGaussian] == SampledGaussian(4.0, 0.1)
        assert kinds[AdditiveNoise].sampling_probability == 1.0
        assert (Gaussian(4.0), 1) in rounds

    def test_over_truncated_samples_has_their_slack(self) -> None:
        truncated = TruncatedPoissonSampling(0.1, 30, 200)

        found = dict(normalize([over(truncated, EVENT, count=7)]))

        (slack,) = [each for each in found if isinstance(each, Slack)]
        assert slack.chance == truncation_exposure(truncated) > 0
        assert found[slack] == 7


class TestAMechanism:
    def test_of_too_many_rounds_has_no_bound(self) -> None:
        mechanism, _ = only([over(FullDataset(), EVENT, count=11)])

        assert mechanism.noise_multiplier == 0

    def test_of_no_bound_is_free(self) -> None:
        free = dataclasses.replace(EVENT, l2_norm_bound=0.0, noise_stddev=0.0)

        assert normalize([over(FullDataset(), free, count=9)]) == ()

    def test_without_noise_is_bare(self) -> None:
        bare = dataclasses.replace(EVENT, noise_stddev=0.0)

        assert only([over(FullDataset(), bare)]) == (Gaussian(0.0), 1)

    def test_of_two_strategies_is_refused(self) -> None:
        other = dataclasses.replace(EVENT, strategy=BandedToeplitz((1.0,)))

        with pytest.raises(UnsupportedEventError, match="one strategy"):
            normalize([over(FullDataset(), EVENT), over(FullDataset(), other)])

    def test_counts_its_largest_bound_and_least_noise(self) -> None:
        one = dataclasses.replace(EVENT, l2_norm_bound=3.0)
        two = dataclasses.replace(EVENT, noise_stddev=0.5)

        mechanism, _ = only([over(FullDataset(), each) for each in (one, two)])

        every = strategy_sensitivity(STRATEGY, 10).upper
        assert mechanism.noise_multiplier == pytest.approx(0.5 / (3 * every))

    def test_occurs_once_in_a_round(self) -> None:
        again = dataclasses.replace(EVENT, name="again")

        with pytest.raises(UnsupportedEventError, match="one row"):
            normalize([over(FullDataset(), EVENT, again)])

    def test_spans_its_rounds(self) -> None:
        (round_, _) = cycle(0)

        assert list(spans_of(round_)) == ["draw", "one"]


@pytest.mark.parametrize(
    "arguments", [(0,), (5, 0), (5, 1, 0), (5.0,), (True,)]
)
def test_a_sensitivity_needs_whole_numbers(arguments) -> None:
    with pytest.raises((TypeError, ValueError), match="must be"):
        strategy_sensitivity(STRATEGY, *arguments)
