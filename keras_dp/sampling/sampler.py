"""Samplers: a law of sampling, and the records that it draws from."""

import abc
import dataclasses
import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self, TypedDict, cast

import numpy as np
import numpy.typing as npt

from keras_dp import _check, _reproducible
from keras_dp._nests import Nest
from keras_dp.ledger import SamplingEvent
from keras_dp.sampling.datasets import FiniteDataset, check_order
from keras_dp.sampling.draw import Draw, Pass, RowsOfRecord, Sample
from keras_dp.sampling.pipelines import Function
from keras_dp.sampling.random_words import Randomness
from keras_dp.sampling.record_source import RandomAccessSource, Source

# Rows of a physical batch that are computed at once where nobody chose a
# number, and each record has several.
_MOST_VIEWS = 4096
# Two iterators that begin at once have streams of their own.
_NEXT_STREAM = threading.Lock()


class SamplerOptions(TypedDict, total=False):
    """The arguments that every sampler takes beside the data and its law.

    Attributes:
        physical_batch_size: Length of the leading axis of every physical batch,
            at least 1. With the default, at least 99.99 % of the samples fit
            into one batch, which is fastest. A smaller one needs less memory; a
            much larger one spends time on padding.
        rounds_per_epoch: Number of rounds that `fit` calls an epoch, at least
            1. By default a record takes part once in them, on average.
        map: Function of TensorFlow from one record to another, such as a
            random crop: a tuple `(x, y)` is passed as two arguments, as
            by `tf.data.Dataset.map`. It is applied to each record each
            time that it is drawn; see `RecordMap`. `Augmentation` makes
            one of Keras layers, which is faster.
        views: How often a drawn record is mapped, at least 1 and by default 1,
            each time with random numbers of its own. The mean gradient of its
            views is the record, and is clipped once. So the event is that of
            one view. A physical batch has `views` rows for each of its records;
            by default it has at most 4,096. It must be 1 for users and
            microbatches, which have several rows already.
        seed: An integer, at least 0, for tests. For a sampler that is made
            inside `reproducible()`, draws and rows depend on the seed only: the
            first iterators of two equal samplers draw the same, and each
            further iterator has a stream of its own. For any other sampler
            they come from the operating system: a second run with the seed
            would draw the same samples, but accountants assume that those of
            all rounds are independent. Rounds are marked as `seeded` in both
            cases.
    """

    physical_batch_size: int | None
    rounds_per_epoch: int | None
    map: Callable[..., Any] | None
    views: int
    seed: int | None


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


