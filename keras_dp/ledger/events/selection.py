"""The best of a random number of trials as one release, and their law."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import ClassVar, TypeAlias

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.rounds import (
    FullDataset,
    Round,
    SumQueryEvent,
    checked_pairs,
)

# Exceeds the rounding of a few functions of float64.
_ROUND_UP = 1 + 1e-13
_LARGEST_SHAPE, _LARGEST_MEAN = 1e6, 1e9
# The largest `log(1 / gamma)`.
_LARGEST_LOG = 200.0


@dataclasses.dataclass(frozen=True, slots=True)
class TruncatedNegativeBinomial:
    """The negative binomial law, given that the number of trials is not 0.

    It is the law of the number `K` of trials. With `g` for `gamma` and for
    `k >= 1`, `P(K = k)` is proportional to `(1 - g)^k` times the product of
    `(l + shape) / (l + 1)` over `1 <= l < k`, over `k` for shape 0. Shape 1 is
    the geometric law, and shape 0 the logarithmic one.

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

    @property
    def words(self) -> str:
        """The law in a few words."""
        name = {0.0: "logarithmic", 1.0: "geometric"}.get(
            self.shape, f"truncated negative binomial, shape {self.shape:g}"
        )
        return f"{self.mean:g} trials on average ({name})"

    @property
    def largest_mean(self) -> float:
        """The mean number of trials, rounded up."""
        found = _mean(self.shape, -math.log(self.gamma))
        return max(self.mean, found) * _ROUND_UP

    def masses(self) -> Iterator[float]:
        """Yields the probability of no trial, 0, of one trial, and so on."""
        yield 0.0
        shape, left = self.shape, math.log1p(-self.gamma)
        log_mass = left + _log_ratio(shape, -math.log(self.gamma))
        for count in itertools.count(1):
            yield math.exp(log_mass)
            log_mass += left + math.log((count + shape) / (count + 1))

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


# The rounds of one trial and their counts.
TrialRounds: TypeAlias = tuple[tuple[Round, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Selection(SumQueryEvent):
    """The best of a random number of trials: one release.

    Each trial runs the same rounds over the data set, and has a score. The
    trial with the highest score is released with all that it answered, and
    nothing else: no other trial, and not how many there were. Equal scores are
    put in order at random.

    A selection is the only query of a round over the `FullDataset`. `round`
    makes this round, which stands for all trials.

    Attributes:
        plans: The rounds of one trial, at most: pairs of a round and how often
            it takes place. These are its training, its score, and whatever else
            it asks of the private data. The score is computed from the answers
            of these rounds, and from public data. If settings such as the batch
            size make other rounds, there is one plan for each setting, and each
            trial draws one without a look at the data.
        law: How the number of trials is drawn: without a look at the data.
        name: The name of the release.

    Raises:
        ValueError: `plans` or one of them is empty, or a count is below 1.
        TypeError: A plan does not hold pairs of a round and its count, or
            `law` is no law of this library.

    Source: Liu and Talwar (2019), arXiv:1811.07971; Papernot and Steinke
    (2022), arXiv:2110.03620, Section 2.

    >>> from keras_dp.ledger import (
    ...     GaussianSum, PoissonSampling, TruncatedNegativeBinomial)
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> law = TruncatedNegativeBinomial(shape=1, mean=20)
    >>> search = Selection([[(step, 1000)]], law)
    >>> search.words
    'search: the best of 20 trials on average (geometric), 1,000 rounds each'
    """

    kind: ClassVar[str] = "selection"
    stands_alone: ClassVar[bool] = True

    plans: tuple[TrialRounds, ...]
    law: TruncatedNegativeBinomial
    name: str = "search"

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _check.kind(TruncatedNegativeBinomial, law=self.law)
        plans = tuple(_checked(plan) for plan in self.plans)
        if not plans:
            raise ValueError(
                "`plans` must hold at least one plan of a trial. "
                "Received: plans=()."
            )
        object.__setattr__(self, "plans", plans)

    @property
    def round(self) -> Round:
        """The round that stands for all trials, to be recorded before them."""
        drawn = all(
            each.sampling.drawn_by_library for each, _ in self.all_rounds
        )
        return Round(FullDataset(drawn), (self,), self.is_seeded)

    @property
    def all_rounds(self) -> tuple[tuple[Round, int], ...]:
        """The rounds of all plans, with their counts."""
        return tuple(pair for plan in self.plans for pair in plan)

    @property
    @override
    def is_private(self) -> bool:  # type: ignore[override]
        return all(
            query.is_private
            for each, _ in self.all_rounds
            for query in each.queries
        )

    @property
    @override
    def is_seeded(self) -> bool:
        return any(each.seeded for each, _ in self.all_rounds)

    @override
    @property
    def words(self) -> str:
        sizes = [sum(count for _, count in plan) for plan in self.plans]
        least, most = min(sizes), max(sizes)
        rounds = f"{most:,} round{'s' * (most != 1)}"
        if least < most:
            rounds = f"{least:,} to {rounds}"
        return f"{self.name}: the best of {self.law.words}, {rounds} each"


def _checked(plan: Iterable[tuple[Round, int]]) -> TrialRounds:
    """Returns a plan as a tuple, if it is one."""
    remedy = "For one plan, pass plans=[plan]."
    pairs = tuple(checked_pairs("plans", plan, remedy))
    if not pairs:
        raise ValueError(
            "A plan in `plans` must hold at least one pair (Round, count). "
            "Received: a plan without rounds."
        )
    return pairs
