"""The noise families: distributions of noise that an event can name."""

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special
from typing_extensions import override

from keras_dp import _check
from keras_dp.ledger.events.noise_distribution import Array, NoiseDistribution
from keras_dp.ledger.events.noise_functions import (
    log_gamma_half_step,
    log_one_plus_square,
    probabilities,
    standardized,
    stretched,
    two_sided,
)
from keras_dp.ledger.events.variance_gamma_noise import VarianceGammaNoise


@dataclasses.dataclass(frozen=True, slots=True)
class GaussianNoise(NoiseDistribution):
    """The normal distribution; `scale` is the standard deviation.

    It has the least variance of all distributions with the same Fisher
    information. And the Fisher information decides the cost of a record that is
    spread over many coordinates.

    >>> GaussianNoise(2.0).variance
    4.0
    """

    @override
    def log_density(self, x: Any) -> Array:
        z = standardized(x, self.scale)
        with np.errstate(over="ignore"):
            return np.asarray(
                -0.5 * z * z
                - (0.5 * math.log(2 * math.pi) + math.log(self.scale))
            )

    @override
    def cdf(self, x: Any) -> Array:
        return np.asarray(special.ndtr(standardized(x, self.scale)))

    @override
    def quantile(self, probability: Any) -> Array:
        return stretched(special.ndtri(probabilities(probability)), self.scale)

    @property
    @override
    def variance(self) -> float:
        return self.scale * self.scale

    @property
    @override
    def mean_absolute_value(self) -> float:
        return self.scale * math.sqrt(2 / math.pi)

    @property
    @override
    def fisher_information(self) -> float:
        return 1 / self.scale / self.scale


@dataclasses.dataclass(frozen=True, slots=True)
class StudentTNoise(NoiseDistribution):
    """Student's t distribution, times `scale`.

    The variance is `scale^2 df / (df - 2)`.

    Attributes:
        scale: The factor of a standard t variable, > 0.
        df: Degrees of freedom, > 2: with fewer there is no variance.

    >>> StudentTNoise(1.0, df=9).variance
    1.2857...
    """

    df: float

    def __post_init__(self) -> None:
        _check.finite_positive(df=self.df)
        if self.df <= 2:
            raise ValueError(
                f"`df` must be > 2. Received: df={self.df!r}. With fewer "
                "degrees of freedom there is no variance. If you want noise "
                "without a variance, use `CauchyNoise`, which is Student's t "
                "with one degree of freedom."
            )
        object.__setattr__(self, "df", float(self.df))
        NoiseDistribution.__post_init__(self)

    @override
    def log_density(self, x: Any) -> Array:
        unit = math.sqrt(self.df)
        constant = (
            0.5 * math.log(math.pi)
            + math.log(unit)
            + math.log(self.scale)
            - log_gamma_half_step(0.5 * self.df)
        )
        factor = 0.5 * (self.df + 1)
        return np.asarray(
            -factor * log_one_plus_square(x, self.scale, unit) - constant
        )

    @override
    def cdf(self, x: Any) -> Array:
        z = standardized(x, self.scale)
        return two_sided(z, self._tail(np.abs(z)))

    def _tail(self, z: Array) -> Array:
        """Returns the probability of noise above `z >= 0`, at scale 1."""
        w = z / math.sqrt(self.df)
        square = np.square(np.minimum(w, 1.0))
        # The formula whose argument is at most 1/2: the other loses digits.
        near = special.betaincc(0.5, 0.5 * self.df, square / (1 + square))
        with np.errstate(over="ignore"):
            far = special.betainc(0.5 * self.df, 0.5, 1 / (1 + w * w))
        return np.asarray(np.where(w < 1, 0.5 * near, 0.5 * far))

    @override
    def quantile(self, probability: Any) -> Array:
        p = probabilities(probability)
        tail = np.minimum(p, 1 - p)
        half = 0.5 * self.df
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            far = special.betaincinv(half, 0.5, 2 * tail)
            near = special.betainccinv(0.5, half, 2 * tail)
            square = np.where(far < 0.5, (1 - far) / far, near / (1 - near))
        size = math.sqrt(self.df) * np.sqrt(square)
        return stretched(np.where(p < 0.5, -size, size), self.scale)

    @property
    @override
    def variance(self) -> float:
        return self.scale * self.scale * (self.df / (self.df - 2))

    @property
    @override
    def mean_absolute_value(self) -> float:
        ratio = math.exp(log_gamma_half_step(0.5 * self.df))
        size = 2 * (math.sqrt(self.df) / (self.df - 1)) * ratio
        return self.scale * size / math.sqrt(math.pi)

    @property
    @override
    def fisher_information(self) -> float:
        return (self.df + 1) / (self.df + 3) / self.scale / self.scale


