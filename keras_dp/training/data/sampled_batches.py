"""Physical batches of a sampler, as a data set of TensorFlow."""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp._nests import Nest
from keras_dp._override import override
from keras_dp.keras_internals import variant_of
from keras_dp.sampling import PhysicalBatch, Sampler
from keras_dp.sampling.prefetch import Prefetched
from keras_dp.sampling.record_source import ALIGNMENT_BYTES
from keras_dp.sampling.sampler import Pass
from keras_dp.training.data.record_map import RecordMap, record_map

# One more would only wait: the thread is as fast as the loop on average.
_AHEAD = 2
# The types that DLPack and TensorFlow agree on.
_SHARED = frozenset(
    np.dtype(name)
    for name in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 c8 c16".split()  # noqa: SIM905
)


class SampledBatches(tf.data.Dataset):
    """The endless physical batches of a sampler, prepared ahead of their use.

    Iterated over eagerly, as `fit` does, batches are drawn, gathered and made
    tensors in a thread, without a copy. Everywhere else, such as inside a
    function or under a distribution strategy, it is an ordinary data set.

    Guarantee: each iterator draws samples of its own. Batches that were
    prepared and not used are lost: what is used is independent of them.
    Exceptions of the data surface in `next`. The thread ends with its
    iterator, or with `close`.

    Attributes:
        structure: Nest of `RecordSpec`s of a record as the model takes it.
        element_spec: Leaves of the records, the mask, whether the sample ends,
            and the `Pass` as numbers. The views of a record are consecutive
            rows.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._change = record_map(sampler, sampler.views)
        self.structure = _structure(sampler, self._change)
        size = sampler.physical_batch_size * sampler.views
        spec = (
            _specs(self.structure, size),
            tf.TensorSpec((size,), tf.bool),
            tf.TensorSpec((), tf.bool),
            tf.TensorSpec((len(Pass._fields),), tf.int64),
        )
        change = self._change

        def elements() -> Iterator[Any]:
            batches = sampler.rounds_of_passes(change)
            return _elements(batches, np.asarray, sampler.views)

        self._plain = _generated(elements, spec).prefetch(_AHEAD)
        self._open: weakref.WeakSet[Prefetched[Any]] = weakref.WeakSet()
        self._threads: list[threading.Thread] = []
        super().__init__(variant_of(self._plain))

    @override
    def _inputs(self) -> list[Any]:
        return [self._plain]

    @property
    @override
    def element_spec(self) -> Any:
        return self._plain.element_spec

    @override
    def __iter__(self) -> Iterator[Any]:
        if not tf.executing_eagerly():
            iterator: Iterator[Any] = super().__iter__()
            return iterator
        # Asked for here, not in the thread: streams of a seed are in order.
        batches = self._sampler.rounds_of_passes(self._change)
        elements = _elements(batches, as_tensor, self._sampler.views)
        prefetched = Prefetched(elements, ahead=_AHEAD)
        self._open.add(prefetched)
        self._threads.append(prefetched.thread)
        return prefetched

    def close(self) -> None:
        """Ends all iterators, and waits for their threads."""
        for each in list(self._open):
            each.close()
        while self._threads:  # Some iterators are freed already.
            self._threads.pop().join()


def _structure(sampler: Sampler, change: RecordMap | None) -> Nest:
    return sampler.record_structure if change is None else change.structure


def batches_in_order(sampler: Sampler) -> tf.data.Dataset:
    """Returns the records of a sampler as a finite data set of Keras.

    They come all once, in the order of the data, in batches of the physical
    size; the last may be shorter. Nothing is sampled, and each has one view.
    """
    change = record_map(sampler)
    structure = _structure(sampler, change)

    def elements() -> Iterator[Any]:
        for records in sampler.in_order(change):
            yield tuple(keras.tree.flatten(records))

    def packed(*leaves: tf.Tensor) -> Any:
        return _as_tuples(keras.tree.pack_sequence_as(structure, list(leaves)))

    count = -(-len(sampler.positions) // sampler.physical_batch_size)
    dataset = _generated(elements, _specs(structure, None))
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


def _specs(structure: Nest, size: int | None) -> tuple[tf.TensorSpec, ...]:
    return tuple(
        tf.TensorSpec((size, *spec.shape), spec.dtype)
        for spec in keras.tree.flatten(structure)
    )


def _elements(
    batches: Iterator[tuple[PhysicalBatch, Pass]],
    converted: Callable[[Any], Any],
    views: int,
) -> Iterator[Any]:
    for batch, of in _surfacing(batches):
        leaves = keras.tree.flatten(batch.records)
        yield (
            tuple(map(converted, leaves)),
            converted(np.repeat(batch.mask, views)),
            batch.ends_sample,
            tuple(of),
        )


def _surfacing(batches: Iterator[Any]) -> Iterator[Any]:
    """Renames what Keras would take for the end of the data."""
    try:
        yield from batches
    except tf.errors.OutOfRangeError as error:
        raise RuntimeError(
            "The source of the records raised OutOfRangeError, which Keras "
            "would take for the end of the data. Mend the source: the error "
            "above says where it failed."
        ) from error


def as_tensor(array: npt.NDArray[Any]) -> tf.Tensor:
    """Returns a tensor with what an array holds, without a copy if possible.

    Args:
        array: That nobody writes to any more.
    """
    shared = (
        array.dtype in _SHARED
        and array.size > 0
        and array.flags.c_contiguous
        and array.flags.writeable  # DLPack cannot say that it is not.
        # TensorFlow would end the process rather than copy.
        and array.ctypes.data % ALIGNMENT_BYTES == 0
    )
    if not shared:
        return tf.convert_to_tensor(array)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
