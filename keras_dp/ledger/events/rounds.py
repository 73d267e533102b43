"""Events that can happen to a data set: frozen values, valid when made.

The meaning of an event never changes once it is released; a new mechanism
gets a new class, in the tuple `ALL`. Nothing here is derived from data: an
event holds what was public before the mechanism ran. A class says of itself
what ledgers and reports need: its name in a ledger, and what it was in words.
Its price is in `accountants.normalize`.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger.events.coordinate_bounds import CoordinateBounds
from keras_dp.ledger.events.noise_distribution import (
    NoiseDistribution,
    check_fields,
)
from keras_dp.ledger.events.strategies import Strategy


class SamplingEvent:
    """How the records of one round were drawn from the data set.

    The base class of all sampling events. Most of them have the attribute
    `drawn_by_library`: it is true if a sampler of this library drew the sample,
    and false if the caller only declares how it was drawn. Accountants treat
    both alike; reports say which it was.

    Attributes:
        kind: The name of the class in a ledger, which never changes.
        template: The words of an event, as a format of the event.
        is_verified: Whether anybody says how the sample was drawn.
        draws_whole_units: Whether a record of the round is a unit with all its
            rows.
    """

    __slots__ = ()
    kind: ClassVar[str]
    template: ClassVar[str] = "{0!r}"
    is_verified: ClassVar[bool] = True
    draws_whole_units: ClassVar[bool] = False
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        _check_fields(self)

    @property
    def words(self) -> str:
        """How the sample was drawn, in a few words."""
        return self.template.format(self)


@dataclasses.dataclass(frozen=True, slots=True)
class PoissonSampling(SamplingEvent):
    """Each record took part independently with the same probability.

    Attributes:
        probability: Chance of a record to take part in the round, in (0, 1].

    >>> PoissonSampling(probability=0.01)
    PoissonSampling(probability=0.01, drawn_by_library=False)
    """

    kind: ClassVar[str] = "poisson"
    template: ClassVar[str] = "Poisson sample, probability {0.probability:g}"

    probability: float
    drawn_by_library: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class PoissonUserSampling(PoissonSampling):
    """A Poisson sample of units such as users, each with all of its examples.

    The record of this round is a whole unit. The round costs what a round of
    `PoissonSampling` costs. The class only states that units were drawn, and
    not single examples.

    >>> PoissonUserSampling(probability=0.01)
    PoissonUserSampling(probability=0.01, drawn_by_library=False)
    """

    kind: ClassVar[str] = "poisson_users"
    template: ClassVar[str] = (
        f"{PoissonSampling.template}, of units with all their rows"
    )
    draws_whole_units: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, slots=True)
class TruncatedPoissonSampling(SamplingEvent):
    """A Poisson sample of which at most `batch_size` records were kept.

    If more records were drawn, a uniformly random subset of `batch_size` of
    them was kept.

    Attributes:
        probability: Chance of a record to be drawn, in (0, 1].
        batch_size: The largest number of records that a sample keeps, >= 1.
        population_size: Number of records in the data set, >= 1. Whoever sees
            the ledger learns it.

    >>> TruncatedPoissonSampling(0.01, batch_size=200, population_size=10_000)
    TruncatedPoissonSampling(probability=0.01, batch_size=200, ...)
    """

    kind: ClassVar[str] = "truncated_poisson"
    template: ClassVar[str] = (
        f"{PoissonSampling.template}, at most {{0.batch_size:,}} of "
        "{0.population_size:,} records"
    )

    probability: float
    batch_size: int
    population_size: int
    drawn_by_library: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizeWithoutReplacement(SamplingEvent):
    """A subset of fixed size, drawn uniformly and anew in every round.

    Attributes:
        sample_size: Number of records in the sample, >= 1.
        population_size: Number of records in the data set, >= `sample_size`.

    >>> FixedSizeWithoutReplacement(100, population_size=10_000)
    FixedSizeWithoutReplacement(sample_size=100, population_size=10000, ...)
    """

    kind: ClassVar[str] = "fixed_size_without_replacement"
    template: ClassVar[str] = (
        "sample of {0.sample_size:,} of {0.population_size:,} without "
        "replacement"
    )

    sample_size: int
    population_size: int
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        SamplingEvent.__post_init__(self)
        if self.sample_size > self.population_size:
            raise ValueError(
                "`sample_size` must be <= `population_size` when drawing "
                f"without replacement. Received: sample_size="
                f"{self.sample_size!r}, "
                f"population_size={self.population_size!r}."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class DisjointBatches(SamplingEvent):
    """One batch of a pass over the data in which no record occurs twice.

    Attributes:
        epoch_id: The name of the pass: the same for all its batches, and
            different for every other pass of any run on the data set.

    >>> DisjointBatches(epoch_id="first pass")
    DisjointBatches(epoch_id='first pass', drawn_by_library=False)
    """

    kind: ClassVar[str] = "disjoint_batches"
    template: ClassVar[str] = "disjoint batch of epoch {0.epoch_id}"

    epoch_id: str
    drawn_by_library: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CyclicPoissonSampling(SamplingEvent):
    """A Poisson sample of one class of the records; classes take turns.

    Each record drew one of `classes` classes, once for all rounds with one draw
    id, uniformly and independently of the others. A cycle is a round for each
    class, in order. In the round of its class, a record took part with
    `probability`, independently of all else.

    Attributes:
        epoch_id: The draw id, which no other draw of any run on the data set
            has, a hyphen, and the number of the cycle, from 0.
        classes: The number of classes, >= 1: the rounds of a cycle.
        probability: Chance of a record to take part in the round of its class,
            in (0, 1].

    Source: Choquette-Choo et al. (2023), arXiv:2306.08153, section 4.

    >>> CyclicPoissonSampling("draw-0", classes=10, probability=0.5).cycle
    0
    """

    kind: ClassVar[str] = "cyclic_poisson"

    epoch_id: str
    classes: int
    probability: float
    drawn_by_library: bool = False

    def __post_init__(self) -> None:
        SamplingEvent.__post_init__(self)
        draw, _, cycle = self.epoch_id.rpartition("-")
        if not draw or not (cycle.isascii() and cycle.isdecimal()):
            raise ValueError(
                "`epoch_id` must be the id of a draw, a hyphen, and the number "
                f"of a cycle. Received: epoch_id={self.epoch_id!r}."
            )

    @property
    def draw_id(self) -> str:
        """The id of the draw of the classes."""
        return self.epoch_id.rpartition("-")[0]

    @property
    def cycle(self) -> int:
        """The number of the cycle, from 0."""
        return int(self.epoch_id.rpartition("-")[2])

    @override
    @property
    def words(self) -> str:
        drawn = (
            "all records"
            if self.probability == 1
            else f"Poisson sample, probability {self.probability:g},"
        )
        return (
            f"{drawn} of one of {self.classes:,} classes that take turns "
            f"(cycle {self.epoch_id})"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class FullDataset(SamplingEvent):
    """Every record of the data set took part.

    >>> FullDataset()
    FullDataset(drawn_by_library=False)
    """

    kind: ClassVar[str] = "full_dataset"
    template: ClassVar[str] = "all records"

    drawn_by_library: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class UnverifiedSampling(SamplingEvent):
    """The caller brought the batch, in which a record occurs at most once.

    The contents of a record must not decide in which batch others stand.
    The ledger does not know how the batch was drawn. So accountants claim no
    amplification by sampling.

    >>> UnverifiedSampling()
    UnverifiedSampling()
    """

    kind: ClassVar[str] = "unverified"
    is_verified: ClassVar[bool] = False
    template: ClassVar[str] = "batch whose sampling was not verified"


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingByContents(UnverifiedSampling):
    """A batch of the caller in which contents may decide where records stand.

    The stages of the data set show it: it filters records, groups them by their
    length, or pads a batch to its longest record. So a record that is replaced
    can change several batches. One that is zeroed out keeps its place, and
    changes what it adds itself.

    >>> SamplingByContents()
    SamplingByContents()
    """

    kind: ClassVar[str] = "by_contents"
    template: ClassVar[str] = (
        "batch in which contents may decide where records stand"
    )


class SumQueryEvent:
    """One release over the sample of a round; the base class of all of them.

    Attributes:
        kind: The name of the class in a ledger, which never changes.
        template: The words for what was released, as a format of the event.
        is_private: Whether the class has noise, or else nothing protects it.
        stands_alone: Whether it is the only query of a round over the full
            data set: one that draws samples of its own.
        name: The leaf query that made the release, unique in its round.
    """

    __slots__ = ()
    kind: ClassVar[str]
    template: ClassVar[str] = "{0!r}"
    is_private: ClassVar[bool] = True
    stands_alone: ClassVar[bool] = False
    name: str

    def __post_init__(self) -> None:
        _check_fields(self)

    @property
    def is_seeded(self) -> bool:
        """Whether the caller chose a seed of the draws of its own."""
        return False

    @property
    def span_id(self) -> str | None:
        """The id of the mechanism whose rounds have one cost.

        It is `None` for a release that is private by itself.
        """
        return None

    @property
    def words(self) -> str:
        """The name, the kind of sum, its bound and its noise."""
        return self.template.format(self)


@dataclasses.dataclass(frozen=True, slots=True)
class NoisedSum(SumQueryEvent):
    """A sum with Gaussian noise; the base class of all of these.

    Attributes:
        l2_norm_bound: Upper bound on the L2 norm of what one record adds to the
            sum of one round, in the unit of the records, >= 0.
        noise_stddev: Standard deviation of the noise, in the unit of the
            records, >= 0: of the noise on the *sum*, where a class says nothing
            else. At 0 the sum is released without noise.
    """

    name: str
    l2_norm_bound: float
    noise_stddev: float

    @override
    @property
    def words(self) -> str:
        noise, bound = self.noise_stddev, self.l2_norm_bound
        ratio = noise / bound if bound > 0 else math.inf
        return (
            f"{self.name}: {self.template.format(self)}, bound {bound:g}, "
            f"noise stddev {noise:g} (multiplier {ratio:.4g})"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class GaussianSum(NoisedSum):
    """One release of `sum_i v_i + N(0, noise_stddev^2 I)`.

    The event holds the bound and the noise, and not only their ratio: an
    accountant chooses the adjacency relation later, and this changes the
    sensitivity.

    >>> GaussianSum(name="gradients", l2_norm_bound=1, noise_stddev=4)
    GaussianSum(name='gradients', l2_norm_bound=1.0, noise_stddev=4.0)
    """

    kind: ClassVar[str] = "gaussian_sum"
    template: ClassVar[str] = "Gaussian sum"


@dataclasses.dataclass(frozen=True, slots=True)
class ProvenGaussianSum(GaussianSum):
    """A `GaussianSum` whose bound holds in floating point.

    The bound covers the rounding of the norms and sums of records in float32,
    in any order of addition; see `docs/finite_precision.md`. It costs what a
    `GaussianSum` costs.

    >>> ProvenGaussianSum("gradients", l2_norm_bound=1, noise_stddev=4)
    ProvenGaussianSum(name='gradients', l2_norm_bound=1.0, noise_stddev=4.0)
    """

    kind: ClassVar[str] = "proven_gaussian_sum"
    template: ClassVar[str] = "Gaussian sum in proven precision"


@dataclasses.dataclass(frozen=True, slots=True)
class NonPrivateSum(SumQueryEvent):
    """One release of a sum without bound or noise: epsilon is infinite.

    >>> NonPrivateSum("loss")
    NonPrivateSum(name='loss')
    """

    kind: ClassVar[str] = "non_private_sum"
    template: ClassVar[str] = "{0.name}: sum without noise, not private"
    is_private: ClassVar[bool] = False

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class CorrelatedSum(NoisedSum):
    """One round of a mechanism whose noise is correlated over its rounds.

    The rounds with one `mechanism_id` are the rows of the strategy C, in
    order: the n-th of them in the ledger is row n. Row `t` releases
    `x_t + noise_stddev (C^-1 z)_t`, where `x_t` is the sum of the round, and
    `z` is standard normal, drawn once for the mechanism. All rounds of the
    mechanism are in one run of a ledger, with one kind of sampling, and there
    are at most `rounds` of them. A mechanism that stops early costs as much as
    a whole one.

    Attributes:
        noise_stddev: Standard deviation of the noise on each entry of C x,
            >= 0.
        strategy: C.
        rounds: The number of rounds of the whole mechanism, >= 1.
        mechanism_id: The name of the mechanism, of letters and digits: the same
            for all its rounds, and different for every other one of any run on
            the data set.

    Source: Denisov et al. (2022), arXiv:2202.08312.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> CorrelatedSum("gradients", 1, 4, BandedToeplitz((1, 0.5)), 100, "first")
    CorrelatedSum(name='gradients', l2_norm_bound=1.0, noise_stddev=4.0, ...)
    """

    kind: ClassVar[str] = "correlated_sum"
    template: ClassVar[str] = (
        "correlated Gaussian sum of {0.rounds:,} rounds "
        "({0.strategy.__class__.__name__}, mechanism {0.mechanism_id})"
    )

    strategy: Strategy
    rounds: int
    mechanism_id: str

    def __post_init__(self) -> None:
        SumQueryEvent.__post_init__(self)
        if not self.mechanism_id.isascii() or not self.mechanism_id.isalnum():
            raise ValueError(
                "`mechanism_id` must have letters and digits only. "
                f"Received: mechanism_id={self.mechanism_id!r}."
            )

    @override
    @property
    def span_id(self) -> str:
        return self.mechanism_id


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedSum(SumQueryEvent):
    """One release of a sum of encoded records plus independent noise.

    Each record is encoded as one of the preselected vectors in `bounds`, with
    its coordinates in any order and with any signs, or as a vector whose
    coordinates are smaller in size. Which vector it is depends on the record,
    and is not released.

    Attributes:
        bounds: The magnitudes (absolute values) of each preselected vector.
        noise: Distribution of the noise on each coordinate of the *sum*.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemma 5.

    >>> from keras_dp.ledger import LaplaceNoise
    >>> bounds = CoordinateBounds.from_vectors([[3, 1]])
    >>> EncodedSum("gradients", bounds, LaplaceNoise(8.0)).noise
    LaplaceNoise(scale=8.0)
    """

    kind: ClassVar[str] = "encoded_sum"
    template: ClassVar[str] = "{0.name}: encoded sum, {0.bounds!r}, {0.noise!r}"

    name: str
    bounds: CoordinateBounds
    noise: NoiseDistribution

    def __post_init__(self) -> None:
        SumQueryEvent.__post_init__(self)
        check_fields(self.noise)


@dataclasses.dataclass(frozen=True, slots=True)
class ThresholdedSum(NoisedSum):
    """One release of the keys (such as words) whose noised sum is large.

    Each record adds a positive weight to at most `max_keys` keys of its own
    choice, the same weight to each. For every key that occurs in the sample,
    `N(0, noise_stddev^2)` is added to the sum of its weights. The keys whose
    noised sum exceeds `threshold` are released, with their noised sums.

    Attributes:
        l2_norm_bound: Upper bound on the L2 norm of one record's weights, > 0.
        noise_stddev: Standard deviation of the noise on each sum, > 0.
        max_keys: Upper bound on the number of keys of one record, >= 1.
        threshold: A key is released if its noised sum is larger than this, in
            the unit of the sums, > 0.

    Source: Gopi et al. (2020), arXiv:2002.09745, the weighted Gaussian
    mechanism. We differ in the weights: they do not depend on other records.

    >>> ThresholdedSum("words", 1, 4, max_keys=50, threshold=25)
    ThresholdedSum(name='words', l2_norm_bound=1.0, noise_stddev=4.0, ...)
    """

    kind: ClassVar[str] = "thresholded_sum"
    template: ClassVar[str] = (
        "sums of keys, at most {0.max_keys:,} of a record, those above "
        "{0.threshold:g}"
    )

    max_keys: int
    threshold: float

    def __post_init__(self) -> None:
        SumQueryEvent.__post_init__(self)
        _check.finite_positive(
            l2_norm_bound=self.l2_norm_bound,
            noise_stddev=self.noise_stddev,
            threshold=self.threshold,
        )


# Every class of an event, which a ledger can store by its kind.
ALL: tuple[type[SamplingEvent] | type[SumQueryEvent], ...] = (
    PoissonSampling,
    PoissonUserSampling,
    TruncatedPoissonSampling,
    FixedSizeWithoutReplacement,
    DisjointBatches,
    CyclicPoissonSampling,
    FullDataset,
    UnverifiedSampling,
    SamplingByContents,
    GaussianSum,
    ProvenGaussianSum,
    NonPrivateSum,
    CorrelatedSum,
    EncodedSum,
    ThresholdedSum,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """One sample, and everything that was released over it.

    Attributes:
        sampling: How the sample was drawn. All `queries` saw this one sample.
        queries: The releases, at least one, with different names.
        seeded: Whether the caller chose a seed of the sampling or the noise.
            Such a round is reproducible, and private only towards those who
            cannot know the seed.

    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> step.queries[0].noise_stddev
    4.0
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
        if any(query.stands_alone for query in self.queries) and (
            len(self.queries) > 1 or type(self.sampling) is not FullDataset
        ):
            raise ValueError(
                "`queries` must hold a search alone, over the FullDataset. "
                f"Received: {self.queries!r} over {self.sampling!r}. "
                "`Selection.round` makes the round of a search."
            )
        names = [query.name for query in self.queries]
        if len(set(names)) < len(names):
            raise ValueError(
                "`queries` must have different names, one per leaf query. "
                f"Received: names={names!r}."
            )
        _check.boolean(seeded=self.seeded)
        if not self.seeded and any(query.is_seeded for query in self.queries):
            raise ValueError(
                "`seeded` must be True for a query with a seed that the caller "
                "chose. Received: seeded=False."
            )