class Sampler(abc.ABC):
    """Draws samples of records, and makes the sampling event for the ledger.

    The base class of all samplers. Iterating gives physical batches without
    end; `ends_sample` marks the last batch of a sample.

    Attributes:
        draw: The law of sampling.
        records: The records, as they are stored.
        physical_batch_size: Length of the leading axis of every physical batch.
        rounds_per_epoch: Number of rounds that `fit` calls an epoch.
        map: The function that `fit`, `evaluate` and `predict` apply to each
            record, `None` for none. Iterating over the sampler yields the
            records as they are stored.
        views: How often `fit` maps a record that was drawn. The mean gradient
            of its views is the record.
        shard_index: The index of this shard; `None` for a sampler of all
            records.
        shard_count: The number of shards; `None` for a sampler of all records.
        functions: The functions of the data set that the records are from.
    """

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

    @abc.abstractmethod  # Nobody else's law is one that the library drew by.
    def __init__(
        self,
        data: Nest | RandomAccessSource,
        law: Callable[..., Draw],
        arguments: Mapping[str, Any],
        *,
        physical_batch_size: int | None = None,
        rounds_per_epoch: int | None = None,
        map: Callable[..., Any] | None = None,  # noqa: A002 - as in tf.data.
        views: int = 1,
        seed: int | None = None,
        **others: Any,
    ) -> None:
        """Looks at the shapes of the data, and draws nothing.

        `data` is that of `PoissonBatches`, and the options are those of
        `SamplerOptions`. The law takes a number of records and its arguments,
        which `repr` shows, and returns how the records are drawn.
        """
        _check.arguments_of(type(self), Sampler, given=others)
        self.records = Source(data)
        # A shard has a part of the whole draw.
        self._law = functools.partial(law, **arguments)
        self._shown = arguments
        self.draw = self._whole = draw = self._law(len(self.records))
        if seed is not None:
            _check.integer_at_least(0, seed=seed)
        _check_map(map, views, draw)
        self.map, self.views = map, int(views)
        self._positions = range(len(self.records))
        self._has_seed = seed is not None
        self._seed = seed if _reproducible.is_on() else None
        self._streams = 0
        self.functions: list[Function] = []
        self._has_default_size = physical_batch_size is None
        self.physical_batch_size = self._at_once(draw)
        if physical_batch_size is not None:
            _check.integer_at_least(1, physical_batch_size=physical_batch_size)
            self.physical_batch_size = int(physical_batch_size)
        rows = draw.rows_of_record.rows
        if self.physical_batch_size % rows:
            whose = "user" if self.unit == "user" else "microbatch"
            raise ValueError(
                f"`physical_batch_size` must be a multiple of the {rows} "
                f"rows of a {whose}, which stand in one batch. Received: "
                f"physical_batch_size={physical_batch_size!r}."
            )
        self.rounds_per_epoch = draw.rounds_per_epoch
        if rounds_per_epoch is not None:
            _check.integer_at_least(1, rounds_per_epoch=rounds_per_epoch)
            self.rounds_per_epoch = int(rounds_per_epoch)

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
                sampler is missing or misspelt.
            PrivateTrainingError: The data set mixes records.
            ValueError: The data set is infinite, empty or repeated, its records
                differ in shape, or `batched` must be given.
        """
        # Reading takes long: what is missing or misspelt is said before.
        inspect.signature(cls).bind(dataset, **options)
        _check.arguments_of(cls, Sampler, given=options)
        check_order(dataset, user_ids=options.get("user_ids"))
        found = FiniteDataset(dataset, batched)
        sampler = cls(found.stored(verbose=verbose), **options)
        sampler.functions = found.functions
        return sampler

    def __len__(self) -> int:
        """Returns `rounds_per_epoch`, like the `len` of a data set in Keras.

        But iterating does not end there: samples are drawn without end.
        """
        return self.rounds_per_epoch

    def __repr__(self) -> str:
        given = {**self._shown, "physical_batch_size": self.physical_batch_size}
        if self.views > 1:
            given["views"] = self.views
        if self.shard_index is not None:
            given["shard"] = f"{self.shard_index} of {self.shard_count}"
        shown = [
            f"{name}={value:.6g}" if type(value) is float else f"{name}={value}"
            for name, value in given.items()
            if value is not None
        ]
        what = "users" if self.unit == "user" else "records"
        return (
            f"<{type(self).__name__} of {self.population_size:,} {what}, "
            f"{self.expected_sample_size:.6g} expected in a sample, "
            f"{', '.join(shown)}>"
        )

    @property
    def population_size(self) -> int:
        """The number of records in the data, or of users, of all shards."""
        return self._whole.population_size

    @property
    def positions(self) -> range:
        """The range of the indices, in the data, of the records drawn from."""
        return self._positions

    @property
    def expected_sample_size(self) -> float:
        """The mean number of records in a round, or of users.

        It depends on the number of records; see `PoissonBatches`.
        """
        return self._whole.expected_size

    @property
    def expected_records(self) -> float:
        """The mean number of records that a query sums up in a round.

        They are the examples, the microbatches or the users of a sample.
        """
        return self._whole.expected_size / self._whole.rows_of_record.size

    @property
    def rounds_per_pass(self) -> int | None:
        """The number of rounds of a pass; `None` if each is drawn anew.

        In a pass, which one event covers, each record takes part equally often.
        """
        return self.draw.rounds_per_pass

    @property
    def unit(self) -> str:
        """The unit that is drawn: "example" or "user"."""
        return self.draw.unit

    @property
    def rows_of_record(self) -> RowsOfRecord:
        """The rows of a batch that `fit` makes one record of the query."""
        if self.views > 1:
            return RowsOfRecord.of_views(self.views)
        return self.draw.rows_of_record

    @property
    def seeded(self) -> bool:
        """Whether the caller chose the seed."""
        return self._has_seed

    @property
    def sampling_event(self) -> SamplingEvent:
        """The event that a ledger records for the draw of each round.

        Raises:
            AttributeError: Each pass has an event of its own.
        """
        if self.rounds_per_pass is not None:
            raise AttributeError(
                f"`sampling_event` must be asked of a sampler without passes. "
                f"Received: {type(self).__name__}, whose passes have an event "
                "each."
            )
        return self.draw.event

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
        size = self.rounds_per_pass or rounds
        return [
            (
                self.sampling_of(first._replace(number=first.number + number)),
                min(size, rounds - start),
            )
            for number, start in enumerate(range(0, rounds, size))
        ]

    def sampling_of(self, pass_: Pass) -> SamplingEvent:
        """Returns the sampling event of the rounds of a pass, for a ledger."""
        event: Any = self.draw.event
        if self.rounds_per_pass is not None:
            event = dataclasses.replace(event, epoch_id=pass_.epoch_id)
        return cast("SamplingEvent", event)

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
        return itertools.chain.from_iterable(map(self.batches_of, self.draws()))

    def randomness(self) -> Randomness:
        """Returns the randomness of a new iterator, a stream of the seed."""
        with _NEXT_STREAM:
            stream = [self._streams]
            self._streams += 1
        if self.shard_index is not None and self.shard_count is not None:
            stream += [self.shard_index, self.shard_count]
        return Randomness.of(self._seed, *stream)

    def draws(self, randomness: Randomness | None = None) -> Iterator[Sample]:
        """Yields fresh samples without end; no record is read.

        Several iterators can be used at the same time; each draws its own
        samples.

        Args:
            randomness: By default a new one.
        """
        # Asked for here and not at the first sample: streams are in order.
        return self._samples(randomness or self.randomness())

    def _samples(self, randomness: Randomness) -> Iterator[Sample]:
        pass_, size = Pass.new(), self.rounds_per_pass
        for number, units in enumerate(self.draw.units(randomness.draws)):
            if size is not None:
                ahead = size - 1 - number % size
                pass_ = pass_._replace(number=number // size, rounds_left=ahead)
            if self.positions.start:
                units = units + self.positions.start
            rows = self.draw.placed(
                units, self.physical_batch_size, randomness.places
            )
            yield Sample(rows, pass_)

    def batches_of(self, sample: Sample) -> Iterator[PhysicalBatch]:
        """Yields the physical batches of a sample, with the records in them."""
        for number, rows in enumerate(sample.rows, start=1):
            yield PhysicalBatch(
                self.records.in_rows(rows),
                rows >= 0,
                number == len(sample.rows),
            )

    def _at_once(self, draw: Draw) -> int:
        """Returns the default number of records in a physical batch.

        All of a sample; with several views, they are cut into equal parts.
        """
        records = draw.most_rows
        if self.views == 1:
            return records
        return -(-records // -(-records * self.views // _MOST_VIEWS))


def _check_map(change: Any, views: int, draw: Draw) -> None:
    """Raises unless records can be mapped as often as `views` says."""
    if change is not None and not callable(change):
        raise TypeError(
            "`map` must be a function of one record, or None. "
            f"Received: map={change!r}."
        )
    _check.integer_at_least(1, views=views)
    if views > 1 and change is None:
        raise ValueError(
            "`views` must be 1 without a map: views of a record differ in "
            f"the random numbers of its map. Received: views={views!r}. "
            "Pass map=..., such as a random flip."
        )
    if views > 1 and not draw.rows_of_record.are_apart:
        raise ValueError(
            "`views` must be 1 for users and microbatches: both average "
            "gradients before the clip, and views alone cost no privacy. "
            f"Received: views={views!r}. Draw single records by PoissonBatches."
        )
