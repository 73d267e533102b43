"""Noise of any symmetric, unimodal law of TensorFlow Probability.

Tails and quantiles of a law that only its density is known of.

The density is integrated from the far end inwards, so that small tails are as
accurate, relative to their size, as large ones. With `w = -log(P(|X| > x))`,
the logarithm of `x` is a smooth function of the logarithm of `w`: a line near
0, and nearly one for tails that fall as powers of `x` or faster. Cubic Hermite
polynomials interpolate it; their slopes follow from the density.

Against the formulas of the families of this library the error is 1e-9,
relative to the tail (`tests/unit/ledger/test_tfp_noise.py`).
"""

import dataclasses
import functools
import hashlib
import inspect
import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.polynomial import legendre

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.noise_distribution import (
    GRID,
    ROUNDING,
    Array,
    NoiseDistribution,
    check_fields,
)

# Sizes, in units of `1 / (2 f(0))`: between these ends all but nothing lies.
_LEAST, _MOST, _PER_DECADE = -20, 40, 500
_POINTS, _WEIGHTS = legendre.leggauss(8)
# Values at the points -> slopes there, of the polynomial through them.
_SLOPES = np.stack(
    [legendre.legval(_POINTS, legendre.legder(row)) for row in np.eye(8)],
    axis=1,
) @ np.linalg.inv(legendre.legvander(_POINTS, 7))
# A density that is off by more than rounding is not the one that is drawn.
_MASS_ERROR = 1e-7
# A word of 64 bits is never so small: no larger noise is drawn.
_NO_TAIL = -80 * math.log(2)
# From `w` of a uniform variable that rounds to 1, to that of the least word.
_FIRST, _LAST, _PER_UNIT = math.log(2.0**-60), math.log(64.5 * math.log(2)), 128
# Below this size, in units, rounding hides how the density falls.
_FISHER_FROM = 1e-12
_NEGLIGIBLE, _LEAST_POWER = 1e-9, 0.25


class CubicCurve(NamedTuple):
    """A function between equal steps, each with a cubic polynomial.

    The coefficients are in the share of a step, from the constant up, of the
    shape `[steps, 4]`.
    """

    start: float
    step: float
    pieces: Array

    def __call__(self, x: Array) -> Array:
        """Returns the values; outside of the steps that of the nearer end."""
        place = (np.asarray(x) - self.start) / self.step
        place = np.clip(place, 0.0, len(self.pieces))
        index = np.minimum(place.astype(np.int64), len(self.pieces) - 1)
        share, (a, b, c, d) = (
            place - index,
            np.moveaxis(self.pieces[index], -1, 0),
        )
        return np.asarray(a + share * (b + share * (c + share * d)))


class TabulatedLaw(NamedTuple):
    """The law of `|X|` for a density that is symmetric and unimodal.

    Attributes:
        unit: Half of the width of the box as high as the density at 0, > 0.
        variance: The variance; `inf` if the tails are so heavy that
            `x^3 f(x)` is no small number at `1e40` units.
        fisher_information: The Fisher information about the location; `inf`
            if it could not be bounded near 0.
        draws: `log(|X|)` by `log(w)`, for all uniform variables of 64 bits.
        tails: `log(w)` by `log(|X|)`.
        quantiles: `log(|X|)` by `log(w)`, for smaller tails too.
    """

    unit: float
    variance: float
    fisher_information: float
    draws: CubicCurve
    tails: CubicCurve
    quantiles: "scipy.interpolate.CubicHermiteSpline"

    def tail(self, z: Array) -> Array:
        """Returns `P(X > z)` for `z >= 0`."""
        low = self.tails.start
        high = low + self.tails.step * len(self.tails.pieces)
        with np.errstate(divide="ignore", over="ignore"):
            log_z = np.log(np.asarray(z, np.float64))
            w = np.exp(self.tails(log_z))
            found = 0.5 * np.exp(-np.where(log_z < low, 0.0, w))
        return np.asarray(np.where(log_z > high, 0.0, found))

    def size(self, tail: Array) -> Array:
        """Returns where `tail` has given values, in [0, 1/2]."""
        low, high = self.quantiles.x[[0, -1]]
        with np.errstate(divide="ignore"):
            log_w = np.log(-np.log(2 * np.asarray(tail, np.float64)))
        found = np.exp(self.quantiles(np.clip(log_w, low, high)))
        found = np.where(log_w < low, 0.0, found)
        return np.asarray(np.where(log_w > high, np.inf, found))


