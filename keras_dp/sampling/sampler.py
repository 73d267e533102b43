"""Samplers: where records come from, and the iterators over batches."""

import abc
import inspect
import secrets
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check, _reproducible
from keras_dp._nests import Nest
from keras_dp.ledger import SamplingEvent
from keras_dp.sampling import datasets, random_words
from keras_dp.sampling.layouts import Layout
from keras_dp.sampling.pipelines import Function
from keras_dp.sampling.record_source import RandomAccessSource, RecordReader

Integers = npt.NDArray[np.int64]
# Takes the records of a physical batch, the mask of its rows and a source of
# randomness, and returns the records to put in their place.
Change = Callable[[Nest, npt.NDArray[np.bool_], random_words.Words], Nest]
# Rows of a physical batch that are computed at once where nobody chose a
# number, and each record has several.
_MOST_VIEWS = 4096


class PhysicalBatch(NamedTuple):
    """A part of a sample that is computed at once.

    Attributes:
        records: Nest of arrays `[physical_batch_size, ...]`, with a record or
            zeros in each row. The arrays are made for this batch, and nothing
            else refers to them. They must not be written to.
        mask: Boolean, shape `[physical_batch_size]`: true for a row that holds
            a record, false for padding, which can be in any row.
        ends_sample: Whether this is the last batch of the sample.
    """

    records: Nest
    mask: npt.NDArray[np.bool_]
    ends_sample: bool


class Pass(NamedTuple):
    """A pass over the data: the rounds of an iterator that belong together.

    If each round is drawn anew, all rounds of an iterator are one endless pass.

    Attributes:
        high: 63 random bits, drawn for the iterator.
        low: 63 more of these bits.
        number: The number of the pass in its iterator, from 0.
        rounds_left: The number of rounds of the pass after the present one.
    """

    high: int
    low: int
    number: int = 0
    rounds_left: int = 0

    @classmethod
    def new(cls) -> Self:
        """Returns the first pass of an iterator.

        Its bits are from the operating system, even if draws have a seed: two
        passes with the same id would count as one.
        """
        return cls(secrets.randbits(63), secrets.randbits(63))

    @classmethod
    def of_id(cls, epoch_id: str) -> Self:
        """Inverts `epoch_id`.

        >>> of = Pass.new()
        >>> Pass.of_id(of.epoch_id) == of
        True
        """
        bits, _, number = epoch_id.partition("-")
        return cls(int(bits[:16], 16), int(bits[16:], 16), int(number))

    @property
    def epoch_id(self) -> str:
        """The id of the pass, which no other pass has."""
        return f"{self.high:016x}{self.low:016x}-{self.number}"

    def next_round(self) -> Self:
        """Returns the pass of the next round: this one, or the one after it."""
        if self.rounds_left:
            return self
        return self._replace(number=self.number + 1)


class Draw(NamedTuple):
    """One sample.

    Attributes:
        rows: The index of the record in each row, -1 for padding, shape
            `[physical batches, physical_batch_size]`.
        of: The pass to which the sample belongs.
    """

    rows: Integers
    of: Pass


