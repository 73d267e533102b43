"""Physical batches of a sampler, as tensors: what a step receives.

Where rounds run one by one, a thread gathers the records of each batch. Where
several rounds are one call of a compiled function, the records are put on the
device once. A round then needs the places of its records alone, four bytes a
row.
"""

import collections
import functools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp._devices import has_accelerator
from keras_dp._nests import Nest
from keras_dp.sampling import Sampler
from keras_dp.sampling.draw import Pass, Sample
from keras_dp.sampling.random_words import (
    Randomness,
    Words,
    from_operating_system,
)
from keras_dp.sampling.record_source import ALIGNMENT_BYTES, aligned_empty
from keras_dp.training.data.prefetch import Prefetched
from keras_dp.training.data.record_map import RecordMap

# One more would only wait: the thread is as fast as the loop on average.
_AHEAD = 2
# Draws that wait for a block: each is of a few hundred places.
_DRAWS_AHEAD = 256
# The most places of one block, 16 MiB.
_MOST_PLACES = 2**22
# The types that DLPack and TensorFlow agree on.
_SHARED = frozenset(
    np.dtype(name)
    for name in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 c8 c16".split()  # noqa: SIM905
)


class StepBatch(NamedTuple):
    """One physical batch, and its place in the sample and the pass.

    Attributes:
        x: Inputs, leaves `[batch, ...]`.
        mask: Shape `[batch]`, false for padding; `None` if there is none.
        pass_: The pass of the sample; `None` unless the library drew it.
    """

    x: Any
    y: Any
    sample_weight: Any
    mask: tf.Tensor | None
    ends_sample: bool
    pass_: Pass | None = None

    @property
    def data(self) -> tuple[Any, Any, Any]:
        """Inputs, targets and sample weights, as Keras passes a batch on."""
        return self.x, self.y, self.sample_weight


class ResidentRecords(NamedTuple):
    """All records of a sampler, as tensors on the device.

    Attributes:
        leaves: Inputs, targets and sample weights, each `[records + 1, ...]` or
            `None`. The last record is zeros, for places that hold none.
        structure: A nest `(x, y, sample_weight)` of as many booleans: whether
            there is such a leaf. Compiled functions keep it.
    """

    leaves: list[Any]
    structure: Nest


class Block(NamedTuple):
    """The samples of the next rounds, each in one physical batch.

    Attributes:
        places: Where the records of each round are, -1 for none, int32 or int64
            `[rounds, batch]`.
        room: The most rounds of a block of this training.
    """

    records: ResidentRecords
    places: np.ndarray
    room: int


