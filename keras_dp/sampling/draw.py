"""Who takes part in each round, in which rows, and by which event."""

import bisect
import dataclasses
import secrets
from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy import special

from keras_dp.ledger import SamplingEvent
from keras_dp.sampling.random_words import Words, in_random_rows

Integers = npt.NDArray[np.int64]

# Chance that a sample takes a second physical batch where the size of the
# batch is not chosen. The steps of such samples are compiled when the first
# one comes, which takes seconds: it should not happen in most trainings.
_SECOND_BATCH = 1e-4
# Accelerators like batches of a multiple of this.
_MULTIPLE = 8


class RowsOfRecord(NamedTuple):
    """The rows of a physical batch that make one record of the gradients.

    They are the examples of a microbatch, or the views of one example.

    Attributes:
        rows: The number of consecutive rows in one microbatch, with padding.
        size: The public divisor of the sum of the gradients in a microbatch.
        bound_factor: Adding or removing one privacy unit moves the sum over the
            sample by at most this many times the bound on one record.
        averages: Whether the divisor is instead the number of examples in the
            microbatch.
        views: The number of consecutive rows that are views of one example,
            which has one record for every query.
    """

    rows: int = 1
    size: float = 1.0
    bound_factor: int = 1
    averages: bool = False
    views: int = 1

    @classmethod
    def of_views(cls, views: int) -> Self:
        """Returns groups that are the views of one example each.

        All of a group are there, or none. An example is in one group alone, so
        that it moves the sum by the bound on one record.
        """
        return cls(views, views, views=views)

    @property
    def are_apart(self) -> bool:
        """Whether each row is a record by itself."""
        return self == EACH_ROW


EACH_ROW = RowsOfRecord()


@dataclasses.dataclass(frozen=True, eq=False)
class Draw:
    """A law of sampling. It keeps nothing: all randomness is given to it.

    Attributes:
        population_size: Number of records that are drawn from; of users, where
            these are drawn.
        event: The sampling event of a round; of passes with any id.
        units: Takes the words that decide who takes part. Yields the records of
            each unit in each round, `[units, rows]`, -1 for none, without end.
            A unit is a record of the query: an example, a microbatch or a user.
        expected_size: Mean number of records, or of users, in a round.
        most_rows: Number of rows into which almost every sample fits.
        rounds_per_epoch: Number of rounds in which a record takes part once, on
            average.
        rounds_per_pass: Number of rounds that one event covers, in which each
            record takes part equally often; `None` if each is drawn anew.
        unit: The unit that is drawn: "example" or "user".
        rows_of_record: The consecutive rows that make a unit.
        placed: Takes what `units` yields, the physical batch size and the words
            that decide on rows. Returns the record in each row of each physical
            batch, -1 for padding.
    """

    population_size: int
    event: SamplingEvent
    units: Callable[[Words], Iterator[Integers]]
    _: dataclasses.KW_ONLY
    expected_size: float
    most_rows: int
    rounds_per_epoch: int
    rounds_per_pass: int | None = None
    unit: str = "example"
    rows_of_record: RowsOfRecord = EACH_ROW
    placed: Callable[[Integers, int, Words], Integers] = in_random_rows


class Pass(NamedTuple):
    """A pass over the data: the rounds of an iterator that belong together.

    If each round is drawn anew, all rounds of an iterator are one endless pass.

    Attributes:
        iterator: 128 random bits, drawn for the iterator, in hex.
        number: The number of the pass in its iterator, from 0.
        rounds_left: The number of rounds of the pass after the present one;
            `None` without end.
    """

    iterator: str
    number: int = 0
    rounds_left: int | None = None

    @classmethod
    def new(cls) -> Self:
        """Returns the first pass of an iterator.

        Its bits are from the operating system, even if draws have a seed: two
        passes with the same id would count as one.
        """
        return cls(secrets.token_hex(16))

    @property
    def epoch_id(self) -> str:
        """The id of the pass, which no other pass has."""
        return f"{self.iterator}-{self.number}"

    def after(self, rounds: int) -> Self:
        """Returns the pass of a later round: this one, or the one after it.

        The rounds are at most all of this pass that are left, with this one.
        """
        ends = self.rounds_left == rounds - 1
        return self._replace(number=self.number + ends)


class Sample(NamedTuple):
    """The records of one round.

    Attributes:
        rows: Where in the data the record of each row is, -1 for padding, shape
            `[physical batches, physical_batch_size]`.
        pass_: The pass to which the sample belongs.
    """

    rows: Integers
    pass_: Pass


def default_physical_batch_size(
    population_size: int, sampling_probability: float
) -> int:
    """Returns the default number of rows in a physical batch.

    At most one Poisson sample of ten thousand is larger, and takes two batches.
    """
    most = rows_that_hold(population_size, sampling_probability)
    return -(-most // _MULTIPLE) * _MULTIPLE


def rows_that_hold(
    population: int, probability: float, chance: float = _SECOND_BATCH
) -> int:
    """Returns the number of rows that a Poisson sample exceeds with `chance`.

    The population is of records, or of runs of them.
    """

    def is_rare(n: int) -> bool:
        # As special.bdtrc, whose number of trials must fit 32 bits.
        exceeded = special.betainc(n + 1, population - n, probability)
        return bool(exceeded <= chance)

    return bisect.bisect_left(range(population), True, lo=1, key=is_rare)
