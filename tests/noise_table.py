"""Noise laws under test, from their definitions, and laws to be refused."""

import dataclasses
import math

import mpmath as mp
import numpy as np

from keras_dp.ledger import NoiseDistribution
from keras_dp.ledger.events.noise_families import (
    CauchyNoise,
    GaussianNoise,
    HyperbolicSecantNoise,
    LaplaceNoise,
    LogisticNoise,
    StudentTNoise,
)
from keras_dp.ledger.events.variance_gamma_noise import VarianceGammaNoise

STANDARD = [
    GaussianNoise(1.0),
    StudentTNoise(1.0, 2.1),
    StudentTNoise(1.0, 3.0),
    StudentTNoise(1.0, 5.0),
    StudentTNoise(1.0, 9.0),
    StudentTNoise(1.0, 1e6),
    LaplaceNoise(1.0),
    CauchyNoise(1.0),
    LogisticNoise(1.0),
    HyperbolicSecantNoise(1.0),
    VarianceGammaNoise(1.0, 1),
    VarianceGammaNoise(1.0, 2),
    VarianceGammaNoise(1.0, 7),
    VarianceGammaNoise(1.0, 100),
]


def name_of(noise):
    """Returns the name of a test."""
    fields = dataclasses.fields(noise)[1:]
    return "-".join(
        [type(noise).__name__]
        + [f"{getattr(noise, field.name):g}" for field in fields]
    )


def log_density(noise, x):
    """Returns the log-density as textbooks have it, to mpmath's precision."""
    s = mp.mpf(noise.scale)
    z = abs(mp.mpf(x)) / s
    if isinstance(noise, GaussianNoise):
        log = -z * z / 2 - mp.log(2 * mp.pi) / 2
    elif isinstance(noise, StudentTNoise):
        df = mp.mpf(noise.df)
        log = (
            mp.loggamma((df + 1) / 2)
            - mp.loggamma(df / 2)
            - mp.log(df * mp.pi) / 2
            - (df + 1) / 2 * mp.log1p(z * z / df)
        )
    elif isinstance(noise, LaplaceNoise):
        log = -z - mp.log(2)
    elif isinstance(noise, CauchyNoise):
        log = -mp.log(mp.pi) - mp.log1p(z * z)
    elif isinstance(noise, LogisticNoise):
        log = -z - 2 * mp.log1p(mp.exp(-z))
    elif isinstance(noise, HyperbolicSecantNoise):
        log = -z - mp.log1p(mp.exp(-2 * z)) + mp.log(2 / mp.pi)
    else:
        log = _variance_gamma_log_density(noise.shape, z)
    return log - mp.log(s)


def _variance_gamma_log_density(shape, z):
    """By a Bessel function of the second kind."""
    order = mp.mpf(shape) - mp.mpf(1) / 2
    constant = -mp.log(mp.pi) / 2 - mp.loggamma(shape) - order * mp.log(2)
    if z == 0:  # The limit of z^order K_order(z).
        return constant + (order - 1) * mp.log(2) + mp.loggamma(order)
    if z < 1e4:
        return constant + order * mp.log(z) + mp.log(mp.besselk(order, z))
    # K of a half-integer order is an exponential times a polynomial in 1 / z.
    series = mp.fsum(
        mp.binomial(shape - 1 + j, 2 * j)
        * mp.factorial(2 * j)
        / mp.factorial(j)
        / (2 * z) ** j
        for j in range(shape)
    )
    log_k = mp.log(mp.pi / (2 * z)) / 2 - z + mp.log(series)
    return constant + order * mp.log(z) + log_k


class Untested(NoiseDistribution):
    """A law of one's own, with only what the check looks at."""

    def cdf(self, x):
        raise NotImplementedError

    def quantile(self, probability):
        raise NotImplementedError

    variance = mean_absolute_value = fisher_information = math.nan


