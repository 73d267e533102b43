"""The values that the tests of other accountants expect, run against ours.

Inputs and outputs are from the files named at each table. RDP with the same
conversion is equal to theirs if the best order is in their list, else below.
Their tight accountants are upper bounds, each to an error of its own.
"""

import math

import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.ledger import (
    CoordinateBounds,
    EncodedSum,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)
from keras_dp.ledger.events.noise_families import LaplaceNoise


def sampled(probability: float, noise: float, count: int):
    query = GaussianSum("sum", 1.0, noise)
    return [(Round(PoissonSampling(probability), (query,)), count)]


def laplace(probability: float, noise: float, count: int):
    bounds = CoordinateBounds.from_arrays([[1.0]], [1])
    query = EncodedSum("sum", bounds, LaplaceNoise(noise))
    return [(Round(PoissonSampling(probability), (query,)), count)]


# Conversion, q, z, rounds, delta, epsilon, how far below it ours may be.
RDP_EPSILONS = [
    # dp_accounting/rdp/rdp_privacy_accountant_test.py; orders 0.001 apart.
    ("improved", 1.0, 4.530877117, 1, 1e-6, 1.0, 1e-7),
    # opacus/tests/accountants_test.py; orders 0.1 and 1 apart.
    ("improved", 0.04, 1.5, 2250, 1e-5, 7.32911117143, 2e-4),
    # tensorflow_privacy/privacy/analysis: compute_dp_sgd_privacy_test.py,
    # and compute_noise_from_budget_test.py of the classic conversion; orders
    # 1 apart. In the third the best order is next to 1, and not in the list.
    ("improved", 150 / 60_000, 1.3, 6_000, 1e-5, 0.7242234026109595, 3e-4),
    ("improved", 1e-3, 1.0, 30_000, 1e-7, 1.4154988495444842, 2e-3),
    ("improved", 1024 / 1e8, 0.1, 976_563, 1e-7, 5907982.3113978775, 1),
    ("classic", 150 / 60_000, 1.3, 6_000, 1e-5, 0.941870567, 2e-3),
    ("classic", 1e-3, 1.0, 30_000, 1e-7, 1.70928734, 4e-4),
    ("improved", 1.0, 0.7, 2, 1e-5, 10.8602036, 3e-4),
    ("improved", 1.0, 0.35, 2, 1e-5, 26.2880374, 7e-4),
    ("improved", 0.01, 0.7, 120, 1e-5, 3.2392676, 7e-4),
    ("improved", 0.01, 0.35, 120, 1e-5, 22.6248601, 0.014),
]


@pytest.mark.parametrize(
    ("conversion", "q", "z", "count", "delta", "theirs", "below"), RDP_EPSILONS
)
def test_rdp_epsilons(conversion, q, z, count, delta, theirs, below) -> None:
    """Never above, by more than the digits that theirs are printed with."""
    ours = RDP(conversion).epsilon(sampled(q, z, count), delta=delta)

    assert theirs * (1 - below) <= ours <= theirs * (1 + 2e-8)


# q, z, rounds, delta, the least epsilon, and by what share of it RDP is above.
# The least one is by a contour integral with an error bound, in 25 digits.
TRUTHS = [
    (0.01, 4.0, 10_000, 1e-5, 0.946867, 0.094),
    (256 / 60_000, 0.7, 12_000, 1e-5, 6.0226, 0.115),
    (256 / 60_000, 1.0, 8_000, 1e-5, 2.0802, 0.098),
    (256 / 60_000, 1.1, 8_000, 1e-5, 1.7535, 0.095),
    (256 / 60_000, 1.3, 8_000, 1e-5, 1.3420, 0.095),
    # Opacus 0.1715, dp_accounting 0.1267, by their lists of orders.
    (0.01, 100.0, 100_000, 1e-6, 0.1159, 0.093),
    (1e-4, 0.6, 1_000_000, 1e-8, 2.86832, 0.334),
    # Ten tensors of Three Tools, all in one sample.
    (128 / 50_000, 0.7225 / 10**0.5, 23_437, 5e4**-1.1, 421.0, 0.068),
]


