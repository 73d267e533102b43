"""Rounds that are one dispatch: their samples, as places of resident records.

The records of a sampler are put on the device once. A round then needs the
places of its records alone, four bytes a row, and several rounds are run by one
call of a compiled function, which gathers the records of each.
"""

import collections
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp._nests import Nest
from keras_dp.sampling import Sampler
from keras_dp.sampling.draw import Sample
from keras_dp.sampling.prefetch import Prefetched
from keras_dp.training.data.sampled_batches import as_tensor

# Draws that wait for a block: each is of a few hundred places.
_AHEAD = 256
# The most places of one block, 16 MiB.
_MOST_PLACES = 2**22


class ResidentRecords(NamedTuple):
    """All records of a sampler, as tensors on the device.

    Attributes:
        leaves: Inputs, targets and sample weights, each `[records, ...]` or
            `None`.
        structure: A nest `(x, y, sample_weight)` of as many leaves.
    """

    leaves: list[Any]
    structure: Nest

    @classmethod
    def of(cls, data: tuple[Any, Any, Any]) -> "ResidentRecords":
        """Returns records in memory as tensors, without a copy if possible.

        Args:
            data: Inputs, targets and weights, with arrays `[records, ...]`.
        """
        return cls([_tensor(leaf) for leaf in keras.tree.flatten(data)], data)

    def packed(self, leaves: list[Any]) -> Any:
        """Returns leaves as the nest of inputs, targets and weights."""
        return keras.tree.pack_sequence_as(self.structure, leaves)


def _tensor(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf  # A tensor, or None.
    return as_tensor(leaf.astype(leaf.dtype.newbyteorder("="), copy=False))


class Block(NamedTuple):
    """The samples of the next rounds, each in one physical batch.

    Attributes:
        records: The records that they are drawn from.
        places: Where the records of each round are, -1 for none, int32 or int64
            `[rounds, batch]`.
        room: The most rounds of a block of this training.
    """

    records: ResidentRecords
    places: np.ndarray
    room: int


def gathered(leaves: list[Any], places: tf.Tensor) -> list[Any]:
    """Returns the record at each place, zeros where that is -1.

    Args:
        leaves: The leaves of `ResidentRecords`.
        places: Shape `[batch]`.
    """
    mask, at = places >= 0, tf.maximum(places, 0)

    def taken(leaf: Any) -> Any:
        if leaf is None:
            return None
        entries = tf.gather(leaf, at)
        shape = [-1] + [1] * (entries.shape.rank - 1)
        return tf.where(
            tf.reshape(mask, shape), entries, tf.zeros([], entries.dtype)
        )

    return [taken(leaf) for leaf in leaves]


class DrawnSamples:
    """The samples of a sampler, some of which are drawn in advance.

    Those that were drawn and not taken are lost: what is taken is independent
    of them.
    """

    def __init__(self, sampler: Sampler) -> None:
        """Starts the thread that draws."""
        kind = np.int32 if len(sampler.records) < 2**31 else np.int64

        def samples() -> Iterator[Sample]:
            for draw in sampler.draws():
                yield draw._replace(rows=draw.rows.astype(kind))

        self._most = max(1, _MOST_PLACES // sampler.physical_batch_size)
        self._drawn = Prefetched(samples(), ahead=min(_AHEAD, self._most))
        self._waiting: collections.deque[Sample] = collections.deque()

    def first(self) -> Sample:
        """Returns the next sample, which stays the next one."""
        if not self._waiting:
            self._waiting.append(next(self._drawn))
        return self._waiting[0]

    def take(self) -> Sample:
        """Returns the next sample."""
        draw = self.first()
        self._waiting.popleft()
        return draw

    def places(self, count: int) -> np.ndarray:
        """Returns where the records of the next samples are.

        Args:
            count: As many samples, at most `alike` of them.
        """
        next_ones = itertools.islice(self._waiting, count)
        return np.stack([draw.rows[0] for draw in next_ones])

    def alike(self, most: int) -> int:
        """Returns how many of the next samples can be one block.

        They are of the pass of the first one, each in one physical batch.

        Args:
            most: As many at most, >= 1.
        """
        first, count = self.first(), 0
        for count in range(min(most, self._most)):
            if count == len(self._waiting):
                self._waiting.append(next(self._drawn))
            draw = self._waiting[count]
            is_of_pass = draw.of.epoch_id == first.of.epoch_id
            if len(draw.rows) > 1 or not is_of_pass:
                return count
        return count + 1

    def close(self) -> None:
        """Ends the thread."""
        self._drawn.close()
