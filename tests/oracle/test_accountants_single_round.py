"""One Gaussian round, sampled or not, against its definition in many digits."""

import math

import mpmath as mp
import numpy as np
import pytest

from keras_dp.accountants.compose import root
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.curve import Curve
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.gaussian_profile import log_delta_bounds
from keras_dp.accountants.loss.mixture import MixtureLoss

NOISE_MULTIPLIERS = [0.05, 0.3, 1.0, 10.0, 1000.0]
PROBABILITIES = [1e-12, 1e-5, 0.01, 0.5, 0.999, 1.0]


def delta_in_many_digits(law: MixtureLoss, epsilon: float) -> mp.mpf:
    """`P(l > epsilon) - e^epsilon Q(l > epsilon)` on the half-line."""
    with mp.workdps(80):
        z, q = mp.mpf(law.noise_multiplier), mp.mpf(law.probabilities[1])
        eps = mp.mpf(epsilon)
        bound = mp.exp(-eps if law.is_added else eps)
        if bound <= 1 - q:
            return mp.mpf(0) if law.is_added else 1 - bound
        edge = z * mp.log((bound - (1 - q)) / q) + 1 / (2 * z)
        if law.is_added:
            single = mp.ncdf(edge)
            mixed = (1 - q) * single + q * mp.ncdf(edge - 1 / z)
            return single - mp.exp(eps) * mixed
        single = mp.ncdf(-edge)
        mixed = (1 - q) * single + q * mp.ncdf(1 / z - edge)
        return mixed - mp.exp(eps) * single


def law_of(noise_multiplier, probability, is_added) -> MixtureLoss:
    return MixtureLoss(
        noise_multiplier, (1 - probability, probability), is_added
    )


def epsilon_bounds(law, log_delta):
    side = Curve(Composition((law,), np.ones(1)))
    return root.epsilon_bounds(side, log_delta, 1e-12)[:2]


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("noise_multiplier", NOISE_MULTIPLIERS)
def test_epsilon_bounds_hold_epsilon(
    noise_multiplier, probability, is_added
) -> None:
    """And differ by 1e-8 of it, most of them by 1e-11."""
    law = law_of(noise_multiplier, probability, is_added)

    for log_delta in [-0.01, -1.0, -5.0, -11.5, -69.0, -500.0]:
        lower, upper = epsilon_bounds(law, log_delta)

        assert 0 <= lower <= upper <= lower * (1 + 1e-8)
        wanted = mp.exp(log_delta)
        assert delta_in_many_digits(law, upper) <= wanted
        if lower > 0:
            assert delta_in_many_digits(law, lower) >= wanted


@pytest.mark.parametrize("is_added", [False, True])
@pytest.mark.parametrize("probability", PROBABILITIES)
@pytest.mark.parametrize("noise_multiplier", NOISE_MULTIPLIERS)
def test_delta_bounds_hold_delta(
    noise_multiplier, probability, is_added
) -> None:
    law = law_of(noise_multiplier, probability, is_added)

    for log_delta in [-0.01, -1.0, -11.5, -69.0]:
        epsilon = epsilon_bounds(law, log_delta)[1]
        for share in [0.0, 0.5, 1.0]:
            lower, upper = log_delta_bounds(law, share * epsilon)
            delta = delta_in_many_digits(law, share * epsilon)
            true = mp.log(delta) if delta > 0 else -mp.inf

            assert lower <= true <= upper


def test_delta_is_nothing_beyond_the_largest_loss() -> None:
    """Adding a record has losses below -log(1 - q) only."""
    law = law_of(1.0, 0.5, is_added=True)

    assert log_delta_bounds(law, 0.694) == (-math.inf, -math.inf)
    assert log_delta_bounds(law, 0.693)[0] > -math.inf
    assert epsilon_bounds(law, -1e4)[1] <= math.log(2) * (1 + 1e-8)


def log_delta_in_many_digits(sensitivity, epsilon) -> float:
    """The formula of Balle and Wang, Theorem 8, as it stands."""
    with mp.workdps(120):
        mu, eps = mp.mpf(sensitivity), mp.mpf(epsilon)
        delta = mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(
            -mu / 2 - eps / mu
        )
        return float(mp.log(delta))


@pytest.mark.parametrize(
    "sensitivity",
    [1e-10, 1e-3, 0.5, 0.999, 1.0, 1.001, 3.0, 30.0, 12345.678, 9876543.2],
)
@pytest.mark.parametrize("quantile", [-0.4, 0.0, 0.3, 1.0, 4.0, 12.0, 37.0])
def test_delta_of_a_gaussian(sensitivity, quantile) -> None:
    """Rounded up by 1e-12 of delta and 1e-15 of its log, never down.

    The slack is for what the rounding of epsilon does to the quantile.
    """
    epsilon = max(0.0, sensitivity * (quantile + sensitivity / 2))

    got = float(gaussian_profile.log_delta(sensitivity, epsilon))

    true = log_delta_in_many_digits(sensitivity, epsilon)
    slack = 1e-15 * (1 + abs(quantile)) * (abs(quantile) + sensitivity)
    assert true <= got <= true + 2e-12 + 3e-15 * abs(true) + slack