def tabulated(log_density: Callable[[Array], Array]) -> TabulatedLaw:
    """Returns the law that belongs to the logarithm of a density at `x >= 0`.

    It refuses a density that does not integrate to 1, and tails that are so
    heavy that a draw could be infinite.
    """
    unit = 0.5 * math.exp(-float(log_density(np.zeros(1))[0]))
    log_unit = math.log(unit)
    count = (_MOST - _LEAST) * _PER_DECADE + 1
    y = np.linspace(_LEAST, _MOST, count) * math.log(10) + log_unit
    half = float(y[1] - y[0]) / 2
    nodes = (y[:-1, None] + half) + half * _POINTS
    log_f = log_density(np.exp(nodes).ravel()).reshape(nodes.shape)
    with np.errstate(over="ignore", under="ignore"):
        mass = half * (np.exp(log_f + nodes) @ _WEIGHTS)
        inside = np.exp(y[0]) / (2 * unit) + np.r_[0.0, np.cumsum(mass)]
        outside = np.r_[np.cumsum(mass[::-1])[::-1], 0.0]
    total = 2 * float(inside[-1])
    if not abs(total - 1) <= _MASS_ERROR:
        raise ValueError(
            "`log_prob` must be that of a density which integrates to 1, and "
            f"which is smooth but at 0. Received: one of {total!r}."
        )
    known = outside > np.finfo(np.float64).tiny / np.finfo(np.float64).eps
    if not math.log(2 * float(outside[known][-1])) <= _NO_TAIL:
        raise ValueError(
            "`log_prob` must be that of a density whose tails fall at least "
            "as `x^(-1.6)`. Received: heavier tails, from which a draw could "
            "be infinite."
        )
    y, tail = y[known], outside[known] / (total / 2) / 2
    middle = np.minimum(2 * inside[known] / total, 0.75)
    w = np.where(tail > 0.25, -np.log1p(-middle), -np.log(2 * tail))
    # d log(w) / d log(x), where dw = f(x) dx / tail.
    slope = np.exp(y + log_density(np.exp(y)) - np.log(tail) - np.log(w))
    t = np.log(w)
    quantiles = scipy.interpolate.CubicHermiteSpline(t, y, 1 / slope)
    knots = np.linspace(_FIRST, _LAST, round((_LAST - _FIRST) * _PER_UNIT) + 1)
    return TabulatedLaw(
        unit=unit,
        variance=_variance(nodes, log_f, half),
        fisher_information=_fisher_information(nodes, log_f, half, log_unit),
        draws=_curve(knots, quantiles(knots), quantiles(knots, 1)),
        tails=_curve(y, t, slope),
        quantiles=quantiles,
    )


def _curve(x: Array, value: Array, slope: Array) -> CubicCurve:
    step = float(x[1] - x[0])
    left, jump = value[:-1], np.diff(value)
    first, last = slope[:-1] * step, slope[1:] * step
    bends = [3 * jump - 2 * first - last, first + last - 2 * jump]
    return CubicCurve(
        float(x[0]), step, np.stack([left, first, *bends], axis=1)
    )


def _variance(nodes: Array, log_f: Array, half: float) -> float:
    with np.errstate(over="ignore", under="ignore"):
        terms = np.exp(log_f + 3 * nodes)
    total = 2 * half * float(np.sum(terms @ _WEIGHTS))
    is_finite = float(terms[-1, -1]) < _NEGLIGIBLE * total < math.inf
    return total if is_finite else math.inf


