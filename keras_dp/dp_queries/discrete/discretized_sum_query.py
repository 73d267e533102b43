"""Gaussian sums of records whose coordinates are rounded to -1, 0 and 1."""

import dataclasses

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.discrete import chunked_sums
from keras_dp.dp_queries.dp_query import Nest
from keras_dp.dp_queries.gaussian.gaussian_query import (
    GaussianQuery,
    checked_numbers,
)
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.summing_query import SumParams, on_grid

# Float64 adds up 65,536 such contributions without rounding.
_MOST_STEPS = 2.0**36


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False)
class DiscretizedSumQuery(GaussianQuery):
    """Sums records rounded to -1, 0 and 1 and clipped, with Gaussian noise.

    A coordinate of a record becomes 1 if it is above `threshold`, -1 if it is
    below `-threshold`, and 0 otherwise. The norm of the rounded record is the
    square root of the number of its coordinates that are not 0. With C the
    `l2_norm_clip`, the rounded record is then multiplied by `C / max(C, norm)`.

    Guarantee: adding, removing or zeroing out one record moves the sum before
    noise by at most `l2_norm_clip` in joint L2 norm, and replacing one by at
    most twice that, for every record. With noise and a template in float32 this
    holds exactly: a coordinate of a contribution is a whole number of steps of
    the grid, or minus that, so that sums are integers. With
    `precision="proven"` the event says so. Otherwise it holds up to float
    rounding: a clipped record exceeds the clip by at most a relative 2^-23 in
    float32, and sums round. A record that is not finite counts as zero. A
    record is cast to the template's dtype before it is compared with
    `threshold`. The noise is that of a `GaussianSumQuery`.

    Attributes:
        threshold: The size above which a coordinate counts, in the record's
            unit, >= 0.
        l2_norm_clip: Bound on the norm of a rounded record, >= 0.
        stddev: Standard deviation of the noise on the sum, in the unit of
            `l2_norm_clip`; 0, or in [1e-30, 1e37]. At 0 the sum is released
            without noise.
        noise_multiplier: The ratio `stddev / l2_norm_clip`. Give either this
            or `stddev`.
        chunk_bytes: How many bytes of records to build at a time, at least one
            record. The memory in use is about 5 times as much
            (`benchmarks/chunked_queries.py`).
        precision: "assumed" or "proven"; see `GaussianSumQuery`.

    Source: Nasr, Shokri, Generalizable Deep Learning with Differential
    Privacy, Algorithms 1 and 2. The text of the paper scales every record to
    the norm C; its Algorithm 1 leaves short records as they are. We follow the
    algorithm.

    >>> query = DiscretizedSumQuery(0.5, l2_norm_clip=1.0, stddev=0.0)
    >>> state = query.initial_global_state()
    >>> params = query.derive_sample_params(state)
    >>> sample = query.initial_sample_state(tf.zeros([5]))
    >>> record = tf.constant([9.0, -0.6, 0.5, 0.7, -3.0])
    >>> sample = query.accumulate_record(params, sample, record)
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [0.5, -0.5, 0.0, 0.5, -0.5]
    """

    threshold: float
    l2_norm_clip: float
    stddev: float
    chunk_bytes: int = 2**26
    precision: str = "assumed"

    def __init__(
        self,
        threshold: float,
        l2_norm_clip: float,
        stddev: float | None = None,
        chunk_bytes: int = 2**26,
        *,
        noise_multiplier: float | None = None,
        precision: str = "assumed",
    ) -> None:
        _check.finite_non_negative(threshold=threshold)
        _check.integer_at_least(1, chunk_bytes=chunk_bytes)
        numbers = checked_numbers(
            l2_norm_clip, noise_multiplier, stddev=stddev, precision=precision
        )
        set_fields(
            self,
            threshold=float(threshold),
            chunk_bytes=int(chunk_bytes),
            **numbers,
        )

    @property
    @override
    def noise_stddev(self) -> float:
        return self.stddev

    @override
    def bounded_sum(
        self,
        params: SumParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:

        in_steps = all(
            leaf.dtype == tf.int64 for leaf in keras.tree.flatten(like)
        )

        def contribution(rows: tf.Tensor) -> tf.Tensor:
            kind = tf.float32 if in_steps else rows.dtype
            moves = tf.abs(rows) > tf.cast(
                tf.constant(self.threshold, kind), rows.dtype
            )
            norms = tf.sqrt(
                tf.cast(
                    tf.math.count_nonzero(moves, axis=1, dtype=tf.int64),
                    tf.float64,
                )
            )
            factors = records_lib.clip_factors(norms, params.l2_norm_clip)
            if in_steps:
                # Rounded down, so that the norm is at most the clip.
                factors = tf.floor(factors * (1 - 2.0**-40) / params.spacing)
                factors = tf.minimum(factors, _MOST_STEPS)
            factors = tf.cast(factors, rows.dtype)[:, tf.newaxis]
            return tf.where(moves, tf.sign(rows) * factors, 0.0)

        sums = chunked_sums.chunked_sum(
            keras.tree.map_structure(_floats, like),
            records,
            mask,
            self.chunk_bytes,
            contribution,
        )
        spacing = tf.ones_like(params.spacing) if in_steps else params.spacing
        return on_grid(like, sums, spacing)


def _floats(total: tf.Tensor) -> tf.Tensor:
    return tf.cast(total, tf.float64) if total.dtype == tf.int64 else total
