"""Layouts: how a sample is drawn, and which record is in which row.

Microbatches are layouts of several examples a record.
"""

import abc
import bisect
import dataclasses
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from scipy import special

from keras_dp import _check
from keras_dp._override import override
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.random_rows import in_random_rows
from keras_dp.sampling.random_words import Words, random_subset

Integers = npt.NDArray[np.int64]

# The probability that a microbatch of a sample has more examples than rows.
# Those beyond are left out. Privacy does not depend on this: leaving out
# examples changes their own microbatch only.
_OVERFLOW = 1e-6
# Chance that a sample takes a second physical batch where the size of the
# batch is not chosen. The steps of such samples are compiled when the first
# one comes, which takes seconds: it should not happen in most trainings.
_SECOND_BATCH = 1e-4
# Accelerators like batches of a multiple of this.
_MULTIPLE = 8


class Layout(abc.ABC):
    """How samples of a data set are drawn and laid out.

    Attributes:
        rows: Number of consecutive rows that belong to one microbatch.
        size: The divisor of the sum over a microbatch.
        bound_factor: Adding or removing one privacy unit moves the sum over a
            sample by at most this many times the bound on one record.
        most_rows: Number of rows into which almost every sample fits.
        averages: Whether the sum over a microbatch is also divided by the
            number of records in it.
    """

    averages = False
    rows: int
    size: float
    bound_factor: int
    most_rows: int

    def __init__(self, draw: BernoulliDraw) -> None:
        """Takes over who is drawn how."""
        self._draw = draw

    @property
    def sampling_probability(self) -> float:
        """Chance of each record to take part, the one that is drawn with."""
        return self._draw.sampling_probability

    @abc.abstractmethod
    def draw(
        self, physical_batch_size: int, words: Words, places: Words
    ) -> Integers:
        """Returns one sample: the record in each row, -1 for padding.

        Args:
            physical_batch_size: A multiple of `rows`.
            words: Randomness that decides who takes part.
            places: Randomness that decides on rows.

        Returns:
            Shape `[physical batches, physical_batch_size]`, at least one.
        """


