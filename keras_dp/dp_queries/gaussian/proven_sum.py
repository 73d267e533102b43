"""Sums of clipped records whose bound holds in floating point.

Whatever is rounded how, and in whatever order is added, one record moves the
sum by at most the clip. The lemmas are those of `docs/finite_precision.md`.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp._rounding import UNIT_64, Proven, gamma, joint, over
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import check_structure
from keras_dp.dp_queries.summing_query import SumParams
from keras_dp.noise import grid

PRECISIONS = ("assumed", "proven")
# Smaller weights lose bits in float32, and count as 0.
_LEAST_WEIGHT = 2.0**-100
# Longer parts of a weighted record could overflow in float32, and count as 0.
_LARGEST_PART = 2.0**80


def checked_precision(precision: str, stddev: float) -> str:
    """Returns the precision of a query; a proven one needs noise."""
    _check.one_of(PRECISIONS, precision=precision)
    if precision == "proven" and not stddev:
        raise ValueError(
            "The standard deviation of the noise must be positive with "
            "precision='proven', whose grid follows from it. "
            f"Received: stddev={stddev!r}. Use precision='assumed' for sums "
            "without noise."
        )
    return precision


def check_provable(like: Any) -> None:
    """Raises unless a sample state is that of records in float32."""
    if any(leaf.dtype == tf.float64 for leaf in keras.tree.flatten(like)):
        raise TypeError(
            "Records must be float32, or in half precision, for "
            "precision='proven'. Received: a record of float64. Take "
            "precision='assumed', or noise=\"independent\" of make_private."
        )


def proven_sum(
    like: Any,
    records: Any,
    params: SumParams,
    mask: Any,
    gamma: float | None,
    scales: Sequence[float],
) -> Any:
    """Returns the sum of clipped records, in steps of the grid.

    Adding, removing or zeroing out one record moves it by at most the clip in
    L2 norm (theorem 1). Each leaf is divided by its scale first. `like` has the
    shapes of one record; `gamma` is that of `GaussianSumQuery`.
    """
    check_structure(like, records)
    leaves = keras.tree.flatten(records)
    parts = [_proven(leaf) for leaf in leaves]
    longest = tf.sqrt(tf.reduce_max([part.squares for part in parts], axis=0))
    parts = [
        over(part, scale, lambda sums: tf.cast(sums, tf.float64))
        for part, scale in zip(parts, scales, strict=True)
    ]
    whole = joint(parts)
    clip, spacing = params
    lengths = tf.sqrt(whole.squares) * (1 + 4 * UNIT_64)
    size = sum(each.shape.num_elements() for each in keras.tree.flatten(like))
    largest = 1.0 if gamma is None else tf.maximum(clip / gamma, 1)
    # Rounding gets its part of the clip first, that of these lines as well.
    rest = clip * (1 - 2.0**-40) - spacing * math.sqrt(size)
    rest = tf.maximum(rest - 2 * whole.absolute * largest, 0)
    rest /= 1 + 2 * whole.error
    if gamma is None:
        weights = tf.minimum(tf.math.divide_no_nan(rest, lengths), 1)
    else:
        weights = rest / (lengths + gamma)
    # A cast may round up by half a unit of float32.
    weights = tf.cast(weights * (1 - 2.0**-23), tf.float32)
    usable = tf.math.is_finite(whole.squares) & (weights >= _LEAST_WEIGHT)
    usable &= tf.cast(weights, tf.float64) * longest <= _LARGEST_PART
    weights = tf.where(usable, weights, tf.zeros_like(weights))
    weights = records_lib.masked(weights, mask)
    each = [part.sums for part in parts]
    sums = records_lib.sums_of(leaves, each, weights)
    return keras.tree.pack_sequence_as(
        like, [grid.steps(blocks, spacing) for blocks in sums]
    )


def _proven(leaf: records_lib.Leaf) -> Proven:
    if isinstance(leaf, records_lib.LazyRecords):
        return leaf.proven()
    return _of_tensor(leaf)


def _of_tensor(records: tf.Tensor) -> Proven:
    """Returns what is proven of records that are added in float64."""
    records = records_lib.in_float(records)
    batch = records.shape[0]
    if batch is None or not records.shape.is_fully_defined():
        raise ValueError(
            "The shapes of records must be known with precision='proven', "
            "because rounding grows with the size of a batch. Received: "
            f"{records.shape}. Give the tf.function an input signature with "
            "sizes, or use tensors outside it."
        )
    rows = tf.cast(records, tf.float64)
    flat = tf.reshape(rows, [batch, records.shape[1:].num_elements()])
    up = 1 + 2 * gamma(flat.shape[1] + 4, UNIT_64)

    def sums(weights: tf.Tensor) -> tf.Tensor:
        weights = tf.cast(weights, tf.float64)[:, tf.newaxis]
        sums = tf.reduce_sum(tf.math.multiply_no_nan(flat, weights), axis=0)
        return tf.reshape(sums, [1, *records.shape[1:]])

    return Proven(
        tf.reduce_sum(tf.square(flat), axis=1) * up,
        blocks=1,
        error=gamma(batch + 4, UNIT_64) * batch,
        absolute=0.0,
        sums=sums,
    )
