"""Norms and sums of batches of records.

A batch of records is a nest. Its leaves are tensors `[batch, ...]` or
`LazyRecords`. Lazy records, such as the per-example gradients of a layer, give
their norms and sums without being built.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from keras_dp._rounding import Proven

Leaf = Any  # A tensor `[batch, ...]` or a `LazyRecords`.


@runtime_checkable
class LazyRecords(Protocol):
    """One leaf of a batch of records, which may never be built.

    It gives norms and sums without holding the records in memory. Queries that
    clip by a norm call `squared_norms` and `weighted_sum`. Queries that need
    the coordinates `materialize` a few records at a time. Training in
    microbatches calls `grouped`.
    """

    def squared_norms(self) -> tf.Tensor:
        """Returns each record's squared L2 norm, shape `[batch]`.

        It may be an upper bound. Records are then clipped more than they need.
        """

    def weighted_sum(self, weights: tf.Tensor) -> tf.Tensor:
        """Returns `sum_i weights[i] * record[i]`, in the shape of one record.

        A record of weight 0 contributes nothing, even if it is not finite.
        """

    def sums_together(
        self,
        sums: Sequence[Callable[[tf.Tensor], tf.Tensor]],
        weights: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Returns several weighted sums, each a function of the weights.

        They are `weighted_sum` or `Proven.sums` of these records, and of other
        leaves of the same batch.
        """

    def proven(self) -> Proven:
        """Returns what is proven of the norms and of the sum."""

    def materialize(self, indices: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the records at these places, by default all of them.

        The places are `[n]` with a static `n`, the records `[n, ...]`.
        """

    def grouped(self, size: int, weights: tf.Tensor) -> "LazyRecords":
        """Returns one record for each group of `size` consecutive records.

        It is the weighted sum of the records of the group. A record of weight 0
        contributes nothing, even if it is not finite. `size` divides the batch.
        """

    def scaled(self, factors: Sequence[tf.Tensor]) -> "LazyRecords":
        """Returns the records times a product of one factor for each axis.

        The entry `[i, j, ...]` of a record is multiplied by `factors[0][i] *
        factors[1][j] * ...`. The factors are public.
        """


def norms(
    leaves: list[Leaf], scales: Sequence[float] | None = None
) -> tf.Tensor:
    """Returns the joint L2 norm over `leaves` of each record, `[batch]`.

    Each leaf counts over its scale, if there are any.

    The norm is not finite if the record is not, or if it is too large for the
    dtype. Tensors are scaled before they are squared, so that neither overflow
    nor underflow can hide the size of a finite record. Half precision is
    computed in float32.
    """
    if not leaves:
        raise ValueError(
            "`records` must have at least one leaf. Received: an empty nest."
        )
    each = [in_float(_leaf_norms(leaf)) for leaf in leaves]
    if scales is not None:
        each = [
            own if scale == 1 else own / scale
            for own, scale in zip(each, scales, strict=True)
        ]
    if len(each) == 1:
        return each[0]
    dtype = tf.float64 if tf.float64 in {n.dtype for n in each} else tf.float32
    return _norms_of_rows(tf.stack([tf.cast(n, dtype) for n in each], axis=1))


def clip_factors(norms: tf.Tensor, l2_norm_clip: tf.Tensor) -> tf.Tensor:
    """Returns `min(1, l2_norm_clip / norm)`; 0 if that norm is not finite."""
    clip = tf.cast(l2_norm_clip, norms.dtype)
    positive = tf.where(norms > 0, norms, tf.ones_like(norms))
    factors = tf.where(norms > clip, clip / positive, tf.ones_like(norms))
    return tf.where(tf.math.is_finite(norms), factors, tf.zeros_like(norms))


def automatic_factors(norms: tf.Tensor, gamma: float) -> tf.Tensor:
    """Returns `gamma / (norm + gamma)`; 0 if that norm is not finite.

    A record times its factor is at most `gamma` long. Where the factor is below
    the normal numbers of the dtype, it would be rounded too coarsely, and is 0.
    """
    factors = gamma / (norms + gamma)
    least_normal = np.finfo(norms.dtype.as_numpy_dtype).tiny
    usable = tf.math.is_finite(norms) & (factors >= least_normal)
    return tf.where(usable, factors, tf.zeros_like(norms))


def masked(weights: tf.Tensor, mask: Any) -> tf.Tensor:
    """Returns `weights`, with 0 where `mask` is false; `None` masks nothing."""
    if mask is None:
        return weights
    mask = tf.convert_to_tensor(mask)
    if mask.dtype != tf.bool:
        raise TypeError(
            "`mask` must be boolean. Received: a mask of dtype "
            f"{mask.dtype.name}."
        )
    mask = with_shape_of(weights, mask, "mask", "the shape [batch]")
    return tf.where(mask, weights, tf.zeros_like(weights))


def ones(leaf: Leaf) -> tf.Tensor:
    """Returns weight 1 for each record of a leaf, shape `[batch]`."""
    if isinstance(leaf, LazyRecords):
        return tf.ones_like(leaf.squared_norms())
    return tf.ones(tf.shape(leaf)[:1], tf.float32)


def weighted_sum(leaf: Leaf, weights: tf.Tensor) -> tf.Tensor:
    """Returns `sum_i weights[i] * leaf[i]`; see `LazyRecords`."""
    if isinstance(leaf, LazyRecords):
        return leaf.weighted_sum(weights)
    leaf = tf.convert_to_tensor(leaf)
    if leaf.dtype.is_floating:
        leaf = in_float(leaf)
        multiply = tf.math.multiply_no_nan  # 0 * NaN is NaN, but not here.
    else:
        multiply = tf.multiply
    # A shape of -1 would let a single record stand for the whole batch. A
    # matrix product would round to 10 bits on GPUs with TensorFloat-32.
    along = [tf.shape(leaf)[0]] + [1] * (leaf.shape.rank - 1)
    weights = tf.reshape(tf.cast(weights, leaf.dtype), along)
    return tf.reduce_sum(multiply(leaf, weights), axis=0)


def weighted_sums(records: Any, weights: tf.Tensor) -> Any:
    """Returns `weighted_sum` of each leaf. Lazy leaves are summed together."""
    leaves = keras.tree.flatten(records)
    each = [functools.partial(weighted_sum, leaf) for leaf in leaves]
    sums = sums_of(leaves, each, weights)
    return keras.tree.pack_sequence_as(records, sums)


def sums_of(
    leaves: list[Leaf],
    each: Sequence[Callable[[tf.Tensor], Any]],
    weights: tf.Tensor,
) -> list[Any]:
    """Returns a function of the weights for each leaf: lazy ones together."""
    are_lazy = [isinstance(leaf, LazyRecords) for leaf in leaves]
    lazy = list(itertools.compress(leaves, are_lazy))
    together = list(itertools.compress(each, are_lazy))
    sums = iter(lazy[0].sums_together(together, weights) if lazy else [])
    return [
        next(sums) if is_lazy else own(weights)
        for is_lazy, own in zip(are_lazy, each, strict=True)
    ]


def clipped_sum(
    records: Any,
    norms: tf.Tensor,
    l2_norm_clip: tf.Tensor,
    mask: Any,
    gamma: float | None = None,
) -> Any:
    """Returns the sum of records, each scaled to at most `l2_norm_clip`.

    Without a gamma the factor of a record is `min(1, l2_norm_clip / norm)`, and
    with one it is `l2_norm_clip / (norm + gamma)`. A record whose joint norm is
    not finite counts as zero.
    """
    if gamma is None:
        factors = masked(clip_factors(norms, l2_norm_clip), mask)
        return weighted_sums(records, factors)
    # No factor is above 1 before the sum: a part of a lazy record may be so
    # large that it would overflow, although the record is 0.
    sums = weighted_sums(records, masked(automatic_factors(norms, gamma), mask))
    unit = tf.cast(l2_norm_clip, tf.float64) / gamma
    return keras.tree.map_structure(
        lambda total: total * tf.cast(unit, total.dtype), sums
    )


def scaled(leaf: Leaf, factors: Sequence[tf.Tensor]) -> Leaf:
    """Returns records times a vector of factors for each axis of a record."""
    if isinstance(leaf, LazyRecords):
        return leaf.scaled(factors)
    leaf = in_float(leaf)
    start = leaf.shape.rank - len(factors)
    shape = tf.TensorShape([factor.shape[0] for factor in factors])
    if not leaf.shape[start:].is_compatible_with(shape):
        raise ValueError(
            "`records` must have the template's shape, which is "
            f"{shape}. Received: {leaf.shape[start:]}."
        )
    for axis, factor in enumerate(factors):
        along = [-1] + [1] * (len(factors) - axis - 1)
        leaf *= tf.reshape(tf.cast(factor, leaf.dtype), along)
    return leaf


def with_shape_of(
    like: tf.Tensor, tensor: tf.Tensor, name: str, rule: str
) -> tf.Tensor:
    """Returns `tensor`, which must have the shape of `like`.

    Broadcasting would repeat a bounded record, and multiply its norm.
    """
    message = f"`{name}` must have {rule}"
    if not like.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"{message}, which is {like.shape}. Received: {tensor.shape}."
        )
    if like.shape.is_fully_defined() and tensor.shape.is_fully_defined():
        return tensor
    shapes = tf.shape(like), tf.shape(tensor)
    with tf.control_dependencies(
        [tf.debugging.assert_equal(*shapes, message=f"{message}.")]
    ):
        # XLA leaves assertions out, but reshapes nothing to another size.
        return tf.reshape(tensor, tf.shape(like))


def in_float(tensor: Any) -> tf.Tensor:
    """Returns half precision as float32: norms and sums need its range."""
    tensor = tf.convert_to_tensor(tensor)
    if not tensor.dtype.is_floating:
        raise TypeError(
            "`records` must be floating-point tensors to be clipped. Received: "
            f"a tensor of dtype {tensor.dtype.name}."
        )
    wide = tensor.dtype in {tf.float32, tf.float64}
    return tensor if wide else tf.cast(tensor, tf.float32)


def _leaf_norms(leaf: Leaf) -> tf.Tensor:
    if isinstance(leaf, LazyRecords):
        return tf.sqrt(leaf.squared_norms())
    leaf = in_float(leaf)
    return _norms_of_rows(tf.reshape(leaf, [tf.shape(leaf)[0], _size(leaf)]))


def _size(leaf: tf.Tensor) -> Any:
    static = leaf.shape[1:].num_elements()
    return tf.reduce_prod(tf.shape(leaf)[1:]) if static is None else static


def _norms_of_rows(rows: tf.Tensor) -> tf.Tensor:
    # In float64 no square of float32 is lost, nor does a sum overflow. XLA adds
    # up in order: in float32 a million small squares are lost.
    if rows.dtype == tf.float32:
        squares = tf.square(tf.cast(rows, tf.float64))
        return tf.cast(tf.sqrt(tf.reduce_sum(squares, axis=1)), rows.dtype)
    largest = tf.reduce_max(tf.abs(rows), axis=1, keepdims=True)
    usable = tf.math.is_finite(largest) & (largest > 0)
    scale = tf.where(usable, largest, tf.ones_like(largest))
    scaled = tf.sqrt(tf.reduce_sum(tf.square(rows / scale), axis=1))
    return scaled * tf.squeeze(scale, axis=1)