class Runs(Layout):
    """Draws whole runs of consecutive records.

    The records of a run are in consecutive rows; the places of the runs are
    random.
    """

    bound_factor = 1

    def __init__(self, population: int, probability: float, rows: int) -> None:
        """Draws nothing.

        Args:
            population: Number of records, a multiple of `rows`.
            probability: Chance of a run to take part.
            rows: Records of a run; 1 where each record is drawn on its own.
        """
        super().__init__(BernoulliDraw(population // rows, probability))
        self.rows, self.size = rows, float(rows)
        self.most_rows = (
            default_physical_batch_size(population, probability)
            if rows == 1
            else rows * rows_that_hold(population // rows, probability)
        )

    @override
    def draw(
        self, physical_batch_size: int, words: Words, places: Words
    ) -> Integers:
        runs = self._draw.indices(words)[:, np.newaxis]
        records = runs * self.rows + np.arange(self.rows)
        return in_random_rows(records, physical_batch_size, places)


class Truncated(Runs):
    """Draws single records, and keeps a limited number of them.

    If more are drawn, a uniformly random subset is kept.
    """

    def __init__(self, population: int, probability: float, most: int) -> None:
        """Draws nothing."""
        super().__init__(population, probability, 1)
        self.most_rows = most

    @override
    def draw(
        self, physical_batch_size: int, words: Words, places: Words
    ) -> Integers:
        drawn = self._draw.indices(words)
        if len(drawn) > self.most_rows:
            drawn = drawn[random_subset(self.most_rows, len(drawn), words)]
        return in_random_rows(drawn[:, np.newaxis], physical_batch_size, places)


class Slots(Layout):
    """Puts each drawn record into one of a fixed number of slots, at random.

    A slot is a fixed range of rows. Adding or removing a record changes the
    rows of one slot only. The number of physical batches is fixed.
    """

    bound_factor = 2

    def __init__(self, population: int, probability: float, size: int) -> None:
        """Draws nothing."""
        super().__init__(BernoulliDraw(population, probability))
        expected = population * probability
        self._slots = max(1, round(expected / size))
        self.size = expected / self._slots
        chance = min(1.0, probability / self._slots)
        self.rows = _exceeded_with(_OVERFLOW / self._slots, population, chance)
        self.most_rows = self._slots * self.rows

    @override
    def draw(
        self, physical_batch_size: int, words: Words, places: Words
    ) -> Integers:
        indices = self._draw.indices(words)
        # The high half of the product: uniform up to 2^-32 of a slot.
        high = places(len(indices)) >> np.uint64(32)
        slots = ((high * np.uint64(self._slots)) >> np.uint64(32)).astype(int)
        order = np.argsort(slots, kind="stable")
        counts = np.bincount(slots, minlength=self._slots)
        starts = np.cumsum(counts) - counts
        within = np.arange(len(indices)) - np.repeat(starts, counts)
        fits = within < self.rows
        batches = -(-self.most_rows // physical_batch_size)
        laid = np.full(batches * physical_batch_size, -1, np.int64)
        rows = slots[order] * self.rows + within
        laid[rows[fits]] = indices[order][fits]
        return laid.reshape(batches, physical_batch_size)


@dataclasses.dataclass(frozen=True, slots=True)
class Microbatches(abc.ABC):
    """A way to put examples into groups, whose mean gradient is one record.

    Attributes:
        size: The number of examples in a microbatch, >= 1. It is public, and
            divides the sum over a microbatch, whatever this really holds.
        unit: The privacy unit, which is drawn: "example" or "microbatch".
        bound_factor: Adding or removing one unit moves the sum over a sample by
            at most this many times the bound on one record.
    """

    size: int
    unit: ClassVar[str]
    bound_factor: ClassVar[int]

    def __init_subclass__(cls) -> None:
        """Refuses microbatches that the library does not know."""
        _check.no_subclass(
            cls,
            "Its bound would be believed. Use RandomMicrobatches or "
            "FixedMicrobatches.",
        )

    def __post_init__(self) -> None:
        _check.integer_at_least(1, size=self.size)

    @abc.abstractmethod
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> Layout:
        """Returns how samples of a data set are drawn and laid out."""


@dataclasses.dataclass(frozen=True, slots=True)
class RandomMicrobatches(Microbatches):
    """Microbatches formed inside each sample; the privacy unit is the example.

    Each drawn example goes to one of a fixed number of slots, at random and
    independently of all others. The examples of a slot are a microbatch. A slot
    may hold more or fewer examples than `size`, or none.

    Guarantee: adding or removing one example changes one microbatch. The
    clipped mean of this microbatch moves from one point of a ball of radius C
    to another. So the sum over the sample moves by at most `2 C`, with C the
    clip; the event in the ledger has this bound. All other slots keep their
    examples, in the same physical batch and rows. (If the list of drawn
    examples were cut into pieces instead, one example more would shift all
    later pieces.)

    >>> RandomMicrobatches(size=4).bound_factor
    2
    """

    unit: ClassVar[str] = "example"
    bound_factor: ClassVar[int] = Slots.bound_factor

    @override
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> Layout:
        return Slots(population_size, sampling_probability, self.size)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedMicrobatches(Microbatches):
    """Microbatches of `size` consecutive examples, formed before any sampling.

    Whole microbatches are drawn. Each stands in consecutive rows, at a random
    place.

    Guarantee: adding or removing one whole microbatch moves the sum by at most
    the clip. The privacy unit is the microbatch, and the unit of the ledger
    must be "microbatch". Nothing is promised to single examples.

    >>> FixedMicrobatches(size=4).unit
    'microbatch'
    """

    unit: ClassVar[str] = "microbatch"
    bound_factor: ClassVar[int] = Runs.bound_factor

    @override
    def layout(
        self, population_size: int, sampling_probability: float
    ) -> Layout:
        if population_size % self.size:
            raise ValueError(
                "`microbatches` must have a size that divides the number of "
                f"records. Received: size={self.size!r} for "
                f"{population_size!r} records. Choose another size, or leave "
                "out the records that remain."
            )
        return Runs(population_size, sampling_probability, self.size)


def layout_of(
    microbatches: Any, population_size: int, sampling_probability: float
) -> Layout:
    """Returns how samples are laid out.

    Args:
        microbatches: `None` if each example is a record.
        population_size: Number of examples.
        sampling_probability: Chance of each example to take part.

    Raises:
        TypeError: `microbatches` are something else.
        ValueError: Microbatches or numbers do not fit the data.
    """
    if microbatches is None:
        return Runs(population_size, sampling_probability, 1)
    if not isinstance(microbatches, Microbatches):
        raise TypeError(
            "`microbatches` must be RandomMicrobatches(size), which protect "
            "examples, or FixedMicrobatches(size), which protect microbatches "
            "that are fixed in advance. A sampled list that is cut into pieces "
            "protects neither: an example more or less shifts all pieces after "
            f"it. Received: microbatches={microbatches!r}."
        )
    return microbatches.layout(population_size, sampling_probability)


def default_physical_batch_size(
    population_size: int, sampling_probability: float
) -> int:
    """Returns the default number of rows in a physical batch.

    At most one Poisson sample of ten thousand is larger, and takes two batches.

    Args:
        population_size: Number of records that are drawn from, at least 1.
        sampling_probability: Chance of each record to take part.

    >>> default_physical_batch_size(1000, 0.01)
    24
    """
    most = rows_that_hold(population_size, sampling_probability)
    return -(-most // _MULTIPLE) * _MULTIPLE


def rows_that_hold(population: int, probability: float) -> int:
    """Returns the number of rows into which 99.99 % of Poisson samples fit.

    Args:
        population: Records, or runs of them, that are drawn from.
        probability: Chance of each to take part.
    """
    return _exceeded_with(_SECOND_BATCH, population, probability)


def _exceeded_with(chance: float, trials: int, probability: float) -> int:
    """Returns the least n >= 1 that a binomial exceeds so rarely."""

    def is_rare(n: int) -> bool:
        # As special.bdtrc, whose number of trials must fit 32 bits.
        exceeded = special.betainc(n + 1, trials - n, probability)
        return bool(exceeded <= chance)

    return bisect.bisect_left(range(trials), True, lo=1, key=is_rare)