def _fisher_information(
    nodes: Array, log_f: Array, half: float, log_unit: float
) -> float:
    """Returns `2 int (d log f / dx)^2 f dx`, with what is near 0 bounded."""
    first = int(np.searchsorted(nodes[:, 0], math.log(_FISHER_FROM) + log_unit))
    positive = np.asarray(np.isfinite(log_f).all(axis=1))
    positive[:first] = False
    falls = log_f[positive] @ _SLOPES.T / half
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        height = np.exp(log_f[positive] - nodes[positive])
        terms = np.where(height > 0, falls**2 * height, 0.0)
    total = float(np.sum(terms @ _WEIGHTS)) * half
    decades = 3
    near, next_ = terms[0, 0], terms[decades * _PER_DECADE, 0]
    if near <= _NEGLIGIBLE * total:
        return 2 * total
    power = math.log(next_ / near) / (decades * math.log(10))
    if not power >= _LEAST_POWER:
        return math.inf
    return 2 * (total + float(near) / power)


# Where the density is compared with the one that was recorded.
_COMPARED = np.exp(np.linspace(math.log(0.01), math.log(100.0), 25))
# Units in which a shift of noise is bounded well; see `accountants.renyi`.
_LEAST_UNIT, _MOST_UNIT = 0.01, 100.0
# The log-density of an exponential tail doubles from here to there.
_FAR, _LIGHTEST = np.array([1e6, 2e6]), 2.05
# Where a density is so small, its logarithm may overflow on one side.
_NOTHING = -1e5
# Arguments of every distribution that do not change it.
_IGNORED = {"name", "validate_args", "allow_nan_stats"}


@dataclasses.dataclass(frozen=True, slots=True)
class TFPNoise(NoiseDistribution):
    """A law of TensorFlow Probability, times `scale`.

    `keras_dp.noise.from_tfp` makes it. It is evaluated, drawn and replayed
    where TensorFlow Probability is installed. Without it a ledger with such
    noise can be read and verified, and accountants raise.

    Guarantee: as for every `NoiseDistribution`; and the density on both sides
    of 0 is equal to rounding. Its tails fall no faster than an exponential:
    accountants have no bound for others. Tails and quantiles are integrals of
    the density (`TabulatedLaw`), so that no other function of the
    distribution is trusted.

    Attributes:
        scale: The factor by which draws of the distribution are multiplied,
            > 0.
        distribution: The name of a class of `tfp.distributions`.
        parameters: Pairs of a parameter of the class and its value.
        digest: A hash over the log-density at 25 points, to nine digits. It
            shows when another version of TensorFlow Probability means another
            law by the same name.

    Raises:
        ValueError: There is no such distribution; its law is no noise family;
            or its density is not the one that was recorded.
    """

    distribution: str
    parameters: tuple[tuple[str, float], ...]
    digest: str

    def __post_init__(self) -> None:
        _check.non_empty_text(
            distribution=self.distribution, digest=self.digest
        )
        pairs = tuple((str(name), float(x)) for name, x in self.parameters)
        object.__setattr__(self, "parameters", tuple(sorted(pairs)))
        try:
            law = _law(self.distribution, self.parameters)
        except ImportError:  # The record is read; an accountant raises.
            check_fields(self)
            _check.finite_positive(scale=self.scale)
            object.__setattr__(self, "scale", float(self.scale))
            return
        if law.digest != self.digest:
            raise ValueError(
                "`digest` must be that of the density. Received: "
                f"{self.digest!r} for a {self.distribution}, whose density "
                f"here has {law.digest!r}. Install the version of "
                "tensorflow-probability with which the noise was drawn."
            )
        NoiseDistribution.__post_init__(self)
        _ = law.table  # Raises for a law that cannot be drawn.

    @property
    def table(self) -> TabulatedLaw:
        """Tails and quantiles at scale 1, from which noise is drawn."""
        return _law(self.distribution, self.parameters).table

    @override
    def standard_log_density(self, z: Array) -> Array:
        return _law(self.distribution, self.parameters).log_density(z)

    @override
    def standard_tail(self, z: Array) -> Array:
        return self.table.tail(z)

    @override
    def standard_size(self, tail: Array) -> Array:
        return self.table.size(tail)

    @property
    @override
    def standard_variance(self) -> float:
        return self.table.variance

    @property
    @override
    def standard_fisher_information(self) -> float:
        return self.table.fisher_information


