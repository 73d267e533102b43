"""Physical batches of a sampler, as tensors."""

import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp._nests import Nest
from keras_dp.sampling import Sampler
from keras_dp.sampling.prefetch import Prefetched
from keras_dp.sampling.random_words import Randomness
from keras_dp.sampling.record_source import ALIGNMENT_BYTES
from keras_dp.training.data.record_map import RecordMap, record_map

# One more would only wait: the thread is as fast as the loop on average.
_AHEAD = 2
# The types that DLPack and TensorFlow agree on.
_SHARED = frozenset(
    np.dtype(name)
    for name in "f2 f4 f8 i1 i2 i4 i8 u1 u2 u4 u8 c8 c16".split()  # noqa: SIM905
)


class SampledBatches:
    """The endless physical batches of a sampler, prepared ahead of their use.

    They are drawn, gathered and made tensors in a thread, without a copy. The
    views of a record are consecutive rows.

    Guarantee: each iterator draws samples of its own. Batches that were
    prepared and not used are lost: what is used is independent of them.
    Exceptions of the data surface in `next`. The thread ends with its
    iterator, or with `close`.

    Attributes:
        structure: Nest of `RecordSpec`s of a record as the model takes it.
    """

    def __init__(self, sampler: Sampler) -> None:
        """Draws nothing yet."""
        self._sampler = sampler
        self._change = record_map(sampler, sampler.views)
        self.structure = _structure(sampler, self._change)
        self._open: weakref.WeakSet[Prefetched[Any]] = weakref.WeakSet()
        self._threads: list[threading.Thread] = []

    def __iter__(self) -> Iterator[Any]:
        """Returns an iterator.

        It yields the leaves of the records, the mask, whether the sample ends,
        and the `Pass`.
        """
        # Asked for here, not in the thread: streams of a seed are in order.
        randomness = self._sampler.randomness()
        elements = _elements(self._sampler, self._change, randomness)
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
    return sampler.records.structure if change is None else change.structure


def batches_in_order(sampler: Sampler) -> tf.data.Dataset:
    """Returns the records of a sampler as a finite data set of Keras.

    They come all once, in the order of the data, in batches of the physical
    size; the last may be shorter. Nothing is sampled, and each has one view.
    """
    change = record_map(sampler)
    structure = _structure(sampler, change)

    def elements() -> Iterator[Any]:
        words = sampler.randomness().changes
        stop, step = sampler.positions.stop, sampler.physical_batch_size
        for start in range(sampler.positions.start, stop, step):
            rows = np.arange(start, min(start + step, stop))
            records = sampler.records.in_rows(rows)
            if change is not None:
                records = change(records, np.ones(len(rows), np.bool_), words)
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
    sampler: Sampler, change: RecordMap | None, randomness: Randomness
) -> Iterator[Any]:
    try:
        for sample in sampler.draws(randomness):
            for records, mask, ends_sample in sampler.batches_of(sample):
                if change is not None:
                    records = change(records, mask, randomness.changes)
                leaves = tuple(map(as_tensor, keras.tree.flatten(records)))
                real = as_tensor(np.repeat(mask, sampler.views))
                yield leaves, real, ends_sample, sample.of
    # Keras would take it for the end of the data.
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
