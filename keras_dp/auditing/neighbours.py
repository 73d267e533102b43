"""Samples that differ in one privacy unit, in physical batches of one shape."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp.training.data.batches import StepBatch

Rows = npt.NDArray[np.int64]
# From the rows of a unit, and those of other records, to new rows. Rows of
# others keep ids in their range.
_Change: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]

# The square of this number, and most products with it, overflow float32.
_HUGE = 1e30
# With such targets, gradients have one direction for any inputs.
_FAR = 1e3


class Neighbour(NamedTuple):
    """A sample with another unit, as the name says; or with padding."""

    name: str
    batch: StepBatch
    present: bool


def small_batch(batch: StepBatch, rows: int, size: int) -> StepBatch:
    """Returns a batch of a few rows of another batch, all of which take part.

    `rows` of them make a unit, and `size` is a multiple of that. If there are
    too few, they are repeated.
    """
    leaves = keras.tree.flatten(batch.x)
    count = int(leaves[0].shape[0])
    real = np.ones(count, bool) if batch.mask is None else batch.mask.numpy()
    taking_part = real.reshape(-1, rows).any(axis=1)
    order = np.flatnonzero(np.repeat(taking_part, rows))
    if not order.size:
        order = np.arange(count)
    chosen = np.resize(order, size)

    def taken(part: Any) -> Any:
        return _mapped(lambda leaf: tf.gather(leaf, chosen), part)

    return StepBatch(
        taken(batch.x),
        taken(batch.y),
        taken(batch.sample_weight),
        tf.constant(np.ones(size, bool)),
        ends_sample=True,
        pass_=batch.pass_,
    )


def without(batch: StepBatch, own: Rows) -> StepBatch:
    """Returns the batch with some rows as padding."""
    mask = np.array(batch.mask, bool)
    mask[own] = False
    return batch._replace(mask=tf.constant(mask))


def only(batch: StepBatch, own: Rows) -> StepBatch:
    """Returns the batch with all other rows as padding."""
    mask = np.zeros_like(np.array(batch.mask, bool))
    mask[own] = True
    return batch._replace(mask=tf.constant(mask))


def neighbours(batch: StepBatch, own: Rows) -> Iterator[Neighbour]:
    """Yields samples that differ from `without(batch, own)` in one unit.

    All records of the batch must take part.
    """
    yield Neighbour("as it is", batch, True)
    for name, *changes in _CHANGES:
        changed = _with(batch, own, *changes)
        if not _same(changed, batch):
            yield Neighbour(name, changed, True)
    for name, *changes in _CHANGES_OF_PADDING:
        yield Neighbour(name, _with(without(batch, own), own, *changes), False)


def _with(
    batch: StepBatch,
    own: Rows,
    x: _Change | None,
    y: _Change | None,
    weight: _Change | None,
) -> StepBatch:
    return batch._replace(
        x=_changed(batch.x, own, x),
        y=_changed(batch.y, own, y),
        sample_weight=_changed(batch.sample_weight, own, weight),
    )


def _changed(part: Any, own: Rows, change: _Change | None) -> Any:
    if change is None:
        return part

    def changed(leaf: tf.Tensor) -> tf.Tensor:
        others = (own + len(own)) % int(leaf.shape[0])
        rows = change(tf.gather(leaf, own), tf.gather(leaf, others))
        return tf.tensor_scatter_nd_update(leaf, own[:, np.newaxis], rows)

    return _mapped(changed, part)


def _zeros(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return rows if rows.dtype == tf.string else tf.zeros_like(rows)


def _huge(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    if not rows.dtype.is_floating:
        return others
    most = min(_HUGE, rows.dtype.max / 4)
    return tf.ones_like(rows) * tf.cast(most, rows.dtype)


def _far_above(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return rows + tf.cast(_FAR, rows.dtype) if rows.dtype.is_floating else rows


def _far_below(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return rows - tf.cast(_FAR, rows.dtype) if rows.dtype.is_floating else rows


def _nan(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return rows * math.nan if rows.dtype.is_floating else rows


def _rolled(rows: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
    return others


# How the inputs, the targets and the weights of a unit are changed.
_CHANGES: tuple[tuple[Any, ...], ...] = (
    ("of zeros", _zeros, None, None),
    ("with huge inputs", _huge, None, None),
    ("with huge inputs and targets", _huge, _huge, None),
    ("with targets far above", None, _far_above, None),
    ("with targets far below", None, _far_below, None),
    ("with NaN in its inputs", _nan, None, None),
    ("with NaN in its targets", None, _nan, None),
    ("with a huge sample weight", None, None, _huge),
    ("with other targets", None, _rolled, None),
    ("that is another record twice", _rolled, _rolled, _rolled),
)
_CHANGES_OF_PADDING: tuple[tuple[Any, ...], ...] = (
    ("that is padding, with NaN in it", _nan, _nan, None),
    ("that is padding, with another record in it", _rolled, _rolled, None),
)


def _same(one: StepBatch, two: StepBatch) -> bool:
    pairs = zip(_leaves(one), _leaves(two), strict=True)
    return all(np.array_equal(a.numpy(), b.numpy()) for a, b in pairs)


def _leaves(batch: StepBatch) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(batch.data) if leaf is not None]


def _mapped(function: Any, part: Any) -> Any:
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else function(leaf), part
    )
