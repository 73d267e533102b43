"""Rounds with little noise: bounds, and the promise of a plan."""

import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants.compose import integral
from keras_dp.errors import TooSlowError
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    GaussianSum,
    PoissonSampling,
    Round,
)
from keras_dp.planning import calibrate_noise, plan, rounds_left

RELATIONS = ["add_or_remove_one", "replace_one"]


def rounds_of(noise, probability=0.0625, count=160):
    event = GaussianSum("sum", 1.0, noise)
    return [(Round(PoissonSampling(probability), (event,)), count)]


def test_two_rounds_are_those_of_a_quadrature() -> None:
    """Delta of two rounds, by a grid over both outputs."""
    noise, q, epsilon = 0.08, 0.3, 95.0
    u = np.linspace(-9, 1 / noise + 9, 2001)
    w = (u - 0.5 / noise) / noise
    loss = np.logaddexp(math.log1p(-q), math.log(q) + w)
    log_p = loss + stats.norm.logpdf(u) + math.log(u[1] - u[0])
    both = np.add.outer(loss, loss)
    logs = np.add.outer(log_p, log_p)
    some = both > epsilon
    true = np.exp(
        special.logsumexp(logs[some] + np.log(-np.expm1(epsilon - both[some])))
    )

    found = Fourier().delta_bounds(rounds_of(noise, q, 2), epsilon=epsilon)

    assert found.lower <= true * (1 + 1e-3)  # The kink of the integrand.
    assert true * (1 - 1e-3) <= found.upper <= true * (1 + 1e-3)


@pytest.mark.full
@pytest.mark.parametrize("accountant", [Fourier(), RDP()], ids=repr)
@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize("noise", [0.0093, 0.0044, 0.0028])
def test_more_rounds_never_cost_less(accountant, neighbours, noise) -> None:
    """Moments at large orders were those without sampling."""
    counts = [1, 2, 5, 16, 17, 32, 64, 128, 155]

    found = [
        accountant.epsilon(
            rounds_of(noise, 0.129, count), delta=1e-4, neighbours=neighbours
        )
        for count in counts
    ]

    assert all(x <= y for x, y in itertools.pairwise(found))
    assert all(map(math.isfinite, found))


@pytest.mark.full
@pytest.mark.parametrize("target", [1e4, 2e4, 1e6])
def test_a_large_target_has_room_for_all_rounds(target) -> None:
    noise = calibrate_noise(
        target_epsilon=target,
        delta=1e-4,
        sampling_probability=0.129,
        rounds=155,
    )

    ((step, count),) = rounds_of(noise, 0.129, 155)
    left = rounds_left([], step, target_epsilon=target, delta=1e-4)
    assert count <= left <= 1.1 * count
    few = (1, 2, 16, 17, 64, 154)
    spent = [Fourier().epsilon([(step, n)], delta=1e-4) for n in few]
    assert max(spent) <= target


@pytest.mark.standard
def test_noise_for_a_large_target_takes_few_lines(monkeypatch) -> None:
    """Each takes tenths of a second here, or more."""
    lines = []
    place_near = integral.place_near

    def counted(*arguments):
        lines.append(1)
        return place_near(*arguments)

    monkeypatch.setattr(integral, "place_near", counted)

    plan(
        2000,
        target_epsilon=2e4,
        delta=1e-4,
        epochs=10,
        batch_sizes=[128],
    )

    assert len(lines) <= 20


def test_fixed_size_and_groups_have_bounds() -> None:
    """Those of the release without sampling."""
    event = GaussianSum("sum", 1.0, 0.01)
    fixed = [(Round(FixedSizeWithoutReplacement(10, 100), (event,)), 50)]

    group = Fourier().epsilon(rounds_of(0.01), delta=1e-5, units=3)
    found = Fourier().epsilon(fixed, delta=1e-5)

    assert group < 1.1 * 160 * (3 / 0.01) ** 2 / 2
    assert found < 1.1 * 50 * (2 / 0.01) ** 2 / 2


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_less_noise_than_a_line_takes_costs_more(neighbours) -> None:
    """The lower bound is an attack: the rounds that drew the record."""
    drawn, delta, step = 4, 1e-3, 1 / 0.015
    assert stats.binom.sf(drawn - 1, 160, 0.0625) > 2 * delta
    attack = drawn * step**2 / 2 - drawn * math.log(16)

    found = Fourier().epsilon_bounds(
        rounds_of(0.015), delta=delta, neighbours=neighbours
    )
    more = Fourier().epsilon(
        rounds_of(0.05), delta=delta, neighbours=neighbours
    )

    assert found.lower == 0
    assert max(attack, more) < found.upper < math.inf


def test_a_line_that_is_too_long_leaves_the_bounds_of_a_shorter(
    monkeypatch,
) -> None:
    ledger = rounds_of(0.1904)
    place_near, seen = integral.place_near, []

    def second_is_too_long(*arguments):
        seen.append(arguments)
        if len(seen) > 1:
            raise TooSlowError
        return place_near(*arguments)

    exact = Fourier().epsilon_bounds(ledger, delta=1e-5)
    monkeypatch.setattr(integral, "place_near", second_is_too_long)

    found = Fourier().epsilon_bounds(ledger, delta=1e-5)

    assert found.lower <= exact.upper
    assert exact.lower <= found.upper <= 1.02 * exact.upper


@pytest.mark.parametrize(
    ("records", "delta"), [(2000, 0.5), (2000, 5e-4), (1, 0.6)]
)
def test_a_large_delta_is_refused_by_plans(records, delta) -> None:
    with pytest.raises(ValueError, match="`delta`"):
        plan(
            records,
            target_epsilon=3.0,
            delta=delta,
            epochs=10,
            batch_sizes=[1],
        )
