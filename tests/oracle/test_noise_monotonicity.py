"""Moving a symmetric, unimodal law further costs more; another may cost less.

`I_k(t)` is the integral of `(z(x - t) / z(x))^k z(x)`: `log I_k / (k - 1)` is
the Rényi divergence of order k of noise moved by t, of one coordinate.
"""

import math

import numpy as np
import pytest

from tests.noise_table import STANDARD, name_of

each_noise = pytest.mark.parametrize("noise", STANDARD, ids=name_of)
MOVES = [0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.2, 3.0, 4.0]
ORDERS = range(2, 9)


def nodes(t):
    """Returns points and weights for the line, with kinks at 0 and `t`."""
    # Beyond the kinks x is exp(u - exp(-u)), by the trapezoidal rule in u.
    u = np.linspace(-4.5, 40, 3000)
    beyond = np.exp(u - np.exp(-u))
    falls = beyond * (1 + np.exp(-u)) * (u[1] - u[0])
    x, w = np.polynomial.legendre.leggauss(200)
    between = (x + 1) / 2 * t
    return (
        np.concatenate([-beyond[::-1], between, t + beyond]),
        np.concatenate([falls[::-1], w / 2 * t, falls]),
    )


def moment(noise, order, t):
    """Returns `I_order(t)`."""
    x, weights = nodes(t)
    own, moved = noise.log_density(x), noise.log_density(x - t)
    logs = order * moved - (order - 1) * own
    return np.exp(np.where(np.isfinite(logs), logs, -np.inf)) @ weights


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(k, marks=getattr(pytest.mark, tier))
        for k in ORDERS
        for tier in ["full" if k in (2, 8) else "nightly"]
    ],
)
@each_noise
def test_moments_rise_with_the_distance(noise, order):
    each = [moment(noise, order, t) for t in MOVES]

    assert each[0] > 1
    # Quadrature is good to 1e-11; the least rise from one to the next is 1e-4.
    assert (np.diff(each) > 1e-5).all()


@pytest.mark.parametrize("order", ORDERS)
@each_noise
def test_quadrature_integrates_what_is_known(noise, order):
    assert moment(noise, 1, 1.0) == pytest.approx(1, abs=1e-11)
    if name_of(noise) == "GaussianNoise":
        expected = np.exp(order * (order - 1) / 2 * 0.7**2)
        assert moment(noise, order, 0.7) == pytest.approx(expected, rel=1e-11)


class RippledLaplace:
    """Symmetric, and not unimodal."""

    # 2 Re of the integral of exp((10i - 1/10) x) over x > 0 is 0.2 / 100.01.
    mass = 20 + 0.95 * 0.2 / 100.01

    def log_density(self, x):
        ripple = np.log1p(0.95 * np.cos(10 * x))
        return ripple - np.abs(x) / 10 - math.log(self.mass)


class Gumbel:
    """Unimodal, and not symmetric."""

    def log_density(self, x):
        with np.errstate(over="ignore", invalid="ignore"):
            fall = -x - np.exp(-x)
        return np.where(x < -700, -np.inf, fall)


def direct(noise, t):
    """Returns `I_2(t)` by a plain sum, for it has no limit of smoothness."""
    x = np.linspace(-700, 700, 4_000_001)
    logs = 2 * noise.log_density(x - t) - noise.log_density(x)
    return np.exp(logs).sum() * (x[1] - x[0])


def test_rippled_noise_can_cost_less_further_away():
    """Control: a bound on a coordinate would not be one on its cost."""
    noise = RippledLaplace()

    near, far = direct(noise, 0.314), direct(noise, 0.628)

    assert near == pytest.approx(9.83, abs=0.005)
    assert far == pytest.approx(1.0039, abs=5e-5)


def test_asymmetric_noise_costs_more_in_one_direction():
    """Control: 1.67 one way, and 1e46 the other."""
    x = np.linspace(-6, 60, 400_001)
    noise = Gumbel()

    def one_way(t):
        logs = 2 * noise.log_density(x - t) - noise.log_density(x)
        return np.exp(logs).sum() * (x[1] - x[0])

    assert one_way(1.0) == pytest.approx(1.67, abs=0.01)
    assert one_way(-1.0) > 1e40
