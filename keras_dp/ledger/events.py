"""Events that can happen to a data set: frozen values, valid when made.

The meaning of an event never changes once it is released; a new mechanism
gets a new class. Nothing here is derived from data: an event holds what was
public before the mechanism ran.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from keras_dp import _check
from keras_dp.ledger.coordinate_bounds import CoordinateBounds
from keras_dp.ledger.noise_distribution import (
    NoiseDistribution,
    check_fields,
)


class SamplingEvent:
    """How the records of one round were drawn from the data set.

    `drawn_by_library` tells a draw made by a sampler of this library from one
    that the caller only declared. Accountants treat both alike; reports say
    which it was.
    """

    __slots__ = ()


@dataclasses.dataclass(frozen=True, slots=True)
class PoissonSampling(SamplingEvent):
    """Each record took part independently with the same probability.

    Attributes:
        probability: Chance of a record to take part in the round, in (0, 1].
        drawn_by_library: Whether a sampler of this library made the draw.

    >>> PoissonSampling(probability=0.01)
    PoissonSampling(probability=0.01, drawn_by_library=False)
    """

    probability: float
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _as_floats(self, _check.probability, "probability")
        _check.boolean(drawn_by_library=self.drawn_by_library)


@dataclasses.dataclass(frozen=True, slots=True)
class PoissonUserSampling(PoissonSampling):
    """A Poisson sample of units, each with all of its rows.

    The record of the round is such a unit, such as a user. Its cost is that of
    `PoissonSampling`; the class tells that no row was taken for a unit.

    >>> PoissonUserSampling(probability=0.01)
    PoissonUserSampling(probability=0.01, drawn_by_library=False)
    """


@dataclasses.dataclass(frozen=True, slots=True)
class TruncatedPoissonSampling(SamplingEvent):
    """A Poisson sample of which at most `batch_size` records were kept.

    Where more took part, a uniformly random subset of that size was kept.

    Attributes:
        probability: Chance of a record to be drawn, in (0, 1].
        batch_size: The most records that a sample keeps, >= 1.
        population_size: Records in the data set, >= 1.
        drawn_by_library: Whether a sampler of this library made the draw.

    >>> TruncatedPoissonSampling(0.01, batch_size=200, population_size=10_000)
    TruncatedPoissonSampling(probability=0.01, batch_size=200, ...)
    """

    probability: float
    batch_size: int
    population_size: int
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _as_floats(self, _check.probability, "probability")
        _as_integers(self, "batch_size", "population_size")
        _check.boolean(drawn_by_library=self.drawn_by_library)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizeWithoutReplacement(SamplingEvent):
    """A uniformly drawn subset of fixed size, new in every round.

    Attributes:
        sample_size: Records in the sample, >= 1.
        population_size: Records in the data set, >= `sample_size`.
        drawn_by_library: Whether a sampler of this library made the draw.
    """

    sample_size: int
    population_size: int
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check.boolean(drawn_by_library=self.drawn_by_library)
        if self.sample_size > self.population_size:
            raise ValueError(
                "`sample_size` must be <= `population_size` when drawing "
                f"without replacement. Received: sample_size="
                f"{self.sample_size!r}, "
                f"population_size={self.population_size!r}."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizeWithReplacement(SamplingEvent):
    """`sample_size` independent uniform draws; a record can occur repeatedly.

    Attributes:
        sample_size: Number of draws, >= 1.
        population_size: Records in the data set, >= 1.
        drawn_by_library: Whether a sampler of this library made the draw.
    """

    sample_size: int
    population_size: int
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _check_sizes(self)
        _check.boolean(drawn_by_library=self.drawn_by_library)


@dataclasses.dataclass(frozen=True, slots=True)
class DisjointBatches(SamplingEvent):
    """One batch of an epoch in which every record occurs in one batch only.

    Attributes:
        epoch_id: The same for all batches of one pass over the data, and
            different for every other pass of any run on the data set.
        drawn_by_library: Whether a sampler of this library made the draw.
    """

    epoch_id: str
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _check.non_empty_text(epoch_id=self.epoch_id)
        _check.boolean(drawn_by_library=self.drawn_by_library)


@dataclasses.dataclass(frozen=True, slots=True)
class RandomAllocation(SamplingEvent):
    """One batch of an epoch in which every record picked batches at random.

    Each record picked `batches_per_record` of the `batches`, all such subsets
    being equally likely, independently of the other records. No more rounds
    than `batches` share an `epoch_id`.

    Attributes:
        epoch_id: The same for all batches of one pass over the data, and
            different for every other pass of any run on the data set.
        batches: Batches of the epoch, whether they all ran or not, >= 1.
        batches_per_record: How many of them each record is in, in
            [1, `batches`].
        drawn_by_library: Whether a sampler of this library made the draw.

    Source: Chua et al. (2024), arXiv:2412.16802 ("balls and bins"); Feldman
    and Shenfeld (2025), arXiv:2502.08202 ("random allocation").
    """

    epoch_id: str
    batches: int
    batches_per_record: int = 1
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _check.non_empty_text(epoch_id=self.epoch_id)
        _as_integers(self, "batches", "batches_per_record")
        if self.batches_per_record > self.batches:
            raise ValueError(
                "`batches_per_record` must be at most batches="
                f"{self.batches!r}. Received: "
                f"batches_per_record={self.batches_per_record!r}."
            )
        _check.boolean(drawn_by_library=self.drawn_by_library)


@dataclasses.dataclass(frozen=True, slots=True)
class FullDataset(SamplingEvent):
    """Every record took part.

    Attributes:
        drawn_by_library: Whether a sampler of this library made the draw.
    """

    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _check.boolean(drawn_by_library=self.drawn_by_library)


@dataclasses.dataclass(frozen=True, slots=True)
class UnverifiedSampling(SamplingEvent):
    """The caller brought the batch; a record occurs in it at most once.

    Nothing is known of how it was drawn, so that no amplification by
    sampling may be claimed.
    """


class SumQueryEvent:
    """One release over the sample of a round. Concrete classes have `name`."""

    __slots__ = ()
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class GaussianSum(SumQueryEvent):
    """One release of `sum_i v_i + N(0, noise_stddev^2 I)`.

    The bound and the noise are kept apart, never only their ratio: the
    neighbouring relation is chosen at replay and changes the sensitivity.

    Attributes:
        name: The leaf query that made the release, unique in its round.
        l2_norm_bound: Upper bound on the L2 norm of one record's `v_i`, in the
            unit of the records, >= 0.
        noise_stddev: Standard deviation of the noise on the *sum*, in the same
            unit, >= 0. At 0 the sum is released bare.

    >>> GaussianSum(name="gradients", l2_norm_bound=1, noise_stddev=4)
    GaussianSum(name='gradients', l2_norm_bound=1.0, noise_stddev=4.0)
    """

    name: str
    l2_norm_bound: float
    noise_stddev: float

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _as_floats(
            self, _check.finite_non_negative, "l2_norm_bound", "noise_stddev"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class NonPrivateSum(SumQueryEvent):
    """A sum was released without bound or noise: epsilon is infinite.

    Attributes:
        name: The leaf query that made the release, unique in its round.
    """

    name: str

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class DiscreteGaussianSum(SumQueryEvent):
    """One release of a sum of integer vectors plus discrete Gaussian noise.

    The noise on each coordinate has mass proportional to
    `exp(-k^2 / (2 noise_scale^2))` on every integer `k`.

    Attributes:
        name: The leaf query that made the release, unique in its round.
        l2_norm_bound: Upper bound on the L2 norm of one record's vector, >= 0.
        noise_scale: Parameter of the noise on the *sum*, >= 0, which its
            standard deviation never exceeds. At 0 the sum is released bare.

    Source: Canonne, Kamath, Steinke (2020), arXiv:2004.00010v4, Definition 1.
    """

    name: str
    l2_norm_bound: float
    noise_scale: float

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _as_floats(
            self, _check.finite_non_negative, "l2_norm_bound", "noise_scale"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class TreeSum(SumQueryEvent):
    """One step of a tree that releases noised sums of the rounds so far.

    The rounds with one `tree_id` are the leaves of a binary tree, in order.
    A node holds the sum over the leaves below it, with Gaussian noise of its
    own, and each prefix of the rounds is released as a sum of nodes.

    Attributes:
        name: The leaf query that made the release, unique in its round.
        l2_norm_bound: Upper bound on the L2 norm of what one record
            contributes to one round, >= 0.
        noise_stddev: Standard deviation of the noise on each node, >= 0.
        tree_id: The same for all rounds of one tree, and different for every
            other tree of any run on the data set.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Algorithm 1 and
    Appendix D.
    """

    name: str
    l2_norm_bound: float
    noise_stddev: float
    tree_id: str

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name, tree_id=self.tree_id)
        _as_floats(
            self, _check.finite_non_negative, "l2_norm_bound", "noise_stddev"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedSum(SumQueryEvent):
    """One release of a sum of encoded records plus independent noise.

    A record's contribution is bounded coordinate by coordinate, up to their
    order and signs, by the magnitudes of one of the vectors in `bounds`;
    which one depends on the record, and is not released.

    Attributes:
        name: The leaf query that made the release, unique in its round.
        bounds: Magnitudes of each preselected vector.
        noise: Distribution of the noise on each coordinate of the *sum*.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemma 5.
    """

    name: str
    bounds: CoordinateBounds
    noise: NoiseDistribution

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _check.kind(CoordinateBounds, bounds=self.bounds)
        _check.kind(NoiseDistribution, noise=self.noise)
        check_fields(self.noise)


@dataclasses.dataclass(frozen=True, slots=True)
class ThresholdedSum(SumQueryEvent):
    """One release of keys whose noised sum exceeds a threshold.

    Each record adds equal positive weights to at most `max_keys` keys of its
    own choice. Each key that a record of the sample holds gets the sum of its
    weights plus `N(0, noise_stddev^2)`; keys whose noised sum exceeds
    `threshold` are released, with the noised sum.

    Attributes:
        name: The leaf query that made the release, unique in its round.
        l2_norm_bound: Upper bound on the L2 norm of one record's weights, in
            the unit of the sums, > 0.
        noise_stddev: Standard deviation of the noise on each sum, in the same
            unit, > 0.
        max_keys: Upper bound on the keys of one record, >= 1.
        threshold: In the same unit, > 0.

    Source: Gopi et al. (2020), arXiv:2002.09745, the weighted Gaussian
    mechanism. We differ in the weights, which are equal whatever others hold.

    >>> ThresholdedSum("words", 1, 4, max_keys=50, threshold=25)
    ThresholdedSum(name='words', l2_norm_bound=1.0, noise_stddev=4.0, ...)
    """

    name: str
    l2_norm_bound: float
    noise_stddev: float
    max_keys: int
    threshold: float

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _as_floats(
            self,
            _check.finite_positive,
            "l2_norm_bound",
            "noise_stddev",
            "threshold",
        )
        _check.integer_at_least(1, max_keys=self.max_keys)
        object.__setattr__(self, "max_keys", int(self.max_keys))


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """One sampling event and everything that was released over that sample.

    Attributes:
        sampling: How the sample was drawn. All `queries` saw this one sample.
        queries: The releases, at least one, with different names.
        seeded: Whether the caller chose a seed of the sampling or the noise.
            Such a round is reproducible, and private only towards those who
            cannot know the seed.
    """

    sampling: SamplingEvent
    queries: tuple[SumQueryEvent, ...]
    seeded: bool = False

    def __post_init__(self) -> None:
        _check.kind(SamplingEvent, sampling=self.sampling)
        object.__setattr__(self, "queries", tuple(self.queries))
        if not self.queries:
            raise ValueError(
                "`queries` must hold at least one SumQueryEvent. "
                f"Received: queries={self.queries!r}."
            )
        for query in self.queries:
            if not isinstance(query, SumQueryEvent):
                raise TypeError(
                    "`queries` must hold SumQueryEvents only. "
                    f"Received: queries={self.queries!r}."
                )
        names = [query.name for query in self.queries]
        if len(set(names)) < len(names):
            raise ValueError(
                "`queries` must have different names, one per leaf query. "
                f"Received: names={names!r}."
            )
        _check.boolean(seeded=self.seeded)


def _check_sizes(event: Any) -> None:
    _as_integers(event, "sample_size", "population_size")


def _as_integers(event: Any, *fields: str) -> None:
    """Checks fields, and makes numpy integers Python ones."""
    for field in fields:
        value = getattr(event, field)
        _check.integer_at_least(1, **{field: value})
        object.__setattr__(event, field, int(value))


def _as_floats(event: Any, check: Callable[..., None], *fields: str) -> None:
    """Checks fields, and makes numpy scalars and ints Python floats."""
    for field in fields:
        value = getattr(event, field)
        check(**{field: value})
        try:
            number = float(value) + 0.0  # Minus zero is zero.
        except OverflowError:
            number = math.inf
        if type(value) is not float:
            # As a float, a valid number may become infinite or zero.
            check(**{field: number})
        object.__setattr__(event, field, number)
