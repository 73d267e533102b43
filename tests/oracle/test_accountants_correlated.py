"""Correlated noise against every pattern of participation.

Tiny mechanisms of one coordinate are enumerated from their definition: every
pattern, and every sequence of unit vectors.
"""

import itertools
import math

import numpy as np
import pytest

from keras_dp.accountants import Fourier, strategy_sensitivity
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.renyi.divergences import rdp
from keras_dp.ledger import (
    BandedToeplitz,
    CorrelatedSum,
    CyclicPoissonSampling,
    DisjointBatches,
    FullDataset,
    GaussianSum,
    Round,
)

MONOTONE = [
    BandedToeplitz((1.0,)),
    BandedToeplitz((1.0, 0.5, 0.5)),
    BandedToeplitz((1.0, 0.9, 0.3, 0.2, 0.2, 0.1)),
]
OTHERS = [BandedToeplitz((1.0, 0.0, 0.75)), BandedToeplitz((1.0, 2.0))]


def patterns(rounds, separation, most):
    """Yields the sets of rounds that a record may take part in."""
    for taken in itertools.product([0, 1], repeat=rounds):
        places = np.flatnonzero(taken)
        if len(places) <= most and (np.diff(places) >= separation).all():
            yield places


def largest_displacement(matrix, separation, most):
    """Returns the largest norm of C x over patterns and signs."""
    return max(
        float(np.linalg.norm(matrix[:, places] @ np.array(signs)))
        for places in patterns(len(matrix), separation, most)
        for signs in itertools.product([-1.0, 1.0], repeat=len(places))
    )


@pytest.mark.parametrize("strategy", [*MONOTONE, *OTHERS])
@pytest.mark.parametrize("separation", [1, 2, 3, 6])
@pytest.mark.parametrize("most", [1, 2, 6])
def test_bounds_hold_every_pattern(strategy, separation, most) -> None:
    found = strategy_sensitivity(strategy, 6, separation, most)
    true = largest_displacement(strategy.matrix(6), separation, most)

    assert found.lower <= true <= found.upper
    if strategy in MONOTONE:
        assert found.upper <= found.lower * (1 + 1e-12)


def epsilon_of(moved, stddev):
    """Returns epsilon of one Gaussian that a record moves so far."""
    plain = GaussianSum("plain", moved, stddev)
    return Fourier().epsilon([(Round(FullDataset(), (plain,)), 1)], delta=DELTA)


DELTA = 1e-5


@pytest.mark.parametrize("strategy", [*MONOTONE, *OTHERS])
@pytest.mark.parametrize("classes", [1, 2, 3])
def test_some_signs_reach_the_lower_bound(strategy, classes) -> None:
    """Of a record in all rounds; of a class it is the price of a known one."""
    matrix, stddev = strategy.matrix(6), 2.0
    true = max(
        float(np.linalg.norm(matrix[:, j::classes] @ np.array(signs)))
        for j in range(classes)
        for signs in itertools.product([-1.0, 1.0], repeat=6 // classes)
    )
    event = CorrelatedSum("sum", 1.0, stddev, strategy, 6, "one")
    rounds = [(Round(FullDataset(), (event,)), 6)]
    if classes > 1:
        rounds = cycles(strategy, 6, classes, 1.0, stddev)

    low, high = Fourier().epsilon_bounds(
        rounds, delta=DELTA, neighbours="replace_one"
    )

    # A record that is replaced by its opposite moves twice as far.
    exact = epsilon_of(2 * true, stddev)
    assert low * (1 - 1e-9) <= exact <= high * (1 + 1e-9)
    # Nobody is told the class, so that nobody is known to reach that.
    assert low == pytest.approx(exact if classes == 1 else 0.0, rel=1e-6)
    # So near in one dimension; vectors may move further.
    assert high <= 1.05 * exact
    assert high < epsilon_of(2 * 1.1 * true, stddev)


def cycles(strategy, rounds, classes, probability, stddev):
    """Returns the rounds of a mechanism with cyclic samples."""
    event = CorrelatedSum("sum", 1.0, stddev, strategy, rounds, "one")
    return [
        (
            Round(
                CyclicPoissonSampling(f"draw-{cycle}", classes, probability),
                (event,),
            ),
            min(classes, rounds - cycle * classes),
        )
        for cycle in range(-(-rounds // classes))
    ]


def moment(matrix, places, probability, stddev, order):
    """Returns `E_Q (P/Q)^order` where a record may be in rounds `places`."""
    drawn = [
        (
            np.prod([probability if x else 1 - probability for x in taken]),
            matrix[:, places] @ np.array(taken, float),
        )
        for taken in itertools.product([0, 1], repeat=len(places))
    ]
    total = 0.0
    for several in itertools.product(drawn, repeat=order):
        weight = math.prod(weight for weight, _ in several)
        products = sum(
            one @ two
            for (_, one), (_, two) in itertools.combinations(several, 2)
        )
        total += weight * math.exp(products / stddev**2)
    return total


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize(
    ("coefficients", "rounds", "classes"),
    [((1.0, 0.5), 6, 2), ((1.0, 0.5, 0.25), 6, 3), ((1.0, 0.75), 5, 2)],
)
def test_cyclic_samples_cost_their_moments(
    coefficients, rounds, classes, order
) -> None:
    strategy = BandedToeplitz(coefficients)
    matrix, q, stddev = strategy.matrix(rounds), 0.3, 1.5
    true = max(
        moment(matrix, np.arange(j, rounds, classes), q, stddev, order)
        for j in range(classes)
    )

    priced = sum(
        count * float(rdp(mechanism, np.array([float(order)]))[0])
        for mechanism, count in normalize(
            cycles(strategy, rounds, classes, q, stddev)
        )
    )

    # The last column is cut off where the rounds end: the price is that of
    # whole columns.
    assert math.log(true) / (order - 1) <= priced * (1 + 1e-9)
    whole = moment(
        strategy.matrix(9), np.arange(0, rounds, classes), q, stddev, order
    )
    assert priced == pytest.approx(math.log(whole) / (order - 1), rel=1e-9)


def test_disjoint_epochs_take_part_once_each() -> None:
    """In any round of each of two epochs, in neighbouring rounds too."""
    strategy = BandedToeplitz((1.0, 0.5, 0.25))
    event = CorrelatedSum("sum", 1.0, 1.0, strategy, 6, "one")
    rounds = [
        (Round(DisjointBatches(name), (event,)), 3) for name in ("a", "b")
    ]

    ((mechanism, _),) = normalize(rounds, "zero_out")

    true = largest_displacement(strategy.matrix(6), 1, 2)
    assert 1 / mechanism.noise_multiplier == pytest.approx(true, rel=1e-9)
