"""No lower bound is above what a record can reach, in ledgers out of order.

What a record reaches is found by trying all rounds that it can be in.
"""

import math

import numpy as np
import pytest

from keras_dp.accountants import Fourier
from keras_dp.ledger import (
    BandedToeplitz,
    BinaryTree,
    CorrelatedSum,
    CyclicPoissonSampling,
    DisjointBatches,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)
from tests.analytic_gaussian import AnalyticGaussian

DELTA = 1e-5
ONE, TWO = DisjointBatches("one"), DisjointBatches("two")
RISING = BandedToeplitz((1.0, 0.2, 0.9))


def row(strategy, rounds, name="m"):
    return CorrelatedSum(name, 1.0, 1.0, strategy, rounds, name)


def over(sampling, *queries):
    return Round(sampling, queries), 1


def moved(strategy, rounds, *places):
    """Returns the norm of the sum of columns without negative entries."""
    return float(np.linalg.norm(strategy.matrix(rounds)[:, places].sum(axis=1)))


def epsilon_of(distance):
    gaussian = GaussianSum("all", distance, 1.0)
    return AnalyticGaussian().epsilon(
        [over(FullDataset(), gaussian)], delta=DELTA, neighbours="zero_out"
    )


# The ledger, and the farthest that a record moves it.
CASES = {
    "a plain sum in another round of the pass": (
        [
            over(ONE, GaussianSum("sum", 1.0, 1.0)),
            *[over(ONE, row(RISING, 3))] * 3,
        ],
        max(1.0, *(moved(RISING, 3, i) for i in range(3))),
    ),
    "two mechanisms that are moved most in other rounds": (
        [over(ONE, row(BinaryTree(), 4, "a"), row(RISING, 4, "b"))] * 4,
        max(
            math.hypot(moved(BinaryTree(), 4, i), moved(RISING, 4, i))
            for i in range(4)
        ),
    ),
    "full data, then a pass": (
        [over(FullDataset(), row(RISING, 3)), *[over(ONE, row(RISING, 3))] * 2],
        max(moved(RISING, 3, 0, 1), moved(RISING, 3, 0, 2)),
    ),
    "passes that take turns": (
        [over(each, row(RISING, 3)) for each in (ONE, TWO, ONE)],
        max(moved(RISING, 3, 0, 1), moved(RISING, 3, 1, 2)),
    ),
    "a mechanism that was interrupted": (
        [over(FullDataset(), row(BandedToeplitz((1.0,) * 10), 100))],
        1.0,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_lower_bounds_are_not_above_what_is_reached(name) -> None:
    ledger, distance = CASES[name]

    lower, upper = Fourier().epsilon_bounds(
        ledger, delta=DELTA, neighbours="zero_out"
    )

    assert lower <= epsilon_of(distance) * (1 + 1e-7) <= upper * (1 + 1e-7)


STEPS = BandedToeplitz((1.0, 0.9))


def plain(moved):
    return GaussianSum("plain", moved, 1.0)


def in_turn(*queries, probability=1.0):
    """Returns the rounds of two classes that take turns."""
    return [
        over(
            CyclicPoissonSampling(f"draw-{i // 2}", 2, probability),
            *([each] if isinstance(each, GaussianSum) else each),
        )
        for i, each in enumerate(queries)
    ]


# The queries of the rounds, and for each class how far its record moves its
# rounds, which are released with noise of their own.
OF_CLASSES = {
    "a mechanism that was interrupted": (
        [[row(STEPS, 8)]] * 3,
        [(math.hypot(1, 0.9), 1.0), (math.hypot(1, 0.9),)],
    ),
    "other sums that differ in the cycles": (
        [plain(1.0), plain(3.0), plain(3.0), plain(1.0)],
        [(1.0, 3.0), (3.0, 1.0)],
    ),
    "other sums that differ in a cycle": (
        [[row(STEPS, 4)], [row(STEPS, 4), plain(3.0)]] * 2,
        [(math.hypot(1, 0.9),) * 2, (math.hypot(1, 0.9, 3), math.hypot(1, 3))],
    ),
    "bounds of a mechanism that differ": (
        [
            [CorrelatedSum("m", bound, 1.0, BandedToeplitz((1.0,)), 4, "m")]
            for bound in (1.0, 3.0, 3.0, 1.0)
        ],
        [(1.0, 3.0), (3.0, 1.0)],
    ),
}


@pytest.mark.parametrize("probability", [0.25, 1.0])
@pytest.mark.parametrize("name", OF_CLASSES)
def test_a_record_is_in_its_class_in_every_cycle(name, probability) -> None:
    queries, classes = OF_CLASSES[name]

    lower, upper = Fourier().epsilon_bounds(
        in_turn(*queries, probability=probability),
        delta=DELTA,
        neighbours="replace_one",
    )

    true = max(
        Fourier().epsilon(
            [over(PoissonSampling(probability), plain(each)) for each in moved],
            delta=DELTA,
            neighbours="replace_one",
        )
        for moved in classes
    )
    assert lower <= true * (1 + 1e-7)
    assert true <= upper * (1 + 1e-7)


def test_a_class_may_be_a_secret() -> None:
    """The sum of both rounds of a cycle holds the record, in any class."""
    lower, upper = Fourier().epsilon_bounds(
        in_turn(*[plain(1.0)] * 4),
        delta=DELTA,
        neighbours="add_or_remove_one",
    )

    assert lower == pytest.approx(epsilon_of(math.sqrt(2 * 0.5)), rel=1e-6)
    assert lower < upper


@pytest.mark.parametrize("probability", [0.25, 1.0])
@pytest.mark.parametrize("ran", [3, 4])
def test_control_classes_reach_what_ran(probability, ran) -> None:
    """Of four rounds, of which three or all ran, by whoever knows no class.

    The sum of both rounds of a cycle holds a record of either class.
    """
    rounds = in_turn(
        *[[row(STEPS, 4), plain(1.0)]] * ran, probability=probability
    )
    norms = [math.hypot(1, 0.9, 1), math.hypot(1, 0.9 * (ran == 4), 1)]

    lower, upper = Fourier().epsilon_bounds(
        rounds, delta=DELTA, neighbours="replace_one"
    )

    told, true = (
        Fourier().epsilon(
            [over(PoissonSampling(probability), plain(each)) for each in some],
            delta=DELTA,
            neighbours="replace_one",
        )
        for some in (norms, [math.sqrt(0.5)] * (ran // 2))
    )
    assert lower == pytest.approx(true, rel=1e-4)
    assert (upper <= told * (1 + 1e-7)) == (ran == 4)


CYCLES = [
    CyclicPoissonSampling(f"draw-{i // 2}", classes=2, probability=0.01)
    for i in range(4)
]


@pytest.mark.parametrize(
    ("samplings", "whole"),
    [([PoissonSampling(1e-3)] * 10, 0), (CYCLES, 1)],
    ids=["Poisson samples", "from the middle of a cycle"],
)
def test_samples_may_leave_a_record_out(samplings, whole) -> None:
    """Without correlation a mechanism is what independent sums are."""
    plain = GaussianSum("sum", 1.0, 1.0)
    same = row(BandedToeplitz((1.0,)), len(samplings) - whole)

    def bounds(queries):
        return Fourier().epsilon_bounds(
            [over(*each) for each in zip(samplings, queries, strict=True)],
            delta=DELTA,
            neighbours="add_or_remove_one",
        )

    lower, upper = bounds([plain] * whole + [same] * (len(samplings) - whole))

    true = bounds([plain] * len(samplings))
    assert lower <= true.upper
    assert true.lower <= upper


@pytest.mark.parametrize("sampling", [FullDataset(), ONE])
def test_control_lower_bounds_are_reached_in_order(sampling) -> None:
    """Else bounds of 0 would pass the test above."""
    ledger = [over(sampling, row(RISING, 3))] * 3
    places = [range(3)] if sampling is not ONE else [[i] for i in range(3)]

    lower, upper = Fourier().epsilon_bounds(
        ledger, delta=DELTA, neighbours="zero_out"
    )

    true = epsilon_of(max(moved(RISING, 3, *each) for each in places))
    assert lower == pytest.approx(true, rel=1e-7)
    assert upper == pytest.approx(true, rel=1e-7)