@pytest.mark.parametrize(
    ("q", "z", "count", "delta", "truth", "excess"), TRUTHS
)
def test_rdp_is_above_the_truth_by_what_it_is_known_to_be(
    q, z, count, delta, truth, excess
) -> None:
    epsilon = RDP().epsilon(sampled(q, z, count), delta=delta)

    assert truth < epsilon < truth * (1 + excess)


@pytest.mark.parametrize("noise", [0.3, 1.0, 7.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-12])
def test_the_classic_conversion_of_a_gaussian(noise, delta) -> None:
    """`1/(2 z^2) + sqrt(2 log(1/delta)) / z`, the least over all real orders.

    Mironov (2017), arXiv:1702.07476v3, Proposition 3 and Corollary 3. To 1e-7
    by the search, above it by the rounding up.
    """
    ledger = sampled(1.0, noise, 1)
    mean = 1 / (2 * noise**2)
    expected = mean + math.sqrt(-2 * math.log(delta)) / noise

    epsilon = RDP("classic").epsilon(ledger, delta=delta)
    back = RDP("classic").delta(ledger, epsilon=expected)

    assert expected <= epsilon <= expected * (1 + 1e-7)
    assert delta * (1 - 1e-12) <= back <= delta * (1 + 1e-6)
    assert RDP().epsilon(ledger, delta=delta) < epsilon
    assert RDP().delta(ledger, epsilon=expected) < back


def test_conversions_are_told_apart() -> None:
    classic = RDP(conversion="classic")

    assert RDP() == RDP(conversion="improved") != classic
    assert (repr(RDP()), RDP().name) == ("RDP()", "RDP")
    assert repr(classic) == "RDP(conversion='classic')"
    assert classic.name == "RDP (classic conversion)"
    with pytest.raises(ValueError, match="`conversion` must"):
        RDP(conversion="old")


# q, z, rounds, epsilon, delta, the error of both in their tests.
PLD_PAIRS = [
    # dp_accounting/pld/pld_privacy_accountant_test.py.
    (1.0, math.sqrt(3), 3, 1.0, 0.126936, 1e-3),
    (0.2, 0.5, 3, 1.0, 0.15594, 1e-3),
    # tensorflow_privacy/privacy/analysis/compute_dp_sgd_privacy_test.py. The
    # grid is 1e-4 wide; theirs are upper bounds.
    (1.0, 0.7, 2, 10.1224946, 1e-5, 2e-4),
    (1.0, 0.35, 2, 24.7160779, 1e-5, 2e-4),
    (0.01, 0.7, 120, 2.4612381, 1e-5, 2e-4),
    (0.01, 0.35, 120, 18.6977407, 1e-5, 2e-4),
    (1.0, 1.0, 5, 12.595, 1e-6, 6e-4),
    (64 / 10_000, 1.0, 782, 1.199, 1e-6, 6e-4),
]


@pytest.mark.parametrize(
    ("q", "z", "count", "epsilon", "delta", "error"), PLD_PAIRS
)
def test_dp_accounting_pld(q, z, count, epsilon, delta, error) -> None:
    bounds = Fourier().epsilon_bounds(sampled(q, z, count), delta=delta)

    assert bounds.lower <= bounds.upper
    assert bounds.lower >= epsilon - error
    assert bounds.upper <= epsilon + error


@pytest.mark.parametrize(
    ("q", "z", "epsilon", "delta"),
    [(1.0, math.sqrt(3), 1.0, 0.126936), (0.2, 0.5, 1.0, 0.15594)],
)
def test_dp_accounting_pld_deltas(q, z, epsilon, delta) -> None:
    """To the six and five digits that are printed."""
    bounds = Fourier().delta_bounds(sampled(q, z, 3), epsilon=epsilon)

    assert bounds.lower >= delta - 1e-5
    assert bounds.upper <= delta + 1e-5


