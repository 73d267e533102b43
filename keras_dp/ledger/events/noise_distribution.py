"""All noise families are symmetric and unimodal, and have a scale."""

import abc
import dataclasses
import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check

Array = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseDistribution(abc.ABC):
    """The distribution of the noise on one coordinate; coordinates independent.

    The base class of the noise families, which are those of this library: a
    ledger must be able to store a family, and its cost must be proven. A family
    says what its standard distribution is, at scale 1 and for sizes `z >= 0`:
    the methods and properties whose names begin with `standard_`. This class
    stretches it by `scale` and mirrors it at 0.

    Guarantee: the density is positive, symmetric about 0, never larger at a
    larger distance from 0, and integrates to 1.

    The accountants need these conditions: under them, noise moved by `t` has a
    divergence from the noise itself that does not fall as `|t|` grows. (The
    moments of the privacy loss are convolutions of `f^k`, symmetric and
    unimodal, with `f^(1-k)`, symmetric and rising in `|x|`; Wintner's theorem.)
    So a bound on the size of a coordinate bounds the cost of this coordinate.
    For other distributions it does not.

    Attributes:
        scale: The factor by which the standard distribution of the family is
            stretched, in the unit of the numbers that the noise is added to,
            > 0. It is the standard deviation for the Gaussian family only.

    Raises:
        ValueError: `scale` is not positive and finite.
        TypeError: A class outside of the library is a subclass.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemmas 4 and 5. The paper
    does not state these conditions on the noise.
    """

    scale: float

    def __init_subclass__(cls) -> None:
        """Refuses families that the library does not know."""
        _check.no_subclass(
            cls, "No ledger could store it. Use a family of keras_dp.ledger."
        )

    def __post_init__(self) -> None:
        _check.finite_positive(scale=self.scale)
        object.__setattr__(self, "scale", float(self.scale))

    def log_density(self, x: Any) -> Array:
        """Returns the natural logarithm of the density at each point.

        It is -inf only where `x / scale`, or the logarithm itself, is beyond
        all floats.

        Args:
            x: Points of any shape.

        Returns:
            An array of the shape of `x`.
        """
        with np.errstate(over="ignore"):
            log = self.standard_log_density(np.abs(self._standardized(x)))
        return np.asarray(log - math.log(self.scale))

    def cdf(self, x: Any) -> Array:
        """Returns the probability of noise below each point.

        Small probabilities are as accurate, relative to their size, as large
        ones. Use `cdf(-x)`, not `1 - cdf(x)`, for the probability of noise
        *above* `x`.

        Args:
            x: Points of any shape.

        Returns:
            An array of the shape of `x`.
        """
        z = self._standardized(x)
        with np.errstate(over="ignore"):
            tail = self.standard_tail(np.abs(z))
        return np.asarray(np.where(z < 0, tail, 1 - tail))

    def quantile(self, probability: Any) -> Array:
        """Returns the points where `cdf` has the given values.

        Args:
            probability: Values of any shape, in [0, 1]. For a value near 1, use
                the symmetry: `-quantile(p)` is the quantile of `1 - p`, without
                the rounding of `1 - p`.

        Returns:
            An array of the shape of `probability`.
        """
        p = np.asarray(probability, np.float64)
        if not ((p >= 0) & (p <= 1)).all():
            raise ValueError(
                "`probability` must be in [0, 1]. Received: probabilities in "
                f"[{np.min(p)}, {np.max(p)}]."
            )
        with np.errstate(all="ignore"):
            size = self.scale * self.standard_size(np.minimum(p, 1 - p))
        return np.asarray(np.where(p < 0.5, -size, size))

    @property
    def variance(self) -> float:
        """The variance; `inf` if the distribution has none."""
        return self.scale * (self.scale * self.standard_variance)

    @property
    def fisher_information(self) -> float:
        """The Fisher information about the location, `E[((log f)')^2]`."""
        return self.standard_fisher_information / self.scale / self.scale

    def scaled(self, factor: float) -> Self:
        """Returns the distribution of this noise times `factor`.

        Args:
            factor: Finite and > 0.
        """
        _check.finite_positive(factor=factor)
        return dataclasses.replace(self, scale=self.scale * factor)

    @abc.abstractmethod
    def standard_log_density(self, z: Array) -> Array:
        """Returns the logarithm of the density at `z >= 0`, at scale 1.

        Compute it from the formula of the logarithm, not as the log of a
        density: a density below the least float becomes 0, whose log is -inf,
        while its logarithm is an ordinary number such as -1000.
        """

    @abc.abstractmethod
    def standard_tail(self, z: Array) -> Array:
        """Returns the probability of noise above `z >= 0`, at scale 1."""

    @abc.abstractmethod
    def standard_size(self, tail: Array) -> Array:
        """Returns where `standard_tail` has given values, in [0, 1/2]."""

    @property
    @abc.abstractmethod
    def standard_variance(self) -> float:
        """The variance at scale 1."""

    @property
    @abc.abstractmethod
    def standard_fisher_information(self) -> float:
        """The Fisher information at scale 1."""

    def _standardized(self, x: Any) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(np.asarray(x, np.float64) / self.scale)
