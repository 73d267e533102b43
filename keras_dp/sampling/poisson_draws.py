"""Poisson samples: of examples, of microbatches, and truncated ones."""

import abc
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.ledger import PoissonSampling, TruncatedPoissonSampling
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.draw import (
    Draw,
    Integers,
    RowsOfRecord,
    default_physical_batch_size,
    rows_that_hold,
)
from keras_dp.sampling.random_words import Words, random_subset

# The probability that a microbatch of a sample has more examples than rows.
# Those beyond are left out. Privacy does not depend on this: leaving out
# examples changes their own microbatch only.
_OVERFLOW = 1e-6


def in_runs(
    population_size: int, sampling_probability: float, rows: int, **options: Any
) -> Draw:
    """Returns a draw of runs of consecutive records, each independently.

    The records of a run are in consecutive rows; the places of the runs are
    random. A run of one row is a record.
    """
    runs = BernoulliDraw(population_size // rows, sampling_probability)
    of = runs.population_size, sampling_probability
    return Draw(
        population_size,
        PoissonSampling(sampling_probability, drawn_by_library=True),
        functools.partial(_runs, runs, rows),
        expected_size=sampling_probability * population_size,
        most_rows=(
            default_physical_batch_size(*of)
            if rows == 1
            else rows * rows_that_hold(*of)
        ),
        rounds_per_epoch=max(1, round(1 / sampling_probability)),
        **options,
    )


def _runs(draw: BernoulliDraw, rows: int, words: Words) -> Iterator[Integers]:
    within = np.arange(rows)
    while True:
        yield draw.indices(words)[:, np.newaxis] * rows + within


def _truncated(
    population_size: int, sampling_probability: float, most: int
) -> Draw:
    """If more are drawn, a uniformly random subset is kept."""
    whole = in_runs(population_size, sampling_probability, 1)

    units = functools.partial(_at_most, most, whole)
    event = TruncatedPoissonSampling(
        sampling_probability, most, population_size, drawn_by_library=True
    )
    return dataclasses.replace(whole, event=event, units=units, most_rows=most)


def _at_most(most: int, whole: Draw, words: Words) -> Iterator[Integers]:
    for drawn in whole.units(words):
        if len(drawn) <= most:
            yield drawn
        else:
            yield drawn[random_subset(most, len(drawn), words)]


def _in_slots(
    population_size: int, sampling_probability: float, size: int
) -> Draw:
    """Puts each record into a slot, a fixed range of rows, at random.

    Adding or removing a record changes the rows of one slot only. The number of
    physical batches is fixed.
    """
    whole = in_runs(population_size, sampling_probability, 1)
    count = max(1, round(whole.expected_size / size))
    chance = min(1.0, sampling_probability / count)
    rows = rows_that_hold(population_size, chance, _OVERFLOW / count)
    return dataclasses.replace(
        whole,
        most_rows=count * rows,
        # A mean moves from one point of its ball to another.
        rows_of_record=RowsOfRecord(
            rows, whole.expected_size / count, bound_factor=2
        ),
        placed=functools.partial(_placed_in_slots, count, rows),
    )


def _placed_in_slots(
    count: int,
    rows: int,
    units: Integers,
    physical_batch_size: int,
    words: Words,
) -> Integers:
    indices = units[:, 0]
    # The high half of the product: uniform up to 2^-32 of a slot.
    high = words(len(indices)) >> np.uint64(32)
    slots = ((high * np.uint64(count)) >> np.uint64(32)).astype(int)
    order = np.argsort(slots, kind="stable")
    counts = np.bincount(slots, minlength=count)
    starts = np.cumsum(counts) - counts
    within = np.arange(len(indices)) - np.repeat(starts, counts)
    fits = within < rows
    batches = -(-count * rows // physical_batch_size)
    laid = np.full(batches * physical_batch_size, -1, np.int64)
    laid[(slots[order] * rows + within)[fits]] = indices[order][fits]
    return laid.reshape(batches, physical_batch_size)


@dataclasses.dataclass(frozen=True, slots=True)
class Microbatches(abc.ABC):
    """A way to put examples into groups, whose mean gradient is one record.

    Attributes:
        size: The number of examples in a microbatch, >= 1. It is public, and
            divides the sum over a microbatch, whatever this really holds.
    """

    size: int

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
    def draw(self, population_size: int, sampling_probability: float) -> Draw:
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

    >>> draw = RandomMicrobatches(size=4).draw(1000, 0.1)
    >>> draw.unit, draw.rows_of_record.bound_factor
    ('example', 2)
    """

    @override
    def draw(self, population_size: int, sampling_probability: float) -> Draw:
        return _in_slots(population_size, sampling_probability, self.size)


@dataclasses.dataclass(frozen=True, slots=True)
class FixedMicrobatches(Microbatches):
    """Microbatches of `size` consecutive examples, formed before any sampling.

    Whole microbatches are drawn. Each stands in consecutive rows, at a random
    place.

    Guarantee: adding or removing one whole microbatch moves the sum by at most
    the clip. The privacy unit is the microbatch, and the unit of the ledger
    must be "microbatch". Nothing is promised to single examples.

    >>> draw = FixedMicrobatches(size=4).draw(1000, 0.1)
    >>> draw.unit, draw.rows_of_record.bound_factor
    ('microbatch', 1)
    """

    @override
    def draw(self, population_size: int, sampling_probability: float) -> Draw:
        if population_size % self.size:
            raise ValueError(
                "`microbatches` must have a size that divides the number of "
                f"records. Received: size={self.size!r} for "
                f"{population_size!r} records. Choose another size, or leave "
                "out the records that remain."
            )
        return in_runs(
            population_size,
            sampling_probability,
            self.size,
            unit="microbatch",
            rows_of_record=RowsOfRecord(
                self.size, float(self.size), bound_factor=1
            ),
        )


def poisson_draw(
    population_size: int,
    sampling_probability: float,
    microbatches: Any = None,
    truncate_at: int | None = None,
) -> Draw:
    """Returns how Poisson samples are drawn."""
    _check.probability(sampling_probability=sampling_probability)
    probability = float(sampling_probability)
    if truncate_at is not None:
        _check.integer_at_least(1, truncate_at=truncate_at)
        if microbatches is not None:
            raise ValueError(
                "`truncate_at` must be None with microbatches: adding one "
                "record could then change several microbatches. Received: "
                f"truncate_at={truncate_at!r}."
            )
        return _truncated(population_size, probability, int(truncate_at))
    if microbatches is None:
        return in_runs(population_size, probability, 1)
    if not isinstance(microbatches, Microbatches):
        raise TypeError(
            "`microbatches` must be RandomMicrobatches(size), which protect "
            "examples, or FixedMicrobatches(size), which protect microbatches "
            "that are fixed in advance. A sampled list that is cut into pieces "
            "protects neither: an example more or less shifts all pieces after "
            f"it. Received: microbatches={microbatches!r}."
        )
    return microbatches.draw(population_size, probability)
