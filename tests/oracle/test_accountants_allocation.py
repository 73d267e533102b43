"""Random allocation against the definition, and against what is known.

The likelihood ratio of an epoch of up to four batches is integrated over all
its coordinates, or added up over all outcomes of rounds that have two.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from keras_dp.accountants import Fourier
from keras_dp.accountants.compose.grid import allocation, score_sum, tilted
from keras_dp.accountants.compose.grid.likelihood import (
    drawn_log_normal,
    drawn_sum,
    spread_log_normal,
    spread_sum,
)
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Gaussian,
    RandomAllocationGaussian,
    SampledGaussian,
)
from keras_dp.ledger import (
    DisjointBatches,
    GaussianSum,
    PoissonSampling,
    RandomAllocation,
    Round,
)

EPSILONS = (0.0, 2.0)
ADD = "add_or_remove_one"
BETWEEN = pytest.mark.parametrize(
    "stddev", [0.6, pytest.param(1.0, marks=pytest.mark.nightly), 3.0]
)


def epochs(count, batches, stddev, picks=1):
    query = (GaussianSum("sum", 1.0, stddev),)
    return [
        (Round(RandomAllocation(f"{number}", batches, picks), query), batches)
        for number in range(count)
    ]


@functools.cache
def ratios(batches, stddev, picks=1):
    """Likelihood ratios of an epoch and their masses, by a midpoint rule."""
    count = {2: 1500, 3: 220, 4: 60}[batches]
    ends = np.linspace(-8.5, 8.5, count + 1)
    u = (ends[:-1] + ends[1:]) / 2
    w = np.exp(u / stddev - 1 / (2 * stddev**2))
    masses = np.diff(special.ndtr(ends))
    ratio = sum(
        functools.reduce(
            np.multiply,
            np.ix_(*[w if j in chosen else np.ones(count) for j in each]),
        )
        for each in [range(batches)]
        for chosen in itertools.combinations(each, picks)
    ) / math.comb(batches, picks)
    joint = functools.reduce(np.multiply, np.ix_(*[masses] * batches))
    return ratio.ravel(), joint.ravel()


def true_delta(batches, stddev, epsilon, picks=1):
    ratio, masses = ratios(batches, stddev, picks)
    e = math.exp(epsilon)
    return max(
        float((masses * np.maximum(ratio - e, 0)).sum()),
        float((masses * np.maximum(1 - e * ratio, 0)).sum()),
    )


@BETWEEN
@pytest.mark.parametrize("batches", [2, 3])
def test_one_epoch_is_what_the_definition_says(batches, stddev) -> None:
    # Squares of the quadrature's cells.
    error = 1e-4 if batches == 2 else 4e-3

    for epsilon in EPSILONS:
        true = true_delta(batches, stddev, epsilon)
        lower, upper = Fourier().delta_bounds(
            epochs(1, batches, stddev), epsilon=epsilon, neighbours=ADD
        )
        assert lower <= true * (1 + error) + 1e-12  # Where it is cut off.
        assert upper >= true * (1 - error) - 1e-12
        assert upper <= lower * 1.02 + 1e-12


@BETWEEN
@pytest.mark.parametrize(
    ("batches", "picks"),
    [(3, 2), (4, 2), pytest.param(4, 3, marks=pytest.mark.full)],
)
class TestSeveralBatchesOfARecord:
    """The upper bound is one of blocks, and the lower one of an attack."""

    def test_cost_what_the_definition_says(
        self, batches, picks, stddev
    ) -> None:
        error = 4e-3 if batches == 3 else 3e-2

        for epsilon in EPSILONS:
            true = true_delta(batches, stddev, epsilon, picks)
            lower, upper = Fourier().delta_bounds(
                epochs(1, batches, stddev, picks),
                epsilon=epsilon,
                neighbours=ADD,
            )
            assert 0.5 * true < lower <= true * (1 + error) + 1e-12
            assert true * (1 - error) - 1e-12 <= upper

    def test_cost_more_than_a_batch_less(self, batches, picks, stddev) -> None:
        """Control: the wrong number of batches would have been seen."""
        true = true_delta(batches, stddev, 1.0, picks)

        _, upper = Fourier().delta_bounds(
            epochs(1, batches, stddev, picks - 1), epsilon=1.0, neighbours=ADD
        )

        assert upper < 0.9 * true


def outcomes(batches, picks, chance=0.4):
    """Ratios of an epoch whose rounds tell one of two things, and masses.

    Each round says 1 with a chance of 0.2, and more if the record is in it.
    """
    ratio, masses = [], []
    w, q = {0: (1 - chance) / 0.8, 1: chance / 0.2}, {0: 0.8, 1: 0.2}
    for found in itertools.product((0, 1), repeat=batches):
        products = [
            math.prod(w[found[j]] for j in chosen)
            for chosen in itertools.combinations(range(batches), picks)
        ]
        ratio.append(sum(products) / len(products))
        masses.append(math.prod(q[each] for each in found))
    return np.array(ratio), np.array(masses)


def hockey_sticks(ratio, masses, epsilon):
    e = math.exp(epsilon)
    return np.array(
        [
            masses @ np.maximum(ratio - e, 0),
            masses @ np.maximum(1 - e * ratio, 0),
        ]
    )


@pytest.mark.parametrize("batches", [1, 2, 3, 5, 6])
class TestBlocks:
    def test_let_every_set_be_picked_equally_often(self, batches) -> None:
        for picks in range(1, batches + 1):
            sizes = block_sizes(batches, picks)
            counts = dict.fromkeys(
                itertools.combinations(range(batches), picks), 0
            )
            for order in itertools.permutations(range(batches)):
                left = iter(order)
                blocks = [list(itertools.islice(left, n)) for n in sizes]
                for chosen in itertools.product(*blocks):
                    counts[tuple(sorted(chosen))] += 1

            assert len(set(counts.values())) == 1

    def test_dominate_in_both_directions(self, batches) -> None:
        for picks in range(1, batches + 1):
            ratio, masses = np.ones(1), np.ones(1)
            for size in block_sizes(batches, picks):
                one, its = outcomes(size, 1)
                ratio = np.multiply.outer(ratio, one).ravel()
                masses = np.multiply.outer(masses, its).ravel()
            for epsilon in np.linspace(0, 3, 31):
                true = hockey_sticks(*outcomes(batches, picks), epsilon)
                found = hockey_sticks(ratio, masses, epsilon)
                assert (true <= found + 1e-15).all()


def block_sizes(batches, picks):
    sizes = [
        size
        for size, count in RandomAllocationGaussian(1.0, batches, picks).blocks
        for _ in range(count)
    ]
    assert sum(sizes) == batches
    assert len(sizes) == picks
    return sizes


@pytest.mark.parametrize(
    ("count", "batches", "picks", "stddev", "apart"),
    [
        (1, 100, 4, 1.0, 1.1),
        (10, 100, 4, 2.0, 1.01),
        (1, 1000, 4, 0.6, 1.1),
        (1, 101, 50, 4.0, 1.05),
        (100, 20, 3, 5.0, 1.01),
    ],
)
def test_bounds_of_several_batches_a_record(
    count, batches, picks, stddev, apart
) -> None:
    """They are below Poisson samples of the same mean size, too."""
    lower, upper = Fourier().epsilon_bounds(
        epochs(count, batches, stddev, picks), delta=1e-6, neighbours=ADD
    )
    poisson = Round(
        PoissonSampling(picks / batches), (GaussianSum("sum", 1.0, stddev),)
    )

    assert lower <= upper <= apart * lower
    assert upper <= Fourier().epsilon([(poisson, count * batches)], delta=1e-6)


class TestTheSumOfScores:
    @pytest.mark.parametrize(
        ("batches", "picks", "stddev"),
        [(2, 1, 1.0), (7, 3, 0.5), (1000, 2, 0.8), (50, 49, 3.0)],
    )
    def test_has_a_ratio_of_mean_one(self, batches, picks, stddev) -> None:
        found = score_sum.drawn(
            RandomAllocationGaussian(stddev, batches, picks)
        )

        assert found.masses.sum() == pytest.approx(1, abs=1e-11)
        assert found.masses @ found.points == pytest.approx(1, abs=1e-11)

    @pytest.mark.parametrize("stddev", [0.6, 1.0, 3.0])
    def test_tells_less_than_the_outputs(self, stddev) -> None:
        """With one batch a record, for which the ratio is known otherwise."""
        found = score_sum.drawn(RandomAllocationGaussian(stddev, 2))

        for epsilon in EPSILONS:
            lower = hockey_sticks(found.points, found.masses, epsilon)
            true = hockey_sticks(*ratios(2, stddev), epsilon)
            assert (lower <= true * (1 + 1e-4) + 1e-12).all()
            assert (lower > 0.4 * true - 1e-12).all()


def test_the_definition_tells_poisson_samples_from_it() -> None:
    """Control: a wrong mechanism would have been seen."""
    poisson = Round(PoissonSampling(0.5), (GaussianSum("sum", 1.0, 1.0),))

    other = Fourier().delta([(poisson, 2)], epsilon=1.0, neighbours=ADD)

    assert abs(other / true_delta(2, 1.0, 1.0) - 1) > 0.05


@pytest.mark.parametrize(
    ("count", "batches", "stddev"),
    [(1, 50, 0.5), (10, 100, 0.7), (3, 17, 1.5), (100, 40, 4.0)],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_bounds_are_a_percent_apart(count, batches, stddev, delta) -> None:
    lower, upper = Fourier().epsilon_bounds(
        epochs(count, batches, stddev), delta=delta, neighbours=ADD
    )

    assert lower <= upper <= 1.01 * lower


@pytest.mark.parametrize(
    ("mechanism", "count"),
    [
        (Gaussian(2.0), 3),
        (SampledGaussian(0.8, 0.05), 200),
        (SampledGaussian(2.0, 0.3), 10),
    ],
)
@pytest.mark.parametrize("delta", [1e-2, 1e-10])
def test_composition_holds_what_the_line_integral_finds(
    mechanism, count, delta
) -> None:
    """Rounds beside epochs are composed with them: alone they are known."""
    rounds = (CountedMechanism(mechanism, count),)
    true = Fourier().epsilon_of(rounds, delta)

    upper = allocation.upper_epsilon(rounds, delta)
    lower = allocation.lower_epsilon(rounds, delta, upper)

    assert 0.99 * true <= lower <= true <= upper <= 1.01 * true


def test_rounds_of_other_kinds_add_up_with_epochs() -> None:
    others = [
        CountedMechanism(Gaussian(5.0), 1),
        CountedMechanism(SampledGaussian(1.0, 0.01), 100),
    ]
    epoch = CountedMechanism(RandomAllocationGaussian(0.7, 100), 10)
    delta = 1e-6

    both = allocation.upper_epsilon((epoch, *others), delta)

    assert allocation.upper_epsilon((epoch,), delta) < both
    assert both < allocation.upper_epsilon(
        (epoch,), delta / 2
    ) + Fourier().epsilon_of(tuple(others), delta / 2)


def test_it_costs_less_than_poisson_samples_and_shuffling() -> None:
    batches, count, stddev = 100, 10, 0.7
    query = (GaussianSum("sum", 1.0, stddev),)
    poisson = [(Round(PoissonSampling(1 / batches), query), batches * count)]
    shuffled = [
        (Round(DisjointBatches(f"{number}"), query), batches)
        for number in range(count)
    ]

    found = Fourier().epsilon(epochs(count, batches, stddev), delta=1e-6)

    assert found < Fourier().epsilon(poisson, delta=1e-6, neighbours=ADD)
    assert found < 0.5 * Fourier().epsilon(
        shuffled, delta=1e-6, neighbours="zero_out"
    )


class TestRatios:
    def test_spreading_moves_no_mean(self) -> None:
        one = spread_log_normal(1.2, 0.01)
        for each in (one, spread_sum(one, spread_sum(one, one))):
            mean = float((each.masses * np.exp(each.logs)).sum())
            assert each.masses.sum() + each.zero == pytest.approx(1, abs=1e-12)
            expected = 1 if each is one else 3
            assert mean + each.infinite == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("level", [0.1, 0.5, 1.0, 2.0, 8.0])
    def test_convex_means_are_between(self, level) -> None:
        """A log-normal ratio, for which the mean is known."""
        stddev = 1.2
        d = (math.log(level) + stddev**2 / 2) / stddev
        true = stats.norm.sf(d - stddev) - level * stats.norm.sf(d)
        spread = spread_log_normal(stddev, 0.05)
        drawn = drawn_log_normal(stddev, 0.05)

        upper = spread.masses @ np.maximum(np.exp(spread.logs) - level, 0)
        lower = drawn.masses @ np.maximum(drawn.points - level, 0)

        assert lower <= true <= upper + spread.infinite
        assert upper - lower < 2e-3 * true

    def test_drawing_together_moves_no_mean(self) -> None:
        one = drawn_log_normal(0.8, 0.02)
        two = drawn_sum(one, one, 0.02)

        assert two.masses.sum() == pytest.approx(1, abs=1e-12)
        assert two.masses @ two.points == pytest.approx(2, rel=1e-12)


class TestTiltedSums:
    @pytest.mark.parametrize("epsilon", [0.0, 3.0, 9.0])
    def test_of_coins_are_binomial(self, epsilon) -> None:
        rounds, chance, step = 40, 0.3, 0.25
        part = tilted.Losses(-1, np.array([1 - chance, 0.0, chance]), 0, rounds)
        heads = np.arange(rounds + 1)
        losses = step * (2 * heads - rounds)
        true = stats.binom.pmf(heads, rounds, chance) @ np.maximum(
            -np.expm1(epsilon - losses), 0
        )

        found = tilted.composed([part], step, epsilon=epsilon)

        upper = found.delta(epsilon, is_upper=True)
        lower = found.delta(epsilon, is_upper=False)
        assert lower <= true <= upper
        assert upper - lower < 1e-6 * true

    def test_what_rounding_lost_of_masses_is_added(self) -> None:
        whole = np.array([0.7, 0.0, 0.3])
        true = tilted.composed(
            [tilted.Losses(-1, whole, 0, 1000)], 0.25, epsilon=2.0
        )

        found = tilted.composed(
            [tilted.Losses(-1, whole * (1 - 2e-9), 0, 1000)], 0.25, epsilon=2.0
        )

        least = true.delta(2.0, is_upper=False)
        assert found.delta(2.0, is_upper=True) >= least
        assert found.delta(2.0, is_upper=False) <= least

    def test_infinite_losses_are_added(self) -> None:
        part = tilted.Losses(0, np.array([0.99]), 0.01, 3)

        found = tilted.composed([part], 0.1, epsilon=1.0)

        assert 0.0297 < found.delta(1.0, is_upper=True) < 0.0301