@dataclasses.dataclass(frozen=True, slots=True)
class LaplaceNoise(NoiseDistribution):
    """The Laplace distribution, with density `exp(-|x|/scale) / (2 scale)`.

    >>> LaplaceNoise(2.0).variance
    8.0
    """

    @override
    def log_density(self, x: Any) -> Array:
        z = np.abs(standardized(x, self.scale))
        return np.asarray(-z - (math.log(2) + math.log(self.scale)))

    @override
    def cdf(self, x: Any) -> Array:
        z = standardized(x, self.scale)
        return two_sided(z, 0.5 * np.exp(-np.abs(z)))

    @override
    def quantile(self, probability: Any) -> Array:
        p = probabilities(probability)
        with np.errstate(divide="ignore"):
            size = -np.log(2 * np.minimum(p, 1 - p))
        return stretched(np.where(p < 0.5, -size, size), self.scale)

    @property
    @override
    def variance(self) -> float:
        return 2 * self.scale * self.scale

    @property
    @override
    def mean_absolute_value(self) -> float:
        return self.scale

    @property
    @override
    def fisher_information(self) -> float:
        return 1 / self.scale / self.scale


@dataclasses.dataclass(frozen=True, slots=True)
class CauchyNoise(NoiseDistribution):
    """The Cauchy distribution: noise is within `scale` of 0 half of the time.

    It has neither a mean nor a variance.

    >>> CauchyNoise(1.0).variance
    inf
    """

    @override
    def log_density(self, x: Any) -> Array:
        return np.asarray(
            -log_one_plus_square(x, self.scale, 1.0)
            - (math.log(math.pi) + math.log(self.scale))
        )

    @override
    def cdf(self, x: Any) -> Array:
        return np.asarray(
            np.arctan2(1.0, -standardized(x, self.scale)) / math.pi
        )

    @override
    def quantile(self, probability: Any) -> Array:
        return stretched(_cauchy_quantile(probability), self.scale)

    @property
    @override
    def variance(self) -> float:
        return math.inf

    @property
    @override
    def mean_absolute_value(self) -> float:
        return math.inf

    @property
    @override
    def fisher_information(self) -> float:
        return 0.5 / self.scale / self.scale


@dataclasses.dataclass(frozen=True, slots=True)
class LogisticNoise(NoiseDistribution):
    """The logistic distribution, whose cdf is `1 / (1 + exp(-x / scale))`.

    >>> LogisticNoise(1.0).variance
    3.2898...
    """

    @override
    def log_density(self, x: Any) -> Array:
        z = np.abs(standardized(x, self.scale))
        return np.asarray(-z - 2 * np.log1p(np.exp(-z)) - math.log(self.scale))

    @override
    def cdf(self, x: Any) -> Array:
        return np.asarray(special.expit(standardized(x, self.scale)))

    @override
    def quantile(self, probability: Any) -> Array:
        return stretched(special.logit(probabilities(probability)), self.scale)

    @property
    @override
    def variance(self) -> float:
        return self.scale * self.scale * (math.pi**2 / 3)

    @property
    @override
    def mean_absolute_value(self) -> float:
        return self.scale * 2 * math.log(2)

    @property
    @override
    def fisher_information(self) -> float:
        return 1 / self.scale / self.scale / 3


@dataclasses.dataclass(frozen=True, slots=True)
class HyperbolicSecantNoise(NoiseDistribution):
    """The distribution with density `sech(x / scale) / (pi scale)`.

    >>> HyperbolicSecantNoise(1.0).fisher_information
    0.5
    """

    @override
    def log_density(self, x: Any) -> Array:
        z = np.abs(standardized(x, self.scale))
        constant = math.log(math.pi / 2) + math.log(self.scale)
        return np.asarray(-z - np.log1p(np.exp(-2 * z)) - constant)

    @override
    def cdf(self, x: Any) -> Array:
        z = standardized(x, self.scale)
        return two_sided(z, np.arctan(np.exp(-np.abs(z))) * (2 / math.pi))

    @override
    def quantile(self, probability: Any) -> Array:
        return stretched(np.arcsinh(_cauchy_quantile(probability)), self.scale)

    @property
    @override
    def variance(self) -> float:
        return self.scale * self.scale * (math.pi**2 / 4)

    @property
    @override
    def mean_absolute_value(self) -> float:
        return self.scale * 4 * _CATALAN / math.pi

    @property
    @override
    def fisher_information(self) -> float:
        return 0.5 / self.scale / self.scale


_CATALAN = 0.915965594177219015  # sum (-1)^n / (2n + 1)^2.


def _cauchy_quantile(probability: Any) -> Array:
    p = probabilities(probability)
    tail = np.minimum(p, 1 - p)
    with np.errstate(divide="ignore"):
        size = np.where(
            tail < 0.25,
            1 / np.tan(math.pi * tail),
            np.tan(math.pi * (0.5 - tail)),
        )
    return np.asarray(np.where(p < 0.5, -size, size))


# The name of each family in a ledger.
ALL: dict[str, type[NoiseDistribution]] = {
    "gaussian": GaussianNoise,
    "student_t": StudentTNoise,
    "laplace": LaplaceNoise,
    "cauchy": CauchyNoise,
    "logistic": LogisticNoise,
    "hyperbolic_secant": HyperbolicSecantNoise,
    "variance_gamma": VarianceGammaNoise,
}
