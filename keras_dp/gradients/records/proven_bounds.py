"""Norms and sums of gradients with proven errors, whatever is rounded how.

The lemmas are those of `docs/finite_precision.md`.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from keras_dp._rounding import (
    LARGEST_ENTRY,
    UNDERFLOW,
    UNDERFLOW_OF_TERM,
    UNIT_64,
    UP,
    Proven,
    block_size,
    float32_error,
    gamma,
)
from keras_dp.gradients.records.reductions import (
    SUMMED_IN_FLOAT32,
    block_sums_under,
    finite_or,
    kept,
    norms_along,
    scaled,
    unit_of,
    weighted,
)

# A root, a square and casts add this to the roundings of a sum of squares. The
# root may be off by two units in the last place.
_ROOT = 16
# A ghost norm is at least this part of `(sum |a| |b|)^2`.
_LEAST_MARGIN = 2.0**-20
# Terms in unrelated directions have a norm of about `sum |a| |b| / sqrt(n)`. A
# norm is taken for at least a quarter of that.
_LEAST_OF_UNRELATED = 1 / 4


def of_built(gradients: tf.Tensor) -> Proven:
    """Returns what is proven of gradients that were built, `[batch, ...]`.

    Norms are taken of the vectors that are summed. So nothing is assumed of how
    these were built (lemma 5).
    """
    batch, *shape = gradients.shape
    width = math.prod(shape)
    last = width if width <= SUMMED_IN_FLOAT32 else shape[-1]
    rows = tf.reshape(gradients, [batch, width // max(last, 1), last])
    wide, blocks = _way_of_sums(gradients.dtype, batch)
    return _of_sums(
        lambda weights: block_sums_under(
            weights, tf.cast(gradients, wide), blocks
        ),
        _added(upper_squares(rows)),
        wide,
        blocks,
        width,
    )


def of_outer_products(
    left: tf.Tensor,
    right: tf.Tensor,
    contract: Callable[[tf.Tensor, tf.Tensor, int], tf.Tensor],
) -> Proven:
    """Returns what is proven of `sum_t left[b, r, t, :] right[b, r, t, :]^T`.

    One outer product has the product of two norms (lemma 6). The norm of
    several is that of their Gram matrices, with a margin for all roundings
    (lemma 7).

    `contract` returns the sums over the batch and `t` of two factors, for each
    of a number of blocks, `[blocks, ...]`.
    """
    batch, rows, shared, lefts = left.shape
    if shared > 1:
        squares, ratio = _ghost_squares(left, right)
    else:
        each = upper_squares(left) * upper_squares(right)
        squares, ratio = _added(tf.reshape(each, [batch, rows])), 1.0
    wide, blocks = _way_of_sums(left.dtype, batch, shared, ratio)

    def sums(weights: tf.Tensor) -> tf.Tensor:
        one, other = tf.cast(left, wide), tf.cast(right, wide)

        def careful() -> tf.Tensor:
            return contract(
                kept(one, weights), weighted(other, weights), blocks
            )

        if blocks > 1:
            # A second way for all blocks, chosen by one, could change their
            # last bits.
            return careful()
        return finite_or(contract(one, scaled(other, weights), 1), careful)

    size = rows * lefts * right.shape[-1]
    return _of_sums(sums, squares, wide, blocks, size, shared, ratio)


def of_table_rows(
    updates: tf.Tensor,
    added: Callable[[tf.Tensor], tf.Tensor],
    size: int,
) -> Proven:
    """Returns what is proven of updates to rows, `[batch, n, width]`.

    No record updates a row twice. `added` adds weighted updates to tables of
    `size` coordinates.
    """
    batch, count, width = updates.shape
    rows = tf.reshape(updates, [batch, 1, count * width])
    return _of_sums(
        lambda weights: added(weighted(tf.cast(updates, tf.float64), weights))[
            tf.newaxis
        ],
        _added(upper_squares(rows)),
        tf.float64,
        1,
        size,
    )


def _way_of_sums(
    dtype: tf.DType, batch: int, terms: int = 1, ratio: float = 1.0
) -> tuple[tf.DType, int]:
    """Returns the dtype of sums over a batch, and the number of blocks."""
    size = block_size(batch, terms, ratio)
    return (tf.float64, 1) if size is None else (dtype, batch // size)


def _of_sums(
    sums: Callable[[tf.Tensor], tf.Tensor],
    squares: tf.Tensor,
    dtype: tf.DType,
    blocks: int,
    size: int,
    terms: int = 1,
    ratio: float = 1.0,
) -> Proven:
    """Returns what is proven of sums, by lemma 3.

    A record has `size` coordinates, and `terms` terms in one coordinate. The
    sum of the norms of these terms may exceed the root of `squares` by the
    factor `ratio`. The other arguments are those of `Proven`, and `dtype` is
    the one in which is added.
    """
    records = squares.shape[0] // blocks
    if dtype == tf.float64:
        error = gamma(records * terms + 2, UNIT_64) * records * ratio
    else:
        error = float32_error(records, terms, ratio)
    absolute = (records * terms + 2) * UNDERFLOW_OF_TERM * math.sqrt(size)
    return Proven(squares, blocks, error, absolute, sums)


def upper_squares(tensor: tf.Tensor) -> tf.Tensor:
    """Returns upper bounds on squared norms along the last axis, in float64.

    They are infinite where an entry may exceed `LARGEST_ENTRY` in size, or is
    not finite (lemma 5).
    """
    width = tensor.shape[-1]
    if width > SUMMED_IN_FLOAT32:
        tensor = tf.cast(tensor, tf.float64)
    norms = tf.cast(norms_along(tensor, axis=-1), tf.float64)
    least = 1 - gamma(width + _ROOT, unit_of(tensor.dtype))
    bounds = (tf.square(norms) + 3 * width * UNDERFLOW) * (UP / least)
    return _or_infinite(bounds, bounds <= LARGEST_ENTRY**2)


def _ghost_squares(
    left: tf.Tensor, right: tf.Tensor
) -> tuple[tf.Tensor, float]:
    """Returns upper bounds on squared norms, by lemma 7.

    Also returns by how much the sum of the norms of the terms may exceed their
    roots.
    """
    shared, lefts = left.shape[2:]
    widths = lefts + right.shape[3]
    grams_left = tf.matmul(left, left, transpose_b=True)
    grams_right = tf.matmul(right, right, transpose_b=True)
    sums = tf.reduce_sum(grams_left * grams_right, axis=3)
    grams = tf.reduce_sum(tf.cast(sums, tf.float64), axis=2)
    of_left, of_right = upper_squares(left), upper_squares(right)
    terms = tf.reduce_sum(tf.sqrt(of_left * of_right), axis=2)
    margin = max(gamma(widths + shared, unit_of(left.dtype)), _LEAST_MARGIN)
    least = _LEAST_OF_UNRELATED**2 / shared
    # Underflow changes one Gram matrix, which is multiplied by the other.
    one = 1 + tf.reduce_max(of_left, axis=2)
    two = 1 + tf.reduce_max(of_right, axis=2)
    lost = 2.0**-122 * shared**2 * (widths + 1) * one * two
    squares = tf.maximum(
        tf.maximum(grams, 0) + margin * UP * tf.square(terms) + lost,
        least * tf.square(terms),
    )
    # NaN is not finite either. A maximum could hide it.
    squares = _or_infinite(squares, tf.math.is_finite(grams + squares))
    return _added(squares), UP / math.sqrt(max(margin, least))


def _or_infinite(bounds: tf.Tensor, holds: tf.Tensor) -> tf.Tensor:
    infinite = tf.constant(math.inf, tf.float64)
    return tf.where(holds, bounds, infinite)


def _added(bounds: tf.Tensor) -> tf.Tensor:
    """Returns sums over the last axis of upper bounds, rounded up."""
    up = UP + 2 * bounds.shape[-1] * UNIT_64
    return tf.reduce_sum(bounds, axis=-1) * up
