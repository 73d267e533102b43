"""The protocol of noise families: symmetric, unimodal, with a scale."""

import abc
import dataclasses
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check

Array = npt.NDArray[np.float64]


def _grid() -> Array:
    """Returns where densities are compared, > 0, in units of the scale.

    A point every 1.2 % where the mass of most families is, and ever fewer to
    the ends of float64.
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
# Log-densities from sums of a few terms are good to a few ulp of the terms.
_ROUNDING = 64 * float(np.finfo(np.float64).eps)
# Above it, a log-density does not fall to -inf between two points of the grid.
_STILL_POSITIVE = -1000.0
# The trapezoidal rule on the grid is good to 1e-4 for smooth densities; a
# forgotten constant is seldom so near to 1.
_LARGEST_MASS_ERROR = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class NoiseDistribution(abc.ABC):
    """The distribution of noise on one coordinate, independent of others.

    Guarantee: the density is symmetric about 0, does not rise away from it,
    is positive and integrates to 1, each to within rounding (the last, 1 %) on
    a fixed grid that reaches from 1e-300 to 1e300 scales, with a point every
    1.2 % between 1e-3 and 1e3. What violates it cannot be made. A grid proves
    nothing about what lies between its points: that remains with the author of
    a class; the families of this library are proven.

    For such noise the divergence between the noise and the noise moved by t
    does not fall in |t|: its moments are convolutions of `f^k`, symmetric and
    unimodal, with `f^(1-k)`, symmetric and rising in |x| (Wintner's theorem).
    So a bound on the size of a coordinate is a bound on its cost. For other
    distributions it is not.

    A subclass with parameters of its own checks them in a `__post_init__` that
    ends with `NoiseDistribution.__post_init__(self)`.

    Attributes:
        scale: Stretches the family's distribution, in the unit of what it is
            added to, > 0. The standard deviation only for the Gaussian.

    Raises:
        ValueError: The density is not as the guarantee says.
        TypeError: It is no array of the shape of its argument.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemmas 4 and 5, which leave
    these conditions on the noise unsaid.
    """

    scale: float

    def __post_init__(self) -> None:
        check_fields(self)
        _check.finite_positive(scale=self.scale)
        object.__setattr__(self, "scale", float(self.scale))
        _check_density(self)

    @abc.abstractmethod
    def log_density(self, x: Any) -> Array:
        """Returns the log-density at `x`, of the shape of `x`, in nats.

        -inf only where it is below all floats, never where its exponential is.
        """

    @abc.abstractmethod
    def cdf(self, x: Any) -> Array:
        """Returns the probability of noise below `x`, of its shape.

        Small probabilities are as accurate as others. That of noise *above*
        `x` is `cdf(-x)`.
        """

    @abc.abstractmethod
    def quantile(self, probability: Any) -> Array:
        """Returns where `cdf` has the given values, of their shape.

        Args:
            probability: In [0, 1]. Those near 1 are better given by symmetry:
                `-quantile(p)` is the quantile of `1 - p`.
        """

    @property
    @abc.abstractmethod
    def variance(self) -> float:
        """The variance, `inf` where there is none."""

    @property
    @abc.abstractmethod
    def mean_absolute_value(self) -> float:
        """The mean of the noise's size, `inf` where there is none."""

    @property
    @abc.abstractmethod
    def fisher_information(self) -> float:
        """The Fisher information about the location, `E[(log f)'^2]`."""

    def scaled(self, factor: float) -> Self:
        """Returns the noise times `factor`, which is > 0."""
        _check.finite_positive(factor=factor)
        return dataclasses.replace(self, scale=self.scale * factor)


def check_fields(noise: NoiseDistribution) -> None:
    """Raises unless equal distributions have equal fields, and nothing else.

    Costs are remembered by distribution: a parameter that equality does not
    see would give one the cost of another.
    """
    hidden = sorted(getattr(noise, "__dict__", {})) + [
        field.name for field in dataclasses.fields(noise) if not field.compare
    ]
    if hidden:
        raise TypeError(
            "A NoiseDistribution must have all its parameters as fields of a "
            "frozen dataclass that are compared. Received: "
            f"{type(noise).__name__} with {hidden!r} beside them."
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
            "`log_density` must be that of a density that integrates to 1. "
            f"Received: {noise!r}, whose density integrates to {mass:.4g}."
        )


def _log_densities(noise: NoiseDistribution, points: Array) -> Array:
    """Returns the log-densities, which are numbers or -inf, at points."""
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
        x: From 0 on, rising.
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