class RippledLaplace(Untested):
    """Symmetric, and not unimodal."""

    # 2 Re of the integral of exp((10i - 1/10) x) over x > 0 is 0.2 / 100.01.
    mass = 20 + 0.95 * 0.2 / 100.01

    def log_density(self, x):
        x = np.asarray(x, np.float64)
        ripple = np.log1p(0.95 * np.cos(10 * (x / self.scale)))
        size = np.abs(x / self.scale) / 10
        return ripple - size - math.log(self.mass * self.scale)


class Gumbel(Untested):
    """Unimodal, and not symmetric."""

    def log_density(self, x):
        z = np.asarray(x, np.float64) / self.scale
        with np.errstate(over="ignore", invalid="ignore"):
            fall = -z - np.exp(-z)
        return np.where(z < -700, -np.inf, fall) - math.log(self.scale)


class ShiftedUniform(Untested):
    """On (-1, 2): neither symmetric nor positive."""

    def log_density(self, x):
        z = np.asarray(x, np.float64) / self.scale
        inside = (z > -1) & (z < 2)
        return np.where(inside, -math.log(3 * self.scale), -np.inf)


class CentredUniform(Untested):
    """On (-1, 1): symmetric and unimodal, but no divergence is finite."""

    def log_density(self, x):
        inside = np.abs(np.asarray(x, np.float64) / self.scale) < 1
        return np.where(inside, -math.log(2 * self.scale), -np.inf)


class TwoModes(Untested):
    """A mixture of two normal laws, at -2 and 2."""

    def log_density(self, x):
        z = np.asarray(x, np.float64) / self.scale
        with np.errstate(over="ignore"):
            parts = [-0.5 * (z - 2) ** 2, -0.5 * (z + 2) ** 2]
        constant = math.log(2 * math.sqrt(2 * math.pi) * self.scale)
        return np.logaddexp(*parts) - constant


class NarrowBump(Untested):
    """A Laplace law with a rise of 1 %, far out."""

    def log_density(self, x):
        size = np.abs(np.asarray(x, np.float64)) / self.scale
        with np.errstate(over="ignore"):
            bump = np.exp(-(np.minimum((size - 30) / 0.5, 1e9) ** 2))
        return -size + 1.01 * bump - math.log(2 * self.scale)


class OneSidedTail(Untested):
    """Differs from the other side by 1e-9, beyond 1e6."""

    def log_density(self, x):
        z = np.asarray(x, np.float64) / self.scale
        log = CauchyNoise(1.0).log_density(z) - math.log(self.scale)
        return log + np.where(z > 1e6, 1e-9 * np.abs(log), 0.0)


class Unnormalized(Untested):
    """A normal density without its constant."""

    def log_density(self, x):
        with np.errstate(over="ignore"):
            return -0.5 * np.square(np.asarray(x, np.float64) / self.scale)


class Exponentiated(Untested):
    """A logistic law whose log-density underflows with its density."""

    def log_density(self, x):
        z = np.abs(np.asarray(x, np.float64)) / self.scale
        density = np.exp(-z) / (1 + np.exp(-z)) ** 2 / self.scale
        with np.errstate(divide="ignore"):
            return np.log(density)


class NotANumber(Untested):
    """A normal law that forgets what overflows."""

    def log_density(self, x):
        with np.errstate(all="ignore"):
            z = np.asarray(x, np.float64) / self.scale
            return -0.5 * z**4 / z**2 - math.log(2.5066 * self.scale)


# And the property that the refusal must name.
REFUSED = [
    (RippledLaplace, "unimodal"),
    (Gumbel, "symmetric"),
    (ShiftedUniform, "symmetric"),
    (CentredUniform, "positive"),
    (TwoModes, "unimodal"),
    (NarrowBump, "unimodal"),
    (OneSidedTail, "symmetric"),
    (Unnormalized, "integrates to 1"),
    (Exponentiated, "positive"),
    (NotANumber, "finite"),
]
