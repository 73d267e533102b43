"""Rounds that hardly ever draw the record, against what an attack reaches.

With next to no noise an attack sees whether the record was drawn: then delta
is the chance of that, at every epsilon that a float can tell.
"""

import mpmath as mp
import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
    TruncatedPoissonSampling,
)
from tests.replays import replays

# Sampling, relation, and the chance that a round draws the record.
CASES = [
    (PoissonSampling(1e-6), "add_or_remove_one", 1e-6),
    (PoissonSampling(1e-6), "zero_out", 1e-6),
    (PoissonSampling(1e-6), "replace_one", 1e-6),
    (PoissonSampling(0.01), "replace_one", 0.01),
    (TruncatedPoissonSampling(1e-6, 1000, 60), "replace_one", 1e-6),
    (FixedSizeWithoutReplacement(3, 3_000_000), "replace_one", 1e-6),
]
ACCOUNTANTS = [RDP(), RDP(conversion="moments"), Fourier()]


def rounds(sampling, noise, count):
    return [(Round(sampling, (GaussianSum("sum", 1.0, noise),)), count)]


def chance_of(each, count):
    """`1 - (1 - q)^T`, in 40 digits."""
    with mp.workdps(40):
        return float(1 - (1 - mp.mpf(each)) ** count)


REPLAYED = [
    (accountant, *case)
    for accountant in ACCOUNTANTS
    for case in CASES
    if replays(accountant, rounds(case[0], 1.0, 1), neighbours=case[1])
]
over_cases = pytest.mark.parametrize(
    ("accountant", "sampling", "neighbours", "chance"), REPLAYED
)


@over_cases
@pytest.mark.parametrize("noise", [0.002, 1.0])
@pytest.mark.parametrize("count", [10])
def test_nothing_is_spent_where_delta_covers_every_draw(
    accountant, sampling, neighbours, chance, noise, count
) -> None:
    """Epsilon is 0 just above the chance of a draw; delta is at most that."""
    ledger = rounds(sampling, noise, count)
    drawn = chance_of(chance, count)

    epsilon = accountant.epsilon(
        ledger, delta=drawn * (1 + 1e-12), neighbours=neighbours
    )
    delta = accountant.delta(ledger, epsilon=0.0, neighbours=neighbours)

    assert epsilon == 0
    assert delta <= drawn * (1 + 1e-12)


@over_cases
def test_control_less_delta_does_not_cover_them(
    accountant, sampling, neighbours, chance
) -> None:
    """The attack: is an output nearer to that with the record?

    It is right but for 50 standard deviations. So it reaches the chance of a
    draw at every epsilon up to 1,000.
    """
    ledger = rounds(sampling, 0.01, 10)
    drawn = chance_of(chance, 10)

    delta = accountant.delta(ledger, epsilon=1000.0, neighbours=neighbours)
    epsilon = accountant.epsilon(
        ledger, delta=0.999 * drawn, neighbours=neighbours
    )

    assert delta >= drawn * (1 - 1e-12)
    assert epsilon > 1000


@pytest.mark.parametrize("neighbours", ["add_or_remove_one", "replace_one"])
def test_fourier_says_the_same_from_both_sides(neighbours) -> None:
    ledger = rounds(PoissonSampling(1e-6), 0.01, 10)
    drawn = chance_of(1e-6, 10)

    bounds = Fourier().epsilon_bounds(
        ledger, delta=2 * drawn, neighbours=neighbours
    )
    deltas = Fourier().delta_bounds(ledger, epsilon=9.0, neighbours=neighbours)

    assert bounds == (0, 0)
    assert deltas.lower <= drawn <= deltas.upper <= drawn * (1 + 1e-12)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("delta", [2e-5, 1e-3])
def test_rounds_over_all_records_are_left(accountant, delta) -> None:
    """A release of every record beside rounds that tell who was drawn.

    `delta(e) = (1-c) g(e - log(1-c)) + c` with `g` of the release, but for the
    noise that no attack mistakes: what is not drawn has the chance `1-c`.
    """
    release = rounds(FullDataset(), 2.0, 1)
    ledger = [*release, *rounds(PoissonSampling(1e-6), 0.01, 10)]
    drawn = chance_of(1e-6, 10)

    epsilon = accountant.epsilon(ledger, delta=delta)

    with mp.workdps(30):
        mu, at = mp.mpf(1) / 2, mp.mpf(epsilon) - mp.log1p(-drawn)
        alone = mp.ncdf(mu / 2 - at / mu)
        alone -= mp.exp(at) * mp.ncdf(-mu / 2 - at / mu)
        assert (1 - drawn) * alone + drawn <= delta
    assert epsilon <= accountant.epsilon(release, delta=0.99 * (delta - drawn))
    # The release's own delta, and the whole chance that the record is drawn.
    most = drawn + accountant.delta(release, epsilon=2.0)
    found = accountant.delta(ledger, epsilon=2.0)
    assert most * (1 - 1e-4) <= found <= most * (1 + 1e-9)


def test_each_of_a_group_may_be_drawn() -> None:
    ledger = rounds(PoissonSampling(1e-6), 0.01, 10)
    drawn = chance_of(1e-6, 30)

    free, control = (
        Fourier().epsilon(ledger, units=3, delta=delta)
        for delta in (1.0001 * drawn, 0.999 * drawn)
    )

    assert free == 0
    assert control > 100
