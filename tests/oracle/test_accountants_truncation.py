"""Truncated Poisson samples against the definition, and against exact tails.

All samples of tiny data sets, and all subsets that may be kept of them, are
enumerated: the output is a mixture of normal distributions on a line.
"""

import fractions
import itertools
import math
from collections import Counter

import mpmath as mp
import numpy as np
import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants.normalize.mechanisms import SampledGaussian
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.truncation import (
    chance_to_overflow,
    with_and_without_slack,
)
from keras_dp.accountants.renyi.divergences import rdp
from keras_dp.ledger import (
    GaussianSum,
    PoissonSampling,
    Round,
    TruncatedPoissonSampling,
)

EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0, 7.0)
STDDEV = 0.8
X = np.linspace(-16, 16, 8001)
# The other records: the record is the only one that points its way, or not.
OTHERS = [(-1.0, -1.0, -1.0), (1.0, 1.0, 1.0), (1.0, -1.0, 0.0), (0.0,) * 3]
RELATIONS = {
    "zero_out": ((1.0,), (0.0,)),
    "replace_one": ((1.0,), (-1.0,)),
    "add_or_remove_one": ((1.0,), ()),
}


def kept_sums(records, q, most):
    """The chance of each sum over a truncated sample."""
    chances = Counter()
    for size in range(len(records) + 1):
        for sample in itertools.combinations(range(len(records)), size):
            chance = q**size * (1 - q) ** (len(records) - size)
            kept = [*itertools.combinations(sample, min(size, most))]
            for each in kept:
                chances[sum(records[i] for i in each)] += chance / len(kept)
    return chances


def density(records, q, most):
    total = np.zeros_like(X)
    for mean, chance in kept_sums(records, q, most).items():
        total += chance * np.exp(-(((X - mean) / STDDEV) ** 2) / 2)
    return total / (STDDEV * math.sqrt(2 * math.pi))


def divergence(p, q, epsilon):
    return float(np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0), X))


def round_of(sampling):
    return Round(sampling, (GaussianSum("sum", 1.0, STDDEV),))


def true_delta(neighbours, others, q, most, epsilon):
    with_it, without = (
        density(own + others, q, most) for own in RELATIONS[neighbours]
    )
    return max(
        divergence(with_it, without, epsilon),
        divergence(without, with_it, epsilon),
    )


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize(
    ("q", "most"), [(0.2, 2), (0.2, 3), (0.5, 1), (0.5, 2), (0.5, 3), (0.5, 4)]
)
def test_no_attack_exceeds_the_bound(neighbours, q, most) -> None:
    """And an attack reaches the lower bound, if that is not below it."""
    rounds = [(round_of(TruncatedPoissonSampling(q, most, 4)), 1)]

    for epsilon in EPSILONS:
        lower, upper = Fourier().delta_bounds(
            rounds, epsilon=epsilon, neighbours=neighbours
        )
        attacks = [
            true_delta(neighbours, others, q, most, epsilon)
            for others in OTHERS
        ]
        # To the precision of the grid.
        assert max(attacks) <= upper * (1 + 1e-5) + 1e-9
        assert lower <= max(attacks) * (1 + 1e-5) + 1e-9


def test_the_whole_samples_price_alone_is_no_bound() -> None:
    """Control: records that are pushed out tell of the one that stays."""
    q, most, epsilon = 0.5, 1, 2.0
    poisson = [(round_of(PoissonSampling(q)), 1)]

    bound = Fourier().delta(
        poisson, epsilon=epsilon, neighbours="add_or_remove_one"
    )

    assert any(
        true_delta("add_or_remove_one", others, q, most, epsilon) > bound
        for others in OTHERS
    )


@pytest.mark.parametrize("neighbours", ["zero_out", "add_or_remove_one"])
@pytest.mark.parametrize("accountant", [Fourier(), RDP()])
def test_two_rounds_are_below_the_bound(accountant, neighbours) -> None:
    q, most, others = 0.3, 2, (-1.0, -1.0, -1.0)
    step = X[1] - X[0]
    found = [density(own + others, q, most) for own in RELATIONS[neighbours]]
    coarse = [each[::40] * step * 40 for each in found]
    joint = [np.outer(each, each) for each in coarse]
    rounds = [(round_of(TruncatedPoissonSampling(q, most, 4)), 2)]

    for epsilon in EPSILONS:
        bound = accountant.delta(rounds, epsilon=epsilon, neighbours=neighbours)
        for p, other in (joint, joint[::-1]):
            true = np.maximum(p - math.exp(epsilon) * other, 0).sum()
            assert true <= bound * (1 + 1e-6) + 1e-9


