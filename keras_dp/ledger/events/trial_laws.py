"""Laws of a random number of trials, of which only the best is released.

How much the best of some trials tells of the data depends on how their number
is drawn. It is drawn before the first trial, without a look at the data, and
stays secret.
"""

import abc
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import ClassVar

from keras_dp import _check
from keras_dp._override import override

# Exceeds the rounding of a few functions of float64.
_ROUND_UP = 1 + 1e-13
_LARGEST_SHAPE, _LARGEST_MEAN = 1e6, 1e9
# The largest `log(1 / gamma)`.
_LARGEST_LOG = 200.0


class TrialLaw(abc.ABC):
    """The law of the number `K` of trials; the base class of both laws.

    Attributes:
        kind: The name of the class in a ledger, which never changes.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @property
    @abc.abstractmethod
    def words(self) -> str:
        """The law in a few words."""

    @property
    @abc.abstractmethod
    def largest_mean(self) -> float:
        """The mean number of trials, rounded up."""

    @property
    @abc.abstractmethod
    def no_trial(self) -> float:
        """The probability of no trial at all."""

    @abc.abstractmethod
    def masses(self) -> Iterator[float]:
        """Yields the probability of no trial, of one trial, and so on."""

    def trials(self, uniform: float) -> int:
        """Returns the number of trials that a uniform number stands for.

        Guarantee: for a uniform number in [0, 1) the result has this law, but
        for the rounding of float64.

        Args:
            uniform: In [0, 1). Draw it from the operating system, and show it
                to nobody.

        Raises:
            ValueError: `uniform` is not in [0, 1).

        >>> TruncatedNegativeBinomial(shape=1, mean=10).trials(0.5)
        7
        >>> PoissonTrials(mean=10).trials(0.5)
        10
        """
        _check.share("[0, 1)", uniform=uniform)
        total, count = 0.0, 0
        for mass in self.masses():
            total += mass
            # Floats may add up to a little less than 1.
            if uniform < total or (total > 0.5 and total + mass == total):
                break
            count += 1
        return count


@dataclasses.dataclass(frozen=True, slots=True)
class TruncatedNegativeBinomial(TrialLaw):
    """The negative binomial law, given that the number of trials is not 0.

    With `g` for `gamma` and for `k >= 1`, `P(K = k)` is proportional to
    `(1 - g)^k` times the product of `(l + shape) / (l + 1)` over
    `1 <= l < k`, over `k` for shape 0. Shape 1 is the geometric law, and
    shape 0 the logarithmic one.

    A search of a smaller shape costs a smaller epsilon for the same mean. But
    its number of trials varies more: most searches have few trials, and some
    have very many.

    Attributes:
        shape: In (-1, 1e6].
        mean: Mean number of trials, in (1, 1e9].

    Raises:
        ValueError: `shape` or `mean` is out of its range; or `mean` is too
            large for a shape near -1.

    Source: Papernot and Steinke (2022), arXiv:2110.03620, Definition 1.

    >>> law = TruncatedNegativeBinomial(shape=1, mean=20)
    >>> round(law.gamma, 12)
    0.05
    """

    no_trial = 0.0

    kind: ClassVar[str] = "truncated_negative_binomial"

    shape: float
    mean: float

    def __post_init__(self) -> None:
        _check.finite_positive(mean=self.mean)
        if not 1 < self.mean <= _LARGEST_MEAN:
            raise ValueError(
                f"`mean` must be in (1, {_LARGEST_MEAN:g}]. "
                f"Received: mean={self.mean!r}. A single trial needs no search."
            )
        _check.number(shape=self.shape)
        if not -1 < self.shape <= _LARGEST_SHAPE:
            raise ValueError(
                f"`shape` must be in (-1, {_LARGEST_SHAPE:g}]. "
                f"Received: shape={self.shape!r}. Shape 1 is the geometric law."
            )
        object.__setattr__(self, "mean", float(self.mean))
        object.__setattr__(self, "shape", float(self.shape) + 0.0)
        if _mean(self.shape, _LARGEST_LOG) < self.mean:
            raise ValueError(
                "`mean` must be smaller for a shape this near to -1. "
                f"Received: shape={self.shape!r}, mean={self.mean!r}."
            )

    @property
    def gamma(self) -> float:
        """The parameter of the law, in (0, 1)."""
        return _gamma(self.shape, self.mean)

    @override
    @property
    def words(self) -> str:
        name = {0.0: "logarithmic", 1.0: "geometric"}.get(
            self.shape, f"truncated negative binomial, shape {self.shape:g}"
        )
        return f"{self.mean:g} trials on average ({name})"

    @override
    @property
    def largest_mean(self) -> float:
        found = _mean(self.shape, -math.log(self.gamma))
        return max(self.mean, found) * _ROUND_UP

    @override
    def masses(self) -> Iterator[float]:
        yield 0.0
        shape, left = self.shape, math.log1p(-self.gamma)
        log_mass = left + _log_ratio(shape, -math.log(self.gamma))
        for count in itertools.count(1):
            yield math.exp(log_mass)
            log_mass += left + math.log((count + shape) / (count + 1))


@dataclasses.dataclass(frozen=True, slots=True)
class PoissonTrials(TrialLaw):
    """The Poisson law. There may be no trial, and then nothing is released.

    Attributes:
        mean: Mean number of trials, in (0, 1e9].

    Raises:
        ValueError: `mean` is out of its range.

    Source: Papernot and Steinke (2022), arXiv:2110.03620, Theorem 6.

    >>> round(PoissonTrials(mean=5).no_trial, 6)
    0.006738
    """

    kind: ClassVar[str] = "poisson_trials"

    mean: float

    def __post_init__(self) -> None:
        _check.finite_positive(mean=self.mean)
        if self.mean > _LARGEST_MEAN:
            raise ValueError(
                f"`mean` must be at most {_LARGEST_MEAN:g}. "
                f"Received: mean={self.mean!r}."
            )
        object.__setattr__(self, "mean", float(self.mean))

    @override
    @property
    def words(self) -> str:
        return f"{self.mean:g} trials on average (Poisson)"

    @override
    @property
    def largest_mean(self) -> float:
        return self.mean * _ROUND_UP

    @override
    @property
    def no_trial(self) -> float:
        return math.exp(-self.mean)

    @override
    def masses(self) -> Iterator[float]:
        log_mean, log_mass = math.log(self.mean), -self.mean
        for count in itertools.count(1):
            yield math.exp(log_mass)
            log_mass += log_mean - math.log(count)


@functools.lru_cache(maxsize=256)
def _gamma(shape: float, mean: float) -> float:
    """Returns the parameter of the law with a mean."""
    low, high = 0.0, _LARGEST_LOG
    while low < (middle := (low + high) / 2) < high:
        if _mean(shape, middle) < mean:
            low = middle
        else:
            high = middle
    return math.exp(-high)


def _mean(shape: float, log: float) -> float:
    """Returns the mean for `gamma = e^-log`."""
    return math.expm1(log) * math.exp(_log_ratio(-shape, log))


def _log_ratio(shape: float, log: float) -> float:
    """Returns the log of `shape / (gamma^-shape - 1)`, `gamma = e^-log`."""
    exponent = shape * log
    if exponent == 0:
        return -math.log(log)
    if exponent > 1:
        return math.log(shape) - exponent - math.log1p(-math.exp(-exponent))
    return math.log(shape / math.expm1(exponent))