class Sampler(abc.ABC):
    """Draws samples of records, and makes the sampling event for the ledger.

    The base class of all samplers. Iterating gives physical batches without
    end; `ends_sample` marks the last batch of a sample.

    Attributes:
        population_size: Number of records, including those of other shards.
        physical_batch_size: Length of the leading axis of every physical batch.
        rounds_per_epoch: Number of rounds that `fit` calls an epoch.
        rounds_per_pass: Number of rounds of a pass, in which each record takes
            part equally often and which one event covers; `None` if each round
            is drawn anew.
        expected_sample_size: Mean number of records in a round.
        microbatches: The layout of microbatches in rows; `None` if each row is
            a record.
        map: The function that `fit`, `evaluate` and `predict` apply to each
            record, `None` for none. Iterating over the sampler yields the
            records as they are stored.
        views: How often `fit` maps a record that was drawn. The mean gradient
            of its views is the record.
        unit: The unit that is drawn and protected: "example", "microbatch" or
            "user".
        seeded: Whether the caller chose the seed.
        shard_index: The index of this shard; `None` for a sampler of all
            records.
        shard_count: The number of shards; `None` for a sampler of all records.
        positions: The range of the indices, in the data, of the records that
            this sampler draws from.
        record_structure: Nest of `RecordSpec`s of the structure of one record
            as it is stored, known without a draw.
        functions: The functions of the data set that the records are from.
        records_in_memory: Nest of arrays `[records, ...]`, all that the sampler
            was given; `None` for a source or files. Secret.
    """

    physical_batch_size: int
    rounds_per_epoch: int
    rounds_per_pass: int | None = None
    shard_index: int | None = None
    shard_count: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuses samplers that the library does not know."""
        _check.no_subclass(
            cls,
            "Its event would say that the library drew what it yields. Change "
            "records by `map`, read them from a RandomAccessSource, or pass a "
            "data set of your own to `fit`, which claims no amplification.",
        )
        super().__init_subclass__(**options)

    def __init__(
        self,
        data: Nest | RandomAccessSource,
        *,
        map: Callable[..., Any] | None,  # noqa: A002 - as in tf.data.
        views: int,
        seed: int | None,
    ) -> None:
        """Looks at the shapes of the data, and draws nothing.

        Args:
            data: See `PoissonBatches`.
            map: See `PoissonBatches`.
            views: See `PoissonBatches`.
            seed: See `PoissonBatches`.

        Raises:
            TypeError: `data` is not one of these, or holds something else than
                arrays; or `map` is not a function.
            ValueError: There are no records, the arrays differ in length, a
                source returns another number or shape of records than was asked
                for, or a number is out of its range.
        """
        if seed is not None:
            _check.integer_at_least(0, seed=seed)
        if map is not None and not callable(map):
            raise TypeError(
                "`map` must be a function of one record, or None. "
                f"Received: map={map!r}."
            )
        _check.integer_at_least(1, views=views)
        if views > 1 and map is None:
            raise ValueError(
                "`views` must be 1 without a map: views of a record differ in "
                f"the random numbers of its map. Received: views={views!r}. "
                "Pass map=..., such as a random flip."
            )
        datasets.check_is_none(data)
        self.map, self.views = map, int(views)
        self._records = RecordReader(data)
        self._whole_size = len(self._records)
        self._positions = range(self._whole_size)
        self._has_seed = seed is not None
        self._seed = seed if _reproducible.is_on() else None
        self._streams = 0
        self.functions: list[Function] = []

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        batched: bool | None = None,
        verbose: bool = True,
        **options: Any,
    ) -> Self:
        """Reads a data set once, stores its records, and returns a sampler.

        A data set yields its records in its own order, and a sampler needs them
        in any order. So they are stored in memory. Write records that do not
        fit there to a `.npy` file, which `np.load(mmap_mode="r")` maps, or to
        TFRecord files, for `TFRecordShards`.

        Args:
            dataset: A finite `tf.data.Dataset` or `keras.utils.PyDataset`,
                which yields each record once, all of the same shape. Give
                random changes of the records as `map`: in the data set they
                happen only once.
            batched: Whether an element of the data set is a batch of records.
                By default it is read from the data set; it must be given if
                the data set does not tell.
            verbose: Whether to print the progress and the size.
            **options: The other arguments of the sampler.

        Raises:
            TypeError: `dataset` is something else, or an argument of the
                sampler is missing.
            PrivateTrainingError: The data set mixes records.
            ValueError: The data set is infinite, empty or repeated, its records
                differ in shape, or `batched` must be given.
        """
        _check_complete(cls, options)
        datasets.check_order(dataset, user_ids=options.get("user_ids"))
        functions = datasets.functions_of(dataset, batched)
        data = datasets.stored(dataset, batched=batched, verbose=verbose)
        sampler = cls(data, **options)
        sampler.functions = functions
        return sampler

    def __len__(self) -> int:
        """Returns `rounds_per_epoch`, like the `len` of a data set in Keras.

        But iterating does not end there: samples are drawn without end.
        """
        return self.rounds_per_epoch

    @property
    def population_size(self) -> int:
        """The number of records in the data."""
        return self._whole_size

    @property
    def positions(self) -> range:
        """The range of the indices of the records to draw from."""
        return self._positions

    @property
    @abc.abstractmethod
    def expected_sample_size(self) -> float:
        """The mean number of records in a round."""

    @property
    def unit(self) -> str:
        """The unit that is drawn and protected."""
        return "example"

    @property
    def microbatches(self) -> Layout | None:
        """The layout of microbatches; `None` if each example is a record."""
        return None

    @property
    def seeded(self) -> bool:
        """Whether the caller chose the seed."""
        return self._has_seed

    @property
    def record_structure(self) -> Any:
        """The structure of one record, as a nest of `RecordSpec`s."""
        return self._records.structure

    @property
    def record_count(self) -> int:
        """The number of records in the data, whatever the unit is. Secret."""
        return self._whole_size

    @property
    def records_in_memory(self) -> Any:
        """The records as they are stored, `None` if they are read elsewhere."""
        return self._records.in_memory

    @abc.abstractmethod
    def sampling_of(self, of: Pass) -> SamplingEvent:
        """Returns the sampling event of the rounds of a pass, for a ledger.

        Args:
            of: The pass, whose `epoch_id` the event has if it needs one.
        """

    def planned(
        self, rounds: int, first: Pass | None = None
    ) -> list[tuple[SamplingEvent, int]]:
        """Returns the sampling events of the next rounds, each with its count.

        Args:
            rounds: The number of rounds, at least 1.
            first: The pass that begins with the first of these rounds; by
                default the first pass of a new iterator.
        """
        first = Pass.new() if first is None else first
        size = self.rounds_per_pass
        if size is None:
            return [(self.sampling_of(first), rounds)]
        return [
            (
                self.sampling_of(
                    first._replace(number=first.number + start // size)
                ),
                min(size, rounds - start),
            )
            for start in range(0, rounds, size)
        ]

    @abc.abstractmethod
    def _draws(
        self, words: random_words.Words, places: random_words.Words
    ) -> Iterator[Draw]:
        """Yields samples without end.

        Args:
            words: Randomness that decides who takes part.
            places: Randomness that decides on rows.
        """

    def shard(self, index: int, count: int) -> Self:
        """Raises, because only Poisson samples can be drawn shard by shard.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"`shard` must be called on PoissonBatches: samples of "
            f"{type(self).__name__} are not drawn record by record, so that "
            "workers cannot draw parts of them without each other. Received: "
            f"index={index!r}, count={count!r}. Use PoissonBatches, or one "
            "worker with several replicas."
        )

    def __iter__(self) -> Iterator[PhysicalBatch]:
        return self.rounds()

    def rounds(self, change: Change | None = None) -> Iterator[PhysicalBatch]:
        """Yields the physical batches of fresh samples, without end.

        Several iterators can be used at the same time; each draws its own
        samples.

        Args:
            change: A function that changes the records of a physical batch. It
                takes the records, the mask and a source of randomness, and
                may return several rows for each record.
        """
        return (batch for batch, _ in self.rounds_of_passes(change))

    def rounds_of_passes(
        self, change: Change | None = None
    ) -> Iterator[tuple[PhysicalBatch, Pass]]:
        """Yields physical batches as `rounds` does, each with its pass.

        Args:
            change: See `rounds`.
        """
        return self._batches(change, *self._words())

    def draws(self) -> Iterator[Draw]:
        """Yields fresh samples without end, as indices; no record is read."""
        words, places, _ = self._words()
        return self._draws(words, places)

    def in_order(self, change: Change | None = None) -> Iterator[Nest]:
        """Yields all records that this sampler draws from, once and in order.

        This is no sample: a result that is computed from it is not private.

        Args:
            change: See `rounds`.

        Yields:
            Nest of arrays `[physical_batch_size, ...]`, fewer at the end.
        """
        _, _, words = self._words()
        stop, step = self.positions.stop, self.physical_batch_size
        for start in range(self.positions.start, stop, step):
            rows = np.arange(start, min(start + step, stop))
            records = self._records.in_rows(rows)
            if change is not None:
                records = change(records, np.ones(len(rows), np.bool_), words)
            yield records

    def _set_sizes(
        self,
        physical_batch_size: int | None,
        rounds_per_epoch: int | None,
        *,
        default: tuple[int, int],
        rows: int = 1,
    ) -> None:
        """Checks and sets the sizes that the caller may choose.

        Args:
            physical_batch_size: At least 1, and a multiple of `rows`; `None`
                for the default.
            rounds_per_epoch: At least 1; `None` for the default.
            default: Both, where they are not chosen.
            rows: How many rows stand together in one batch.
        """
        size, rounds = default
        size = self._at_once(size)
        if physical_batch_size is not None:
            _check.integer_at_least(1, physical_batch_size=physical_batch_size)
            size = int(physical_batch_size)
        if rounds_per_epoch is not None:
            _check.integer_at_least(1, rounds_per_epoch=rounds_per_epoch)
            rounds = int(rounds_per_epoch)
        if size % rows:
            whose = "user" if self.unit == "user" else "microbatch"
            raise ValueError(
                f"`physical_batch_size` must be a multiple of the {rows} rows "
                f"of a {whose}, which stand in one batch. Received: "
                f"physical_batch_size={physical_batch_size!r}."
            )
        self.physical_batch_size, self.rounds_per_epoch = size, rounds

    def _at_once(self, records: int) -> int:
        """Returns how many of these records a physical batch has by default.

        All of them; with several views, they are cut into equal parts.
        """
        if self.views == 1:
            return records
        return -(-records // -(-records * self.views // _MOST_VIEWS))

    def _checked_size(self, **named: int) -> int:
        """Returns a number of records, in [1, population_size]."""
        _check.integer_at_least(1, **named)
        ((name, size),) = named.items()
        if size > self.population_size:
            raise ValueError(
                f"`{name}` must be at most {self.population_size}, the number "
                f"of records. Received: {name}={size!r}."
            )
        return int(size)

    def _words(
        self,
    ) -> tuple[random_words.Words, random_words.Words, random_words.Words]:
        """Returns the randomness of draws, of rows and of changes."""
        if self._seed is None:
            system = random_words.from_operating_system
            return system, system, system
        stream = [self._streams]
        self._streams += 1
        if self.shard_index is not None and self.shard_count is not None:
            stream += [self.shard_index, self.shard_count]
        seed = self._seed
        return (
            random_words.from_seed(seed, *stream),
            random_words.from_seed(seed, *stream, part=1),
            random_words.from_seed(seed, *stream, part=2),
        )

    def _batches(
        self,
        change: Change | None,
        draws: random_words.Words,
        places: random_words.Words,
        changes: random_words.Words,
    ) -> Iterator[tuple[PhysicalBatch, Pass]]:
        for draw in self._draws(draws, places):
            for batch in self.gathered(draw):
                records = batch.records
                if change is not None:
                    records = change(records, batch.mask, changes)
                yield batch._replace(records=records), draw.of

    def gathered(self, draw: Draw) -> Iterator[PhysicalBatch]:
        """Yields the physical batches of a sample, with the records in them.

        Args:
            draw: The sample, from `draws`.
        """
        for number, rows in enumerate(self.places(draw), start=1):
            yield PhysicalBatch(
                self._records.in_rows(rows), rows >= 0, number == len(draw.rows)
            )

    def places(self, draw: Draw) -> Integers:
        """Returns where in the data the records of a sample are, -1 for none.

        Args:
            draw: The sample, from `draws`.

        Returns:
            Shape `[physical batches, physical_batch_size]`.
        """
        rows = draw.rows
        return np.where(rows >= 0, rows + self.positions.start, -1)


def _check_complete(sampler: type[Sampler], options: dict[str, Any]) -> None:
    """Raises before a data set is read for which an argument is missing."""
    parameters = inspect.signature(sampler).parameters.values()
    for each in parameters:
        is_required = (
            each.kind is each.KEYWORD_ONLY and each.default is each.empty
        )
        if is_required and each.name not in options:
            raise TypeError(
                f"`{each.name}` must be given to {sampler.__name__}."
                f"from_dataset. Received: nothing. Pass {each.name}=..."
            )