def from_tfp(distribution: Any) -> TFPNoise:
    """Returns the noise of a distribution of TensorFlow Probability.

    Guarantee: the density is checked as that of every `NoiseDistribution`:
    positive, symmetric about 0, unimodal, with integral 1; and that its tails
    fall no faster than an exponential, as accountants need. Noise is drawn with
    the generator of this library, ChaCha20, and not with `sample` of TensorFlow
    Probability. The inverse of the distribution function is interpolated; its
    relative error is below 1e-8, less than the rounding of float32.

    Args:
        distribution: A scalar `tfp.distributions.Distribution` whose parameters
            are numbers, such as `tfd.StudentT(5.0, 0.0, 1.0)`; of TensorFlow's
            or of NumPy's substrate. A number has the precision that it has
            there.

    Raises:
        ImportError: tensorflow-probability is not installed.
        TypeError: It is no such distribution, or a parameter is not a number.
        ValueError: Its law is not symmetric about 0, or breaks another
            condition of a noise family, which the message names.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, for noise of any family.

    >>> import pytest
    >>> tfp = pytest.importorskip("tensorflow_probability.substrates.numpy")
    >>> noise = from_tfp(tfp.distributions.StudentT(5.0, 0.0, 2.0))
    >>> noise.scale, noise.distribution, noise.variance
    (2.0, 'StudentT', 6.6666...)
    """
    kind = type(distribution).__name__
    numpy_kind = getattr(_distributions(), kind, None)
    given = getattr(distribution, "parameters", None)
    if given is None or numpy_kind is None:
        raise TypeError(
            "`distribution` must be a distribution of `tfp.distributions`. "
            f"Received: distribution={_check.shown(distribution)}. Subclass "
            "`keras_dp.ledger.NoiseDistribution` for a law of your own."
        )
    parameters = _numbers(kind, inspect.signature(numpy_kind), given)
    scale = 1.0
    unscaled = tuple(
        (name, 1.0 if name == "scale" else x) for name, x in parameters
    )
    given_scale = dict(parameters).get("scale", 1.0)
    if given_scale > 0 and _is_stretched(kind, parameters, given_scale):
        scale, parameters = given_scale, unscaled
    law = _law(kind, parameters)
    return TFPNoise(scale, kind, parameters, law.digest)


