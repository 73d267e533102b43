"""The protocol of noise families: symmetric, unimodal, with a scale."""

import abc
import dataclasses
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check

Array = npt.NDArray[np.float64]


def _grid() -> Array:
    """Returns the points where densities are checked, > 0, in units of `scale`.

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
    grid = np.concatenate(pieces)
    grid.flags.writeable = False
    return grid


_GRID = _grid()
# Log-densities that are sums of a few terms are right to a few ulp of these.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)
# Above it, a log-density does not fall to -inf between two points of the grid.
_STILL_POSITIVE = -1000.0
# The trapezoidal rule on the grid is right to 1e-4 for smooth densities. A
# density that lacks a factor seldom integrates to a number so near to 1.
_LARGEST_MASS_ERROR = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseDistribution(abc.ABC):
    """The distribution of the noise on one coordinate; coordinates independent.

    The base class of the noise families. Subclass it to ask an accountant about
    noise of your own. A ledger stores the families of this library only.

    Guarantee: the density is positive, symmetric about 0, never larger at a
    larger distance from 0, and integrates to 1. The constructor checks this for
    `log_density` on a fixed grid, from 1e-300 to 1e300 times the scale, with a
    point every 1.2 % between 1e-3 and 1e3: the integral to 1 %, the rest to
    rounding. It refuses a density that fails. A grid proves nothing about the
    density between its points, and `cdf`, `quantile` and the other properties
    are not checked: the author of a class is responsible for these. They are
    proven for the families of this library.

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
        TypeError: `log_density` returns something else than an array of the
            shape of its argument.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemmas 4 and 5. The paper
    does not state these conditions on the noise.
    """

    scale: float

    def __post_init__(self) -> None:
        check_fields(self)
        _check.finite_positive(scale=self.scale)
        object.__setattr__(self, "scale", float(self.scale))
        _check_density(self)

    @abc.abstractmethod
    def log_density(self, x: Any) -> Array:
        """Returns the natural logarithm of the density at each point.

        Compute it from the formula of the logarithm, not as the log of a
        density: a density below the least float becomes 0, whose log is -inf,
        while its logarithm is an ordinary number such as -1000. The result may
        be -inf only where the logarithm itself is below all floats.

        Args:
            x: Points of any shape.

        Returns:
            An array of the shape of `x`.
        """

    @abc.abstractmethod
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

    @abc.abstractmethod
    def quantile(self, probability: Any) -> Array:
        """Returns the points where `cdf` has the given values.

        Args:
            probability: Values of any shape, in [0, 1]. For a value near 1, use
                the symmetry: `-quantile(p)` is the quantile of `1 - p`, without
                the rounding of `1 - p`.

        Returns:
            An array of the shape of `probability`.
        """

    @property
    @abc.abstractmethod
    def variance(self) -> float:
        """The variance; `inf` if the distribution has none."""

    @property
    @abc.abstractmethod
    def mean_absolute_value(self) -> float:
        """The mean of the absolute value; `inf` if there is none."""

    @property
    @abc.abstractmethod
    def fisher_information(self) -> float:
        """The Fisher information about the location, `E[((log f)')^2]`."""

    def scaled(self, factor: float) -> Self:
        """Returns the distribution of this noise times `factor`.

        Args:
            factor: Finite and > 0.
        """
        _check.finite_positive(factor=factor)
        return dataclasses.replace(self, scale=self.scale * factor)


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
    with np.errstate(over="ignore", under="ignore"):
        x = noise.scale * _GRID
    x = x[np.isfinite(x) & (x > 0)]
    points = np.concatenate([-x[::-1], [0.0], x])
    each = _log_densities(noise, points)
    right = each[x.size :]  # From 0 on.
    left = each[x.size :: -1]
    _check_sides(noise, np.r_[0.0, x], right, left)
    log_x = np.log(x)
    heights = np.exp(np.minimum(right[1:] + log_x, 700.0))  # Below overflow.
    mass = np.sum((heights[1:] + heights[:-1]) * np.diff(log_x))
    if not abs(mass - 1) <= _LARGEST_MASS_ERROR:
        raise ValueError(
            "`log_density` must be the logarithm of a density that integrates "
            f"to 1. Received: {noise!r}, whose density integrates to "
            f"{mass:.4g}. Look for a missing factor, such as 1 / scale."
        )


def _log_densities(noise: NoiseDistribution, points: Array) -> Array:
    """Returns the log-densities at points; refuses NaN and +inf."""
    each = noise.log_density(points)
    if not isinstance(each, np.ndarray) or each.shape != points.shape:
        raise TypeError(
            "`log_density` must return an array of the shape of its argument. "
            f"Received: {type(each).__name__} of shape "
            f"{np.shape(each)!r} for {points.shape!r}, from {noise!r}."
        )
    each = np.asarray(each, np.float64)
    _refuse(
        noise,
        "finite or -inf, and finite at 0",
        points,
        each,
        np.isnan(each) | (each == np.inf) | ((points == 0) & np.isinf(each)),
    )
    return each


def _check_sides(
    noise: NoiseDistribution, x: Array, right: Array, left: Array
) -> None:
    """Raises unless the density is symmetric, unimodal and positive.

    Args:
        noise: The distribution.
        x: Points in rising order, from 0 on.
        right: Log-densities at `x`.
        left: Log-densities at `-x`.
    """
    # Not inf - inf.
    finite = np.isfinite(left) & np.isfinite(right)
    size = _ROUNDING * (1 + np.abs(np.where(finite, right, 0.0)))
    apart = np.abs(np.subtract(left, right, where=finite, out=0 * size))
    differs = (apart > size) | (np.isfinite(left) != np.isfinite(right))
    for side, at in ((right, x), (left, -x)):
        _refuse(noise, "symmetric about 0", at, side, differs)
        rises = side[1:] > side[:-1] + size[:-1]
        rule = "unimodal, and so not rise away from 0"
        _refuse(noise, rule, at[1:], side[1:], rises)
        ends = np.isinf(side[1:]) & (side[:-1] > _STILL_POSITIVE)
        rule = "positive everywhere, computed without an exponential"
        _refuse(noise, rule, at[1:], side[1:], ends)


def _refuse(
    noise: NoiseDistribution, rule: str, x: Array, each: Array, wrong: Any
) -> None:
    if not wrong.any():
        return
    first = int(np.argmax(wrong))
    raise ValueError(
        f"`log_density` must be {rule}. Received: {noise!r}, whose "
        f"log-density is {each[first]!s} at x={x[first]!s}. No bound on the "
        "privacy of a sum with such noise is known."
    )
