"""Poisson samples: of examples, of microbatches, and truncated ones."""

import copy
import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Self, Unpack

import numpy as np

from keras_dp import _check
from keras_dp._nests import Nest
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
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.sampler import Sampler, SamplerOptions

# The probability that a microbatch of a sample has more examples than rows.
# Those beyond are left out. Privacy does not depend on this: leaving out
# examples changes their own microbatch only.
_OVERFLOW = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class RandomMicrobatches:
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
    later pieces.) Microbatches that are fixed in advance, and protected as
    wholes, are the users of `UserBatches`.

    Attributes:
        size: The number of examples in a microbatch, >= 1. It is public, and
            divides the sum over a microbatch, whatever this really holds.

    >>> draw = RandomMicrobatches(size=4).draw(1000, 0.1)
    >>> draw.unit, draw.rows_of_record.bound_factor
    ('example', 2)
    """

    size: int

    def __init_subclass__(cls) -> None:
        """Refuses microbatches that the library does not know."""
        _check.no_subclass(cls, "Its bound would be believed.")

    def __post_init__(self) -> None:
        _check.integer_at_least(1, size=self.size)

    def draw(self, population_size: int, sampling_probability: float) -> Draw:
        """Returns how samples of a data set are drawn and laid out."""
        whole = _of_examples(population_size, sampling_probability)
        count = max(1, round(whole.expected_size / self.size))
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


class PoissonBatches(Sampler):
    """Draws each record independently, anew for every round: Poisson samples.

    Iterating gives physical batches without end. A sample of n records takes
    `ceil(n / physical_batch_size)` physical batches, and an empty one takes a
    single batch of padding. `ends_sample` marks the last batch of a sample.
    Records are in random rows of its batches. The size of a sample, its
    records, their rows and the number of its batches are secret. The attributes
    of the sampler are public.

    Guarantee: in each round, each record takes part with
    `sampling_probability`, independently of all records and rounds; the
    randomness is from the operating system's cryptographic generator. Floating
    point costs at most 3e-11 in epsilon per round; see `BernoulliDraw`. Adding
    or removing a record leaves the others in their rows, unless the number of
    physical batches changes; see `in_random_rows`.

    With `truncate_at`, a sample keeps at most so many records: a uniformly
    random subset of those that were drawn. Then every round is one physical
    batch of one shape. The event says so, and the cost is a small part of
    delta. The event also holds the exact number of records, which is therefore
    public, although `add_or_remove_one` would protect it otherwise.

    The number of records is used for `expected_sample_size` and for the default
    `physical_batch_size` only. Under `add_or_remove_one` it is itself private.
    Whoever publishes one of the two, or takes the denominator of an average
    from it, treats the number of records as public. This is customary.

    Attributes: those of `Sampler`, and
        sampling_probability: Chance of each record to take part in a round.
        truncate_at: The largest number of records that a sample keeps; `None`
            for all.

    >>> import numpy as np
    >>> x, y = np.zeros([1000, 28, 28]), np.zeros([1000], np.int32)
    >>> batches = PoissonBatches((x, y), sampling_probability=0.01)
    >>> batches.expected_sample_size, batches.physical_batch_size
    (10.0, 24)
    >>> batches.sampling_event
    PoissonSampling(probability=0.01, drawn_by_library=True)
    >>> (x, y), mask, ends_sample = next(iter(batches))
    >>> x.shape, y.shape, mask.shape
    ((24, 28, 28), (24,), (24,))
    """

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        sampling_probability: float,
        microbatches: RandomMicrobatches | None = None,
        truncate_at: int | None = None,
        **options: Unpack[SamplerOptions],
    ) -> None:
        """Looks at the shapes of the data, and draws nothing.

        Args:
            data: Array, or nest (tuple, list, dict) of arrays, of equal
                length, such as `(x, y)` or `(x, y, sample_weight)`; they may
                be memory-mapped. An autoencoder takes `(x, x)`, which needs no
                second copy. Other array-likes are converted once: a DataFrame
                of numbers to `[records, columns]`, a Series to `[records, 1]`,
                text to UTF-8. Or a `RandomAccessSource`, such as
                `TFRecordShards`, for records that are read when drawn.
            sampling_probability: In [2^-60, 1].
            microbatches: `RandomMicrobatches`, whose means are records.
            truncate_at: The largest number of records that a sample keeps, at
                least 1. It is also the default `physical_batch_size`, so that
                every round is one batch of one shape. If more records are
                drawn, a uniformly random subset is kept. The price is a part of
                delta in each round: the probability that a record is drawn
                together with at least so many others. It is negligible for
                `truncate_at` 7 standard deviations, each `sqrt(N q (1-q))`,
                above the mean `N q`. Do not choose it by a look at the data.
                The ledger then holds `N`, the exact number of records.
            **options: See `SamplerOptions`.

        Raises:
            TypeError: `data` is not one of these, or holds something else than
                arrays; or `map` is not a function.
            ValueError: There are no records, the arrays differ in length, a
                source returns another number or shape of records than was asked
                for, or a number is out of its range.
        """
        arguments = {
            "sampling_probability": sampling_probability,
            "microbatches": microbatches,
            "truncate_at": truncate_at,
        }
        super().__init__(data, _poisson, arguments, **options)
        self.truncate_at = truncate_at

    @property
    def sampling_probability(self) -> float:
        """Chance of each record to take part in a round."""
        event: Any = self.draw.event
        return float(event.probability)

    @override
    def shard(self, index: int, count: int) -> Self:
        """Returns a sampler of one of `count` blocks of the records.

        It is for workers that draw at the same time, each from its own block.
        The blocks are consecutive in the data, and their sizes differ by at
        most one record.

        Guarantee: the draws of all shards in a round are, together, a Poisson
        sample of all records with `sampling_probability`: each record is in
        exactly one block, and all draws are independent. So the event is that
        of the whole. Each shard puts its records into random rows of its own
        batches. Shards with a `seed` draw from separate streams.

        `population_size`, `expected_sample_size`, `rounds_per_epoch` and
        `sampling_event` are still those of the whole. `physical_batch_size` is
        that of one shard, and equal for all shards: a part of the given one; by
        default, at least 99.99 % of the samples of a shard fit into it.

        Args:
            index: Which shard, in [0, count).
            count: How many shards, at most as many as there are records.

        Raises:
            ValueError: A number is out of range, this is a shard already, or
                there are microbatches: an example more or less would move
                others from shard to shard, and so to other microbatches.

        >>> import numpy as np
        >>> batches = PoissonBatches(np.arange(1000), sampling_probability=0.1)
        >>> batches.physical_batch_size
        144
        >>> shards = [batches.shard(i, 3) for i in range(3)]
        >>> [shard.positions for shard in shards]
        [range(0, 333), range(333, 666), range(666, 1000)]
        >>> {shard.physical_batch_size for shard in shards}
        {56}
        """
        self._check_shard(index, count)
        records = self.population_size
        start, stop = (records * i // count for i in (index, index + 1))
        shard = copy.copy(self)
        shard.shard_index, shard.shard_count = int(index), int(count)
        shard._positions, shard._streams = range(start, stop), 0
        shard.draw = self._law(stop - start)
        shard.physical_batch_size = (
            self._at_once(self._law(-(-records // count)))
            if self._has_default_size
            else -(-self.physical_batch_size // count)
        )
        return shard

    def _check_shard(self, index: int, count: int) -> None:
        _check.integer_at_least(0, index=index)
        _check.integer_at_least(1, count=count)
        if self.shard_count is not None:
            raise ValueError(
                "`shard` must be called on a sampler of all records. Received: "
                f"shard {self.shard_index} of {self.shard_count}."
            )
        if index >= count:
            raise ValueError(
                f"`index` must be less than count={count!r}. "
                f"Received: index={index!r}."
            )
        if not self.draw.rows_of_record.are_apart:
            raise ValueError(
                "`microbatches` must be None to draw shards: otherwise one "
                "example more would move others to other microbatches. "
                "Received: RandomMicrobatches."
            )
        if self.truncate_at is not None:
            raise ValueError(
                "`truncate_at` must be None where data is sharded: no worker "
                "knows how many records the others draw. Received: "
                f"truncate_at={self.truncate_at!r}."
            )
        if count > self.population_size:
            raise ValueError(
                f"`count` must be at most {self.population_size}, the number "
                f"of records. Received: count={count!r}."
            )


def _poisson(
    population_size: int,
    sampling_probability: float,
    microbatches: RandomMicrobatches | None,
    truncate_at: int | None,
) -> Draw:
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
        most = int(truncate_at)
        whole = _of_examples(population_size, probability)
        event = TruncatedPoissonSampling(
            probability, most, population_size, drawn_by_library=True
        )
        return dataclasses.replace(
            whole,
            event=event,
            units=functools.partial(_at_most, most, whole),
            most_rows=most,
        )
    if microbatches is None:
        return _of_examples(population_size, probability)
    if not isinstance(microbatches, RandomMicrobatches):
        raise TypeError(
            "`microbatches` must be RandomMicrobatches(size). A sampled list "
            "that is cut into pieces protects no example: one more or less "
            "shifts all pieces after it. UserBatches protect groups that are "
            f"fixed in advance. Received: microbatches={microbatches!r}."
        )
    return microbatches.draw(population_size, probability)


def _of_examples(population_size: int, sampling_probability: float) -> Draw:
    records = BernoulliDraw(population_size, sampling_probability)
    of = population_size, sampling_probability
    return Draw(
        population_size,
        PoissonSampling(sampling_probability, drawn_by_library=True),
        functools.partial(_one_by_one, records),
        expected_size=sampling_probability * population_size,
        most_rows=default_physical_batch_size(*of),
        rounds_per_epoch=max(1, round(1 / sampling_probability)),
    )


def _one_by_one(draw: BernoulliDraw, words: Words) -> Iterator[Integers]:
    while True:
        yield draw.indices(words)[:, np.newaxis]


def _at_most(most: int, whole: Draw, words: Words) -> Iterator[Integers]:
    for drawn in whole.units(words):
        if len(drawn) <= most:
            yield drawn
        else:
            yield drawn[random_subset(most, len(drawn), words)]


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
