"""The central limit: its formula, published values, and that it is none."""

import math

import mpmath as mp
import pytest

from keras_dp.accountants import AnalyticGaussian
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.gdp import GDP
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    Round,
)


def sampled(probability: float, noise: float, count: int):
    query = GaussianSum("sum", 1.0, noise)
    return [(Round(PoissonSampling(probability), (query,)), count)]


def delta_in_many_digits(mean, epsilon) -> float:
    """Dong, Roth, Su (2019), Corollary 2.13."""
    with mp.workdps(60):
        mean, epsilon = mp.mpf(mean), mp.mpf(epsilon)
        return float(
            mp.ncdf(-epsilon / mean + mean / 2)
            - mp.exp(epsilon) * mp.ncdf(-epsilon / mean - mean / 2)
        )


def mean_in_many_digits(probability, noise, count) -> mp.mpf:
    """Bu, Dong, Long, Su (2020), section 3: `p sqrt(T (e^(1/s^2) - 1))`."""
    with mp.workdps(60):
        growth = mp.expm1(1 / mp.mpf(noise) ** 2)
        return mp.mpf(probability) * mp.sqrt(count * growth)


@pytest.mark.parametrize(
    ("probability", "noise", "count"),
    [(0.01, 4.0, 10_000), (1e-4, 0.6, 10**6), (0.3, 100.0, 10), (0.9, 0.5, 3)],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_it_is_the_formula(probability, noise, count, epsilon) -> None:
    """In both directions; to the 1e-11 that is rounded up by.

    Back from delta only below 0.9, as 1 - delta has to keep its digits.
    """
    ledger = sampled(probability, noise, count)
    mean = mean_in_many_digits(probability, noise, count)

    delta = GDP().delta(ledger, epsilon=epsilon)

    # No delta is above the chance that the record is drawn at all.
    drawn = -math.expm1(count * math.log1p(-probability))
    expected = min(drawn, delta_in_many_digits(mean, epsilon))
    assert delta == pytest.approx(expected, rel=1e-10)
    if epsilon and 1e-300 < delta < 0.9:
        back = GDP().epsilon(ledger, delta=delta)
        assert back == pytest.approx(epsilon, rel=1e-9)


def test_different_rounds_add_like_squares() -> None:
    """Sampled ones and others, counted or one by one; to the rounding up."""
    full = Round(FullDataset(), (GaussianSum("sum", 1.0, 20.0),))
    ledger = [*sampled(0.01, 1.0, 500), *sampled(0.02, 3.0, 70), (full, 5)]
    with mp.workdps(60):
        mean = mp.sqrt(
            mean_in_many_digits(0.01, 1.0, 500) ** 2
            + mean_in_many_digits(0.02, 3.0, 70) ** 2
            + mp.mpf(5) / 400
        )

    delta = GDP().delta(ledger, epsilon=1.0)

    assert delta == pytest.approx(delta_in_many_digits(mean, 1.0), rel=1e-10)


def test_without_sampling_it_is_exact() -> None:
    """There the limit is the law itself."""
    full = Round(FullDataset(), (GaussianSum("sum", 1.0, 3.0),))

    assert GDP().epsilon([(full, 7)], delta=1e-6) == pytest.approx(
        AnalyticGaussian().epsilon([(full, 7)], delta=1e-6), rel=1e-12
    )


@pytest.mark.parametrize(
    ("noise", "epochs", "mean", "epsilon"),
    [(1.06, 20, 0.35, 1.34), (0.638, 70, 1.78, 8.68)],
)
def test_published_values(noise, epochs, mean, epsilon) -> None:
    """Bu, Dong, Long, Su (2020), figure 4: MNIST, batch 256, delta 1e-5.

    To half a percent: the noise multipliers there have three digits.
    """
    probability = 256 / 60_000
    ledger = sampled(probability, noise, round(epochs / probability))

    got = GDP().epsilon(ledger, delta=1e-5)

    limit = mean_in_many_digits(probability, noise, round(epochs / probability))
    assert float(limit) == pytest.approx(mean, rel=5e-3)
    assert got == pytest.approx(epsilon, rel=5e-3)


def test_what_opacus_publishes() -> None:
    """Between 6.59 and 6.6: opacus/tests/accountants_test.py, v1.6."""
    ledger = sampled(0.04, 1.5, 2249)

    assert 6.59 < GDP().epsilon(ledger, delta=1e-5) < 6.6


@pytest.mark.parametrize(
    ("probability", "noise", "count", "delta", "truth", "share"),
    [
        (0.01, 4.0, 10_000, 1e-5, 0.946867, 0.996),
        (1e-4, 0.6, 1_000_000, 1e-8, 2.86832, 0.73),
        (1e-5, 1.0, 1_000_000, 1e-9, 0.0651, 0.996),
    ],
)
def test_it_is_below_the_truth(
    probability, noise, count, delta, truth, share
) -> None:
    """It is no bound. The truth is by a contour integral of another code."""
    epsilon = GDP().epsilon(sampled(probability, noise, count), delta=delta)

    assert epsilon < truth * share


def test_one_round_is_below_an_attack_that_works() -> None:
    """Event: the output exceeds 3.6. q = 0.01, z = 1, delta = 1e-5.

    The limit allows epsilon 0.037. The event shows that it is above 0.19.
    """
    delta, threshold = 1e-5, 3.6
    epsilon = GDP().epsilon(sampled(0.01, 1.0, 1), delta=delta)

    absent = float(mp.ncdf(-threshold))
    present = 0.99 * absent + 0.01 * float(mp.ncdf(1 - threshold))
    assert present - math.exp(0.19) * absent > delta
    assert epsilon == pytest.approx(0.0368, abs=1e-4)


def test_it_says_that_it_is_no_bound() -> None:
    assert GDP().is_bound is False
    assert Accountant.is_bound is True
    assert "approximate" in GDP().name
    assert "none" in GDP.__doc__.partition("Guarantee:")[2][:20]


@pytest.mark.parametrize("noise", [1e-300, 1e-3, 0.03, 0.3, 1e3, 1e300])
@pytest.mark.parametrize("probability", [1e-300, 1e-9, 0.5, 1.0])
@pytest.mark.parametrize("count", [1, 10**18])
def test_no_mean_is_too_large_or_too_small(noise, probability, count) -> None:
    """No bracket to fall out of, no overflow; it never rises with delta."""
    ledger = sampled(probability, noise, count)

    epsilons = [GDP().epsilon(ledger, delta=d) for d in (1e-300, 1e-5, 0.5)]
    delta = GDP().delta(ledger, epsilon=1.0)

    assert all(epsilon >= 0 for epsilon in epsilons)
    assert epsilons == sorted(epsilons, reverse=True)
    assert 0 < delta <= 1


def test_it_knows_gaussians_only() -> None:
    with pytest.raises(UnsupportedEventError):
        GDP().epsilon(
            sampled(0.1, 1.0, 1), delta=1e-5, neighbours="replace_one"
        )
