"""Rounds with next to no noise: bounds, and the promise of a plan."""

import itertools
import math

import numpy as np
import pytest
from scipy import special, stats

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants.compose import integral, told_rounds
from keras_dp.errors import TooSlowError
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)
from keras_dp.planning import calibrate_noise, plan, rounds_left

RELATIONS = ["add_or_remove_one", "replace_one"]


def rounds_of(noise, probability=0.0625, count=160):
    event = GaussianSum("sum", 1.0, noise)
    return [(Round(PoissonSampling(probability), (event,)), count)]


def by_line(monkeypatch, question):
    """Returns what there is without the bounds of told rounds."""
    with monkeypatch.context() as patch:
        patch.setattr(told_rounds, "bounds_of", lambda _, other: other())
        return question()


@pytest.mark.parametrize("neighbours", RELATIONS)
@pytest.mark.parametrize(
    ("noise", "probability", "count", "delta"),
    [
        (0.06, 0.0625, 160, 1e-3),
        (0.05, 0.004267, 2340, 1e-8),
        (0.05, 0.7, 50, 1e-5),
        (0.03, 0.0625, 40, 0.1),
    ],
)
def test_bounds_agree_with_those_of_the_line(
    monkeypatch, neighbours, noise, probability, count, delta
) -> None:
    ledger = rounds_of(noise, probability, count)

    def bounds():
        return Fourier().epsilon_bounds(
            ledger, delta=delta, neighbours=neighbours
        )

    found, line = bounds(), by_line(monkeypatch, bounds)

    assert found.method == told_rounds.METHOD
    assert found.lower <= line.upper
    assert line.lower <= found.upper <= 1.01 * found.lower
    # As near to the line as the rounds that tell where the record was allow.
    assert found.upper <= line.upper * (1 + 1e-4)


@pytest.mark.parametrize("neighbours", RELATIONS)
def test_bounds_on_delta_agree_with_those_of_the_line(
    monkeypatch, neighbours
) -> None:
    ledger = rounds_of(0.06)

    def bounds():
        return Fourier().delta_bounds(
            ledger, epsilon=2800.0, neighbours=neighbours
        )

    found, line = bounds(), by_line(monkeypatch, bounds)

    assert found.method == told_rounds.METHOD
    assert found.lower <= line.upper
    assert line.lower <= found.upper <= 1.5 * line.upper


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

    assert found.method == told_rounds.METHOD
    assert found.lower <= true * (1 + 1e-3)  # The kink of the integrand.
    assert true * (1 - 1e-3) <= found.upper <= true * 1.01


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


def test_noise_for_a_large_target_takes_few_lines(monkeypatch) -> None:
    """Each line takes a second here, and most of them were in vain."""
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
        batch_sizes=[32, 64, 128, 256],
    )

    assert len(lines) <= 8


def test_rounds_before_count(monkeypatch) -> None:
    """One run of much noise, one of full samples, one of next to none."""
    sums = [GaussianSum("sum", 1.0, z) for z in (2.0, 1.0, 0.01)]
    samplings = [PoissonSampling(0.1), FullDataset(), PoissonSampling(0.1)]
    ledger = [
        (Round(sampling, (event,)), count)
        for sampling, event, count in zip(
            samplings, sums, (100, 5, 50), strict=True
        )
    ]

    found = Fourier().epsilon_bounds(ledger, delta=1e-5)
    last = Fourier().epsilon_bounds(ledger[2:], delta=1e-5)

    assert found.method == told_rounds.METHOD
    assert last.lower <= found.upper
    assert found.lower <= found.upper <= 1.01 * found.lower


def test_fixed_size_and_groups_have_bounds() -> None:
    event = GaussianSum("sum", 1.0, 0.01)
    fixed = [(Round(FixedSizeWithoutReplacement(10, 100), (event,)), 50)]
    group = Fourier().epsilon_bounds(rounds_of(0.01), delta=1e-5, units=3)

    found = Fourier().epsilon_bounds(fixed, delta=1e-5)

    for bounds in (found, group):
        assert bounds.method == told_rounds.METHOD
        assert 0 < bounds.lower <= bounds.upper <= 1.01 * bounds.lower


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
