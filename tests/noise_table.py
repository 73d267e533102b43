"""Noise laws under test, from their definitions, and laws to be refused."""

import dataclasses
import math

import mpmath as mp
import numpy as np

from keras_dp.ledger import NoiseDistribution
from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)

STANDARD = [
    GaussianNoise(1.0),
    StudentTNoise(1.0, 2.1),
    StudentTNoise(1.0, 3.0),
    StudentTNoise(1.0, 5.0),
    StudentTNoise(1.0, 9.0),
    StudentTNoise(1.0, 1e6),
    LaplaceNoise(1.0),
    StudentTNoise(1.0, 1.0),
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
    else:
        log = -mp.log(mp.pi) - mp.log1p(z * z)
    return log - mp.log(s)


class Untested(NoiseDistribution):
    """A law of one's own, with only what the check looks at."""

    standard_variance = standard_fisher_information = math.nan

    def standard_tail(self, z):
        raise NotImplementedError

    def standard_size(self, tail):
        raise NotImplementedError


class RippledLaplace(Untested):
    """Falls and rises."""

    # 2 Re of the integral of exp((10i - 1/10) x) over x > 0 is 0.2 / 100.01.
    mass = 20 + 0.95 * 0.2 / 100.01

    def standard_log_density(self, z):
        ripple = np.log1p(0.95 * np.cos(10 * z))
        return ripple - z / 10 - math.log(self.mass)


class CentredUniform(Untested):
    """On (-1, 1): unimodal, but no divergence is finite."""

    def standard_log_density(self, z):
        return np.where(z < 1, -math.log(2), -np.inf)


class TwoModes(Untested):
    """A mixture of two normal laws, at -2 and 2."""

    def standard_log_density(self, z):
        parts = [-0.5 * (z - 2) ** 2, -0.5 * (z + 2) ** 2]
        return np.logaddexp(*parts) - math.log(2 * math.sqrt(2 * math.pi))


class NarrowBump(Untested):
    """A Laplace law with a rise of 1 %, far out."""

    def standard_log_density(self, z):
        bump = np.exp(-(np.minimum((z - 30) / 0.5, 1e9) ** 2))
        return -z + 1.01 * bump - math.log(2)


class Unnormalized(Untested):
    """A normal density without its constant."""

    def standard_log_density(self, z):
        return -0.5 * np.square(z)


class Exponentiated(Untested):
    """A logistic law whose log-density underflows with its density."""

    def standard_log_density(self, z):
        with np.errstate(divide="ignore"):
            return np.log(np.exp(-z) / (1 + np.exp(-z)) ** 2)


class NotANumber(Untested):
    """A normal law that forgets what overflows."""

    def standard_log_density(self, z):
        with np.errstate(all="ignore"):
            return -0.5 * z**4 / z**2 - math.log(2.5066)


# And the property that the refusal must name.
REFUSED = [
    (RippledLaplace, "unimodal"),
    (CentredUniform, "positive"),
    (TwoModes, "unimodal"),
    (NarrowBump, "unimodal"),
    (Unnormalized, "integrates to 1"),
    (Exponentiated, "positive"),
    (NotANumber, "finite"),
]