@pytest.mark.parametrize(
    ("ledger", "epsilon"),
    [
        ([*laplace(1.0, 1.0, 3), *laplace(1.0, 2.0, 2)], 4.0),
        (laplace(0.2, 0.5, 3), 3 * math.log1p(0.2 * math.expm1(2.0))),
    ],
)
def test_dp_accounting_pld_laplace(ledger, epsilon) -> None:
    """Pure privacy: 4 and 2.46964, at a delta of 1e-14 that it grants.

    dp_accounting/pld/pld_privacy_accountant_test.py, to the 1e-3 of it.
    Moments of finite order are above, by the logarithm of delta over the
    largest of them.
    """
    ours = RDP().epsilon(ledger, delta=1e-14)

    assert epsilon - 1e-3 < ours <= epsilon + math.log(1e14) / 255


# sigma, q, rounds, epsilon at delta 1e-6: the upper bounds of prv_accountant
# at an error of 0.01, as in opacus/tests/prv_accountant.py.
PRV_EPSILONS = [
    (0.8, 0.001, 100, 0.270403364),
    (3.0, 0.001, 100, 0.0215200934),
    (0.8, 0.05, 100, 6.74105193),
    (3.0, 0.05, 100, 0.767933789),
    (0.8, 0.2, 100, 24.3336641),
    (3.0, 0.2, 100, 3.38122051),
    (0.8, 0.001, 1000, 0.477771266),
    (3.0, 0.001, 1000, 0.0476159308),
    (0.8, 0.05, 1000, 19.5258428),
    (3.0, 0.05, 1000, 2.52757432),
    (0.8, 0.001, 20000, 1.29600925),
    (3.0, 0.001, 20000, 0.194031030),
    (0.8, 0.05, 20000, 140.655209),
    (3.0, 0.05, 20000, 13.9611146),
    (0.8, 0.001, 50000, 2.03451480),
    (3.0, 0.001, 50000, 0.309694161),
    (0.8, 0.05, 50000, 291.384325),
    (3.0, 0.05, 50000, 24.9420056),
    (0.8, 0.001, 100000, 2.92462211),
    (3.0, 0.001, 100000, 0.443671720),
]


@pytest.mark.parametrize(("z", "q", "count", "theirs"), PRV_EPSILONS)
def test_prv_accountant(z, q, count, theirs) -> None:
    """Theirs is at most 0.02 above the truth, and not below it."""
    bounds = Fourier().epsilon_bounds(sampled(q, z, count), delta=1e-6)

    assert theirs - 0.02 - 1e-8 <= bounds.lower <= bounds.upper
    assert bounds.upper <= theirs + 1e-8


@pytest.mark.parametrize(
    "rounds",
    [[(100.0, 10_000)], [(100.0, 10_001)], [(10.0, 50), (5.0, 50)]],
)
def test_prv_accountant_without_sampling(rounds) -> None:
    """Deltas at epsilon 4 by their closed form, microsoft/prv_accountant,
    tests/test_accountant.py.
    """
    ledger = [
        (Round(FullDataset(), (GaussianSum("sum", 1.0, noise),)), count)
        for noise, count in rounds
    ]
    mean = math.sqrt(sum(count / noise**2 for noise, count in rounds))
    theirs = (
        math.erfc((4 / mean - mean / 2) / math.sqrt(2)) / 2
        - math.exp(4) * math.erfc((4 / mean + mean / 2) / math.sqrt(2)) / 2
    )

    bounds = Fourier().delta_bounds(ledger, epsilon=4.0)

    assert bounds.lower == pytest.approx(theirs, rel=1e-8)
    assert bounds.upper == pytest.approx(theirs, rel=1e-8)