class CountedRound(NamedTuple):
    """A round, and how often it happened or will happen at most.

    Attributes:
        round: The sample and the releases.
        count: The number of times, >= 1.

    >>> step = Round(FullDataset(), (NonPrivateSum("loss"),))
    >>> CountedRound(step, 3).count
    3
    """

    round: Round
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.


def checked_pairs(
    name: str,
    pairs: Iterable[tuple[Round, int]],
    remedy: str = "Pass such as [(step, 1_000)].",
) -> Iterator[CountedRound]:
    """Yields pairs of a Round and a count >= 1; errors name the argument."""
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        pairs = (pairs,)
    for pair in pairs:
        if (
            not isinstance(pair, tuple | list)
            or len(pair) != 2
            or not isinstance(pair[0], Round)
        ):
            raise TypeError(
                f"`{name}` must hold pairs (Round, count). Received: "
                f"{_check.shown(pair)} among them. {remedy}"
            )
        _check.integer_at_least(1, count=pair[1])
        yield CountedRound(pair[0], int(pair[1]))


@functools.cache
def _fields(kind: Any) -> tuple[dataclasses.Field[Any], ...]:
    return dataclasses.fields(kind)


def _check_fields(event: Any) -> None:
    """Checks each field by its type, and turns numbers into Python's."""
    for field in _fields(event.__class__):
        name, value = field.name, getattr(event, field.name)
        if field.type is float:
            value = _as_float(name, value)
        elif field.type is int:
            _check.integer_at_least(1, **{name: value})
            value = int(value)
        elif field.type is str:
            _check.non_empty_text(**{name: value})
        elif field.type is bool:
            _check.boolean(**{name: value})
        elif isinstance(field.type, type):
            _check.kind(field.type, **{name: value})
        object.__setattr__(event, name, value)


def _as_float(name: str, value: Any) -> float:
    """Returns a bound, a noise or a probability, checked."""
    check = (
        _check.probability
        if name == "probability"
        else _check.finite_non_negative
    )
    check(**{name: value})
    try:
        number = float(value) + 0.0  # Minus zero is zero.
    except OverflowError:
        number = math.inf
    if type(value) is not float:
        # As a float, a valid number may become infinite or zero.
        check(**{name: number})
    return number
