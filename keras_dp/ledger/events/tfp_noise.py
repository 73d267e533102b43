"""Noise of any symmetric, unimodal law of TensorFlow Probability."""

import dataclasses
import functools
import hashlib
import inspect
import math
import numbers
from typing import Any

import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.noise_distribution import (
    GRID,
    ROUNDING,
    Array,
    NoiseDistribution,
    check_fields,
)
from keras_dp.ledger.events.tabulated_law import TabulatedLaw, tabulated

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
    the density (`tabulated_law.py`), so that no other function of the
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
    """Returns `tfp.distributions` on NumPy, which loads no TensorFlow itself.

    Raises:
        ImportError: tensorflow-probability is not installed.
    """
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
