"""The noise families: distributions of noise that an event can name."""

import dataclasses
import math

import numpy as np
from scipy import special

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.noise_distribution import Array, NoiseDistribution
from keras_dp.ledger.events.tfp_noise import TFPNoise

# From here on the series of `_log_gamma_half_step` is exact to rounding.
_ASYMPTOTIC = 100.0
# Its square is a float. Beyond it one term of a series is exact.
_FAR = 1e150


@dataclasses.dataclass(frozen=True, slots=True)
class GaussianNoise(NoiseDistribution):
    """The normal distribution; `scale` is the standard deviation.

    It has the least variance of all distributions with the same Fisher
    information. And the Fisher information decides the cost of a record that is
    spread over many coordinates.

    >>> GaussianNoise(2.0).variance
    4.0
    """

    standard_variance = 1.0
    standard_fisher_information = 1.0

    @override
    def standard_log_density(self, z: Array) -> Array:
        return -0.5 * z * z - 0.5 * math.log(2 * math.pi)

    @override
    def standard_tail(self, z: Array) -> Array:
        return np.asarray(special.ndtr(-z))

    @override
    def standard_size(self, tail: Array) -> Array:
        return np.asarray(-special.ndtri(tail))


@dataclasses.dataclass(frozen=True, slots=True)
class StudentTNoise(NoiseDistribution):
    """Student's t distribution, times `scale`.

    The variance is `scale^2 df / (df - 2)`; with 2 degrees of freedom or fewer
    there is none. With one it is the Cauchy distribution.

    Attributes:
        scale: The factor of a standard t variable, > 0.
        df: Degrees of freedom, >= 1.

    >>> StudentTNoise(1.0, df=9).variance
    1.2857...
    """

    df: float

    def __post_init__(self) -> None:
        _check.finite_positive(df=self.df)
        if self.df < 1:
            raise ValueError(
                f"`df` must be >= 1. Received: df={self.df!r}. With fewer "
                "degrees of freedom draws exceed all floats."
            )
        object.__setattr__(self, "df", float(self.df))
        NoiseDistribution.__post_init__(self)

    @override
    def standard_log_density(self, z: Array) -> Array:
        constant = _log_gamma_half_step(0.5 * self.df) - 0.5 * (
            math.log(math.pi) + math.log(self.df)
        )
        factor = 0.5 * (self.df + 1)
        return constant - factor * _log_one_plus_square(z / math.sqrt(self.df))

    @override
    def standard_tail(self, z: Array) -> Array:
        w = z / math.sqrt(self.df)
        power = self._power * np.maximum(w, _FAR) ** -self.df
        square = np.square(np.minimum(w, 1.0))
        # The formula whose argument is at most 1/2: the other loses digits.
        near = special.betaincc(0.5, 0.5 * self.df, square / (1 + square))
        far = special.betainc(0.5 * self.df, 0.5, 1 / (1 + w * w))
        far = np.where(w < _FAR, far, power)
        return np.asarray(np.where(w < 1, 0.5 * near, 0.5 * far))

    @override
    def standard_size(self, tail: Array) -> Array:
        half = 0.5 * self.df
        far = special.betaincinv(half, 0.5, 2 * tail)
        near = special.betainccinv(0.5, half, 2 * tail)
        square = np.where(far < 0.5, (1 - far) / far, near / (1 - near))
        power = (2 * tail / self._power) ** (-1 / self.df)
        w = np.where(far < _FAR**-2, power, np.sqrt(square))
        return np.asarray(math.sqrt(self.df) * w)

    @property
    def _power(self) -> float:
        """The factor of the power of `w` that twice the tail is, far out."""
        half = 0.5 * self.df
        return float(1 / (half * special.beta(half, 0.5)))

    @property
    @override
    def standard_variance(self) -> float:
        return self.df / (self.df - 2) if self.df > 2 else math.inf

    @property
    @override
    def standard_fisher_information(self) -> float:
        return (self.df + 1) / (self.df + 3)


@dataclasses.dataclass(frozen=True, slots=True)
class LaplaceNoise(NoiseDistribution):
    """The Laplace distribution, with density `exp(-|x|/scale) / (2 scale)`.

    >>> LaplaceNoise(2.0).variance
    8.0
    """

    standard_variance = 2.0
    standard_fisher_information = 1.0

    @override
    def standard_log_density(self, z: Array) -> Array:
        return -z - math.log(2)

    @override
    def standard_tail(self, z: Array) -> Array:
        return 0.5 * np.exp(-z)

    @override
    def standard_size(self, tail: Array) -> Array:
        return -np.log(2 * tail)


def _log_one_plus_square(z: Array) -> Array:
    """Returns `log(1 + z^2)`, however large `z` is."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.logaddexp(0.0, 2 * np.log(z)))


def _log_gamma_half_step(a: float) -> float:
    """Returns `log(gamma(a + 1/2) / gamma(a))`, without cancellation."""
    if a < _ASYMPTOTIC:
        return math.lgamma(a + 0.5) - math.lgamma(a)
    r = 1 / a  # Stirling's series.
    return 0.5 * math.log(a) - r / 8 + r**3 / 192 - r**5 / 640


# The name of each family in a ledger.
ALL: dict[str, type[NoiseDistribution]] = {
    "gaussian_noise": GaussianNoise,
    "student_t_noise": StudentTNoise,
    "laplace_noise": LaplaceNoise,
    "tensorflow_probability_noise": TFPNoise,
}