class Batches:
    """The endless samples of a sampler, prepared ahead of their use.

    Iterating gives a `StepBatch` for each physical batch, with its records.
    They are drawn, gathered and made tensors in a thread, without a copy. The
    views of a record are consecutive rows. `ahead` and `take` give samples, the
    places of records alone.

    Guarantee: each iterator draws samples of its own, and so do the places.
    Samples that were prepared and not used are lost: those that are used are
    independent of them. Exceptions of the data surface in `next`. A thread ends
    with its iterator, or with `close`.
    """

    def __init__(
        self,
        sampler: Sampler,
        weigh: Callable[[Any, Any], Any] = lambda y, weight: weight,
    ) -> None:
        """Draws nothing yet; `weigh` makes weights of targets and weights."""
        self.sampler, self._weigh = sampler, weigh
        self._change = RecordMap(sampler, sampler.views)
        self._most = max(1, _MOST_PLACES // sampler.physical_batch_size)
        self._waiting: collections.deque[Sample] = collections.deque()
        self._open: weakref.WeakSet[Prefetched[Any]] = weakref.WeakSet()
        self._threads: list[threading.Thread] = []

    def __iter__(self) -> Iterator[StepBatch]:
        # Asked for here, not in the thread: streams of a seed are in order.
        randomness = self.sampler.randomness()
        return self._ahead(self._endless(randomness), _AHEAD)

    def _endless(self, randomness: Randomness) -> Iterator[StepBatch]:
        for sample in self.sampler.draws(randomness):
            yield from self.batches_of(sample, randomness.changes)

    def batches_of(
        self, sample: Sample, words: Words = from_operating_system
    ) -> Iterator[StepBatch]:
        """Yields the physical batches of a sample, gathered on the host.

        A map of the sampler draws its random numbers from the words.
        """
        try:
            for records, mask, ends in self.sampler.batches_of(sample):
                records = self._change(records, mask, words)
                mask = np.repeat(mask, self.sampler.views)
                x, y, weight = keras.utils.unpack_x_y_sample_weight(
                    keras.tree.map_structure(as_tensor, records)
                )
                weight = self._weigh(y, weight)
                mask = as_tensor(mask)
                yield StepBatch(x, y, weight, mask, ends, sample.pass_)
        # Keras would take it for the end of the data.
        except tf.errors.OutOfRangeError as error:
            raise RuntimeError(
                "The source of the records raised OutOfRangeError, which Keras "
                "would take for the end of the data. Mend the source: the "
                "error above says where it failed."
            ) from error

    @functools.cached_property
    def resident(self) -> ResidentRecords:
        """The records of the sampler, on the device."""
        x, y, weight = keras.utils.unpack_x_y_sample_weight(
            self.sampler.records.in_memory
        )
        data = x, y, self._weigh(y, weight)
        return ResidentRecords(
            [_on_device(leaf) for leaf in keras.tree.flatten(data)],
            keras.tree.map_structure(lambda leaf: leaf is not None, data),
        )

    def ahead(self, most: int) -> list[Sample]:
        """Returns the next samples that can be one block, at least one.

        They are of one pass, each in one physical batch. A sample of several
        batches comes alone. They stay the next ones until they are taken.
        """
        found: list[Sample] = []
        for number in range(min(most, self._most)):
            if number == len(self._waiting):
                self._waiting.append(next(self._drawn))
            sample = self._waiting[number]
            is_alone = len(sample.rows) > 1
            is_of_next = sample.pass_.number != self._waiting[0].pass_.number
            if found and (is_alone or is_of_next):
                break
            found.append(sample)
            if is_alone:
                break
        return found

    def take(self, count: int) -> list[Sample]:
        """Returns the next samples, of those that `ahead` returned."""
        return [self._waiting.popleft() for _ in range(count)]

    @functools.cached_property
    def _drawn(self) -> Iterator[Sample]:
        kind = np.int32 if len(self.sampler.records) < 2**31 else np.int64
        # The thread must not hold `self`, which holds its iterator.
        small = (
            sample._replace(rows=sample.rows.astype(kind))
            for sample in self.sampler.draws()
        )
        return self._ahead(small, min(_DRAWS_AHEAD, self._most))

    def _ahead(self, items: Iterator[Any], ahead: int) -> Iterator[Any]:
        prefetched = Prefetched(items, ahead=ahead)
        self._open.add(prefetched)
        self._threads.append(prefetched.thread)
        return prefetched

    def close(self) -> None:
        """Ends all iterators, and waits for their threads."""
        for each in list(self._open):
            each.close()
        while self._threads:  # Some iterators are freed already.
            self._threads.pop().join()
        self._waiting.clear()
        self.__dict__.pop("_drawn", None)


def places_of(samples: list[Sample]) -> np.ndarray:
    """Returns where the records of samples are, of one physical batch each."""
    return np.stack([sample.rows[0] for sample in samples])


def gathered(leaves: list[Any], places: tf.Tensor) -> list[Any]:
    """Returns the record at each place, zeros where that is -1."""
    # On several cores `tf.gather` waits for a second thread, however little.
    # On accelerators `tf.gather_nd` lacks some types, and nowhere does it take
    # records with an axis of length 0.
    on_cpu = not has_accelerator()

    def taken(leaf: Any) -> Any:
        if leaf is None:
            return None
        zeros = tf.cast(tf.shape(leaf)[0] - 1, places.dtype)
        found = tf.where(places < 0, zeros, places)
        if on_cpu and leaf.shape.num_elements():
            return tf.gather_nd(leaf, found[..., tf.newaxis])
        return tf.gather(leaf, found)

    return [taken(leaf) for leaf in leaves]


def _on_device(leaf: Any) -> Any:
    """Returns records and one more, of zeros.

    To gather it is faster than to set rows that were gathered to zero.
    """
    if leaf is None:
        return None
    if isinstance(leaf, np.ndarray):
        native = leaf.dtype.newbyteorder("=")
        if native in _SHARED:
            own = aligned_empty((len(leaf) + 1, *leaf.shape[1:]), native)
            own[:-1], own[-1] = leaf, 0
            return tf.identity(as_tensor(own))
        leaf = as_tensor(leaf)
    return tf.concat([leaf, tf.zeros_like(leaf[:1])], axis=0)


def batches_in_order(sampler: Sampler) -> tf.data.Dataset:
    """Returns the records of a sampler as a finite data set of Keras.

    They come all once, in the order of the data, in batches of the physical
    size; the last may be shorter. Nothing is sampled, and each has one view.
    """
    change = RecordMap(sampler)

    def elements() -> Iterator[Any]:
        words = sampler.randomness().changes
        stop, step = sampler.positions.stop, sampler.physical_batch_size
        for start in range(sampler.positions.start, stop, step):
            rows = np.arange(start, min(start + step, stop))
            records = sampler.records.in_rows(rows)
            records = change(records, np.ones(len(rows), np.bool_), words)
            yield tuple(keras.tree.flatten(records))

    def packed(*leaves: tf.Tensor) -> Any:
        return _as_tuples(
            keras.tree.pack_sequence_as(change.structure, list(leaves))
        )

    count = -(-len(sampler.positions) // sampler.physical_batch_size)
    specs = tuple(
        tf.TensorSpec((None, *spec.shape), spec.dtype)
        for spec in keras.tree.flatten(change.structure)
    )
    dataset = _generated(elements, specs)
    dataset = dataset.map(packed).prefetch(_AHEAD)
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def _generated(
    elements: Callable[[], Iterator[Any]], signature: Any
) -> tf.data.Dataset:
    """Returns a data set of what a function yields.

    TensorFlow 2.21 never frees a function that `from_generator` was given. So
    it is given one that holds nothing. The data set holds the other, and the
    records with it, as long as it or a data set made of it is there.
    """
    held = weakref.ref(elements)

    def generate() -> Iterator[Any]:
        found = held()
        if found is None:
            raise RuntimeError(
                "The batches must be read while their data set is there. "
                "Received: an iterator of one that was freed. Keep the data "
                "set in a variable."
            )
        return found()

    dataset = tf.data.Dataset.from_generator(
        generate, output_signature=signature
    )
    dataset.elements = elements
    return dataset


def _as_tuples(nest: Nest) -> Nest:
    """Makes lists tuples: `tf.data` would stack the tensors of a list."""
    if isinstance(nest, dict):
        return {key: _as_tuples(child) for key, child in nest.items()}
    if isinstance(nest, (list, tuple)):
        return tuple(map(_as_tuples, nest))
    return nest


def as_tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    """Returns a tensor with what an array holds, without a copy if possible.

    Nobody may write to the array any more.
    """
    native = array.dtype.newbyteorder("=")
    if native not in _SHARED or not array.size:
        return tf.convert_to_tensor(array.astype(native, copy=False))
    shared = (
        array.dtype == native
        and array.flags.c_contiguous
        and array.flags.writeable  # DLPack cannot say that it is not.
        # TensorFlow would end the process rather than copy.
        and array.ctypes.data % ALIGNMENT_BYTES == 0
    )
    if not shared:  # TensorFlow itself would copy twice.
        own = aligned_empty(array.shape, native)
        own[...] = array
        array = own
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
