"""Layouts: how a sample is drawn, and which record is in which row."""

import abc
import bisect

import numpy as np
import numpy.typing as npt
from scipy import special

from keras_dp._override import override
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.random_rows import in_random_rows
from keras_dp.sampling.random_subset import random_subset
from keras_dp.sampling.random_words import Words

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


class Groups(Layout):
    """Draws whole groups of consecutive records.

    The records of a group are in consecutive rows; the places of the groups are
    random.
    """

    bound_factor = 1

    def __init__(self, population: int, probability: float, rows: int) -> None:
        """Draws nothing.

        Args:
            population: Number of records, a multiple of `rows`.
            probability: Chance of a group to take part.
            rows: Records of a group; 1 where each record is drawn on its own.
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
        groups = self._draw.indices(words)[:, np.newaxis]
        records = groups * self.rows + np.arange(self.rows)
        return in_random_rows(records, physical_batch_size, places)


class Truncated(Groups):
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
        population: Records, or groups of them, that are drawn from.
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
