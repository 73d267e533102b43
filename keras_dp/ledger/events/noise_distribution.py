"""The base class of noise families: symmetric, unimodal, with a scale."""

import abc
import dataclasses
import math
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check

Array = npt.NDArray[np.float64]


def _grid() -> Array:
    """Returns 0, and the points where densities are checked.

    Between 1e-3 and 1e3, where most of the mass is, each point is 1.2 % above
    the one before. Towards the ends of float64 the points are further apart.
    """
    # Decades from, to, and points in each.
    spans = [(-300, -12, 0.5), (-12, -3, 16), (-3, 3, 200)]
    spans += [(3, 12, 16), (12, 300, 0.5)]
    pieces = [
        np.logspace(start, stop, round((stop - start) * each), endpoint=False)
        for start, stop, each in spans
    ]
    grid = np.concatenate([[0.0], *pieces])
    grid.flags.writeable = False
    return grid


GRID = _grid()
# Log-densities that are sums of a few terms are right to a few ulp of these.
ROUNDING = 64 * float(np.finfo(np.float64).eps)
# Above it, a log-density does not fall to -inf between two points of the grid.
_STILL_POSITIVE = -1000.0
# The trapezoidal rule on the grid is right to 1e-4 for smooth densities. A
# density that lacks a factor seldom integrates to a number so near to 1.
_LARGEST_MASS_ERROR = 0.01
# The base class makes these of the standard distribution.
_DERIVED = {
    *("log_density", "cdf", "quantile", "variance", "fisher_information"),
    "scaled",
}


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseDistribution(abc.ABC):
    """The distribution of the noise on one coordinate; coordinates independent.

    The base class of the noise families. Subclass it to ask an accountant about
    noise of your own. A ledger stores the families of this library only.

    A family says what its standard distribution is, at scale 1 and for sizes
    `z >= 0`: the methods and properties whose names begin with `standard_`.
    This class stretches it by `scale` and mirrors it at 0.

    Guarantee: the density is positive, symmetric about 0, never larger at a
    larger distance from 0, and integrates to 1. The constructor checks this for
    `standard_log_density` on a fixed grid, from 1e-300 to 1e300, with a point
    every 1.2 % between 1e-3 and 1e3: the integral to 1 %, the rest to rounding.
    It refuses a density that fails. A grid proves nothing about the density
    between its points, and the other methods are not checked: the author of a
    class is responsible for these. They are proven for the families of this
    library.

    The accountants need these conditions: under them, noise moved by `t` has a
    divergence from the noise itself that does not fall as `|t|` grows. (The
    moments of the privacy loss are convolutions of `f^k`, symmetric and
    unimodal, with `f^(1-k)`, symmetric and rising in `|x|`; Wintner's theorem.)
    So a bound on the size of a coordinate bounds the cost of this coordinate.
    For other distributions it does not.

    A subclass with parameters of its own checks them in a `__post_init__` that
    ends with `NoiseDistribution.__post_init__(self)`.

    Attributes:
        scale: The factor by which the standard distribution of the family is
            stretched, in the unit of the numbers that the noise is added to,
            > 0. It is the standard deviation for the Gaussian family only.

    Raises:
        ValueError: `scale` is not positive and finite; or the density breaks
            one of the conditions above, which the message names.
        TypeError: `standard_log_density` returns something else than an array
            of the shape of its argument. A subclass that overrides what this
            class derives, such as `log_density`, is refused when it is defined.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemmas 4 and 5. The paper
    does not state these conditions on the noise.
    """

    scale: float

    def __init_subclass__(cls) -> None:
        own = sorted(_DERIVED & vars(cls).keys())
        if own:
            raise TypeError(
                "A NoiseDistribution must say its standard distribution alone, "
                f"which is then mirrored and checked. Received: {cls.__name__} "
                f"with {own!r} of its own. Define the methods `standard_...`."
            )

    def __post_init__(self) -> None:
        check_fields(self)
        _check.finite_positive(scale=self.scale)
        object.__setattr__(self, "scale", float(self.scale))
        _check_density(self)

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


def check_fields(noise: NoiseDistribution) -> None:
    """Raises if a distribution has a parameter that `==` does not compare.

    Accountants remember the cost of each distribution. Two that differ in a
    hidden parameter would be equal, and the second would get the cost of the
    first.
    """
    hidden = sorted(getattr(noise, "__dict__", {})) + [
        field.name for field in dataclasses.fields(noise) if not field.compare
    ]
    if hidden:
        raise TypeError(
            "A NoiseDistribution must have all its parameters as fields of a "
            "frozen dataclass that are compared. Received: "
            f"{type(noise).__name__} with {hidden!r} beside them. Make these "
            "fields, without `compare=False`."
        )


def _check_density(noise: NoiseDistribution) -> None:
    with np.errstate(over="ignore"):
        log = noise.standard_log_density(GRID)
    if not isinstance(log, np.ndarray) or log.shape != GRID.shape:
        raise TypeError(
            "`standard_log_density` must return an array of the shape of its "
            f"argument. Received: {type(log).__name__} of shape "
            f"{np.shape(log)!r} for {GRID.shape!r}, from {noise!r}."
        )
    near, far = log[:-1], log[1:]
    with np.errstate(invalid="ignore"):
        rises = far > near + ROUNDING * (1 + np.abs(near))
    for rule, wrong in (
        ("finite or -inf", np.isnan(log) | (log == np.inf)),
        ("finite at 0", (GRID == 0) & np.isinf(log)),
        ("unimodal, and so not rise away from 0", np.r_[False, rises]),
        (
            "positive everywhere, computed without an exponential",
            np.r_[False, np.isinf(far) & (near > _STILL_POSITIVE)],
        ),
    ):
        if wrong.any():
            first = int(np.argmax(wrong))
            raise ValueError(
                f"`standard_log_density` must be {rule}. Received: {noise!r}, "
                f"whose log-density is {log[first]!s} at z={GRID[first]!s}. "
                "No bound on the privacy of a sum with such noise is known."
            )
    log_z = np.log(GRID[1:])
    heights = np.exp(np.minimum(far + log_z, 700.0))  # Below overflow.
    mass = np.sum((heights[1:] + heights[:-1]) * np.diff(log_z))
    if not abs(mass - 1) <= _LARGEST_MASS_ERROR:
        raise ValueError(
            "`standard_log_density` must be the logarithm of a density that "
            f"integrates to 1. Received: {noise!r}, whose density integrates "
            f"to {mass:.4g}. Look for a missing factor."
        )