class _Law:
    """A distribution of the NumPy substrate, checked, with its table."""

    def __init__(self, name: str, parameters: tuple[tuple[str, float], ...]):
        self._log_prob = _log_prob(name, parameters)
        one, other = self.log_density(GRID), self._log_prob(-GRID)
        wrong = ~(_equal(one, other) | (np.maximum(one, other) < _NOTHING))
        if wrong.any():
            x = GRID[np.argmax(wrong)]
            raise ValueError(
                "`distribution` must be symmetric about 0. Received: a "
                f"{name} with {dict(parameters)!r}, whose densities at {x!s} "
                "and at its negative differ. Noise that is not symmetric has "
                "no bound here."
            )
        shown = ",".join(f"{x:.9g}" for x in self.log_density(_COMPARED))
        self.digest = hashlib.sha256(shown.encode()).hexdigest()

    def log_density(self, z: Array) -> Array:
        """Returns the log-density at scale 1."""
        return np.asarray(self._log_prob(z))

    @functools.cached_property
    def table(self) -> TabulatedLaw:
        """The tails and quantiles of a density that was checked."""
        found = tabulated(self.log_density)
        far, farther = self._log_prob(found.unit * _FAR)
        if farther < _LIGHTEST * far:
            raise ValueError(
                "`distribution` must have tails that fall no faster than an "
                "exponential: no accountant has a bound for others. Received: "
                f"one whose log-density is {far:.3g} at {_FAR[0]:.0e} units, "
                f"and {farther:.3g} at twice this size. Use `GaussianNoise` "
                "for normal noise."
            )
        if not _LEAST_UNIT <= found.unit <= _MOST_UNIT:
            raise ValueError(
                "`distribution` must have a density at 0 between 0.005 and 50. "
                f"Received: one of {0.5 / found.unit:.3g}. Choose parameters "
                "of about 1, and multiply by `noise.scaled(factor)`."
            )
        return found


@functools.lru_cache(maxsize=64)
def _law(name: str, parameters: tuple[tuple[str, float], ...]) -> _Law:
    return _Law(name, parameters)


def _log_prob(name: str, parameters: tuple[tuple[str, float], ...]) -> Any:
    """Returns the log-density of a distribution, as a function of arrays."""
    distributions = _distributions()
    kind: Any = getattr(distributions, name, None)
    if not (
        inspect.isclass(kind) and issubclass(kind, distributions.Distribution)
    ):
        raise ValueError(
            "`distribution` must be the name of a class of "
            f"`tfp.distributions`. Received: distribution={name!r}."
        )
    made: Any = kind(**{key: np.float64(x) for key, x in parameters})

    def log_prob(x: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(made.log_prob(x), np.float64)

    return log_prob


def _is_stretched(
    name: str, parameters: tuple[tuple[str, float], ...], scale: float
) -> bool:
    """Returns whether the parameter `scale` does nothing but stretch."""
    unscaled = tuple(
        (key, 1.0 if key == "scale" else x) for key, x in parameters
    )
    one = _log_prob(name, parameters)(_COMPARED * scale)
    other = _log_prob(name, unscaled)(_COMPARED) - math.log(scale)
    return bool(_equal(one, other).all())


def _equal(one: Array, other: Array) -> Array:
    """Returns where two logarithms differ by rounding at most."""
    with np.errstate(invalid="ignore"):
        near = np.abs(one - other) <= ROUNDING * (1 + np.abs(one))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    return np.asarray(near | same)


def _numbers(
    kind: str, signature: inspect.Signature, given: dict[str, Any]
) -> tuple[tuple[str, float], ...]:
    """Returns the parameters of a distribution that are not left out."""
    found = []
    for name, value in given.items():
        known = signature.parameters.get(name)
        default = inspect.Parameter.empty if known is None else known.default
        if name in _IGNORED or value is default:
            continue
        array = np.asarray(value)
        if array.ndim or not isinstance(array.item(), numbers.Real):
            raise TypeError(
                "`distribution` must have numbers as parameters. Received: a "
                f"{kind} with {name}={_check.shown(value)}. Distributions of "
                "several numbers, or made of others, cannot be recorded."
            )
        found.append((name, float(array)))
    return tuple(sorted(found))


def _distributions() -> Any:
    """Returns `tfp.distributions` on NumPy, which loads no TensorFlow."""
    try:
        from tensorflow_probability.substrates import numpy as tfp

        return tfp.distributions
    except ImportError as error:
        missing, install = "tensorflow-probability", '"keras_dp[probability]"'
        if error.name == "tf_keras":  # It is loaded where TensorFlow is.
            missing, install = "tf_keras", "--no-deps tf_keras"
        raise ImportError(
            f"{missing} must be installed for noise of the distributions of "
            f"TensorFlow Probability: pip install {install}"
        ) from error