def exact_tail(q, most, size):
    q = fractions.Fraction(q)
    return sum(
        math.comb(size, k) * q**k * (1 - q) ** (size - k)
        for k in range(most, size + 1)
    )


@pytest.mark.parametrize("q", [1e-9, 0.01, 0.25, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("size", [1, 2, 7, 60])
def test_the_chance_is_above_the_exact_one_and_near(q, size) -> None:
    for most in range(1, size + 1):
        exact = fractions.Fraction(q) * exact_tail(q, most, size)
        found = fractions.Fraction(chance_to_overflow(q, most, size))

        assert found >= exact
        if most > size * q + 2 * math.sqrt(size * q * (1 - q)) + 1:
            assert found <= fractions.Fraction(1.5) * exact + 5e-324


def test_nothing_overflows_where_all_fit() -> None:
    assert chance_to_overflow(0.3, 11, 10) == 0
    assert chance_to_overflow(1.0, 10, 10) == 1.0
    assert 0 < chance_to_overflow(2.0**-60, 2**40, 2**46) <= 5e-324


@pytest.mark.parametrize(
    ("size", "q", "most", "noise", "count", "peer"),
    [
        (4, 0.5, 4, 1.0, 1, 4.0542905),
        (4, 0.5, 2, 1.0, 1, 9.4108965),
        (4, 0.5, 2, 1.0, 3, 15.202201),
        (50_000, 0.00512, 320, 1.1, 1000, 1.1794604),
        (50_000, 0.00512, 300, 1.1, 1000, 3.0092206),
        (1000, 0.05, 85, 1.0, 10, 2.1175842),
    ],
)
def test_a_small_batch_costs_no_more_than_by_a_peer(
    size, q, most, noise, count, peer
) -> None:
    """Epsilon at delta 1e-6 by dp_accounting, TruncatedSubsampledGaussian."""
    event = GaussianSum("sum", 1.0, noise)
    whole, kept = (
        [(Round(sampling, (event,)), count)]
        for sampling in (
            PoissonSampling(q),
            TruncatedPoissonSampling(q, most, size),
        )
    )
    relation = "add_or_remove_one"

    found = Fourier().epsilon(kept, delta=1e-6, neighbours=relation)
    others = [
        Fourier().epsilon(kept, delta=1e-6, neighbours=each)
        for each in ("zero_out", "replace_one")
    ]

    poisson = Fourier().epsilon(whole, delta=1e-6) * (1 - 1e-7)
    assert poisson <= found <= peer * (1 + 1e-6)
    assert poisson <= others[0] < others[1] < math.inf
    assert (found <= poisson * (1 + 2e-7)) == (most >= size)
    moments = RDP().epsilon(kept, delta=1e-6, neighbours=relation)
    assert found <= moments < math.inf


@pytest.mark.parametrize("excess", [1e-6, 1.0, 300.0])
@pytest.mark.parametrize("neighbours", sorted(RELATIONS))
def test_the_divergence_of_full_batches_keeps_its_digits(
    neighbours, excess
) -> None:
    """In 40 digits: the log of the mean is next to 0 where the parts are."""
    step = round_of(TruncatedPoissonSampling(1.7e-5, 1, 1000)), 1
    choices = with_and_without_slack(normalize([step], neighbours))
    ((mechanism, _),) = choices[1]
    parts = [SampledGaussian(z, q) for _, z, q in mechanism.parts]
    parts[0] = mechanism.whole
    orders = np.array([1.0 + excess])
    with mp.workdps(40):
        moments = [
            mp.exp(mp.mpf(float(rdp(part, orders)[0])) * (orders[0] - 1))
            for part in parts
        ]
        chances = [mp.mpf(chance) for chance, _, _ in mechanism.parts]
        mean = mp.fsum(
            chance * (moment - 1)
            for chance, moment in zip(chances, moments, strict=True)
        )
        true = float(mp.log1p(mean) / (orders[0] - 1))

    found = float(rdp(mechanism, orders)[0])
    # Each part is rounded up by 1e-12.
    assert found == pytest.approx(true, rel=1e-9, abs=0)
