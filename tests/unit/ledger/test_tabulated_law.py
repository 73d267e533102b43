"""Tables of tails and quantiles, against the formulas of the families."""

import math

import numpy as np
import pytest

from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)
from keras_dp.ledger.events.tfp_noise import tabulated
from tests.noise_table import name_of

NOISES = [
    GaussianNoise(1.0),
    StudentTNoise(1.0, 2.1),
    StudentTNoise(1.0, 5.0),
    StudentTNoise(1.0, 1e6),
    LaplaceNoise(1.0),
    StudentTNoise(1.0, 1.0),
]
# What a word of 64 bits can make, and nearly 1/2.
TAILS = np.r_[2.0 ** -np.linspace(1.01, 65, 2000), 0.5 - 1e-6]
# What the docstrings promise; about 20 times what is seen.
PRECISION = 1e-8
each_noise = pytest.mark.parametrize("noise", NOISES, ids=name_of)


@each_noise
def test_draws_have_the_tails_of_the_law(noise) -> None:
    law = tabulated(noise.standard_log_density)
    sizes = np.exp(law.draws(np.log(-np.log(2 * TAILS))))
    assert np.abs(noise.standard_tail(sizes) / TAILS - 1).max() < PRECISION


@each_noise
def test_moments_are_those_of_the_family(noise) -> None:
    law = tabulated(noise.standard_log_density)
    assert law.fisher_information == pytest.approx(
        noise.standard_fisher_information, rel=1e-9
    )
    # Power 3.1 of the tail is not told from power 3, which has no variance.
    if getattr(noise, "df", 3) > 2.3:
        assert law.variance == pytest.approx(noise.standard_variance, rel=1e-9)
    else:
        assert law.variance == math.inf


def of_power(power):
    """The density is proportional to `exp(-|x|^power)`."""
    constant = math.log(power / 2) - math.lgamma(1 / power)
    return lambda z: constant - z**power


@pytest.mark.parametrize("power", [0.75, 0.9, 1.0, 1.5, 4.0])
def test_the_fisher_information_of_cusps(power) -> None:
    """It is known: `power^2 gamma(2 - 1/power) / gamma(1/power)`."""
    law = tabulated(of_power(power))
    known = power**2 * math.gamma(2 - 1 / power) / math.gamma(1 / power)
    assert law.fisher_information == pytest.approx(known, rel=1e-6)


@pytest.mark.parametrize("power", [0.5, 0.45])
def test_is_infinite_where_it_has_none(power) -> None:
    assert tabulated(of_power(power)).fisher_information == math.inf


def test_a_density_that_is_off_is_refused() -> None:
    noise = GaussianNoise(1.0)
    with pytest.raises(ValueError, match="integrates to 1"):
        tabulated(lambda z: noise.standard_log_density(z) + 1e-7)
    with pytest.raises(ValueError, match="heavier tails"):
        tabulated(
            lambda z: math.log(0.2) - 1.4 * np.log1p(z)  # Its tail is x^-0.4.
        )
