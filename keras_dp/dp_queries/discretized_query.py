"""Gaussian sums of records that say up, down or stop for each coordinate."""

import dataclasses
from typing import Any

import tensorflow as tf
from typing_extensions import override

from keras_dp import _check, ledger
from keras_dp.dp_queries import chunked_sums
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    GaussianEvent,
    LeafNoise,
    Nest,
    QueryResult,
    add,
    register,
)
from keras_dp.dp_queries.gaussian_query import (
    GaussianGlobalState,
    GaussianSumQuery,
)


@register
@dataclasses.dataclass(frozen=True, slots=True)
class DiscretizedSumQuery(DPQuery):
    """Sums records rounded to -1, 0 and 1 and clipped, with Gaussian noise.

    A coordinate of a record becomes 1 above `threshold`, -1 below
    `-threshold`, and 0 else. The record is then multiplied by
    `C / max(C, norm)`, with C the `l2_norm_clip` and the joint norm over all
    its parts, which is the root of the number of coordinates that are not 0.

    Guarantee: adding or removing one record (zero-out alike) moves the sum
    before noise by at most `l2_norm_clip` in joint L2 norm, and replacing one
    by at most twice that, for every record. Norms are exact and factors good
    to half an ulp, so that a clipped record exceeds its clip by at most a
    relative 2^-23 in float32; then sums round. A record that is not finite
    counts as zero, and what is compared with `threshold` is the record in the
    template's dtype. Noise is that of a `GaussianSumQuery`.

    Attributes:
        threshold: In the record's unit, >= 0.
        l2_norm_clip: Bound on the norm of a record of -1, 0 and 1, >= 0.
        stddev: Standard deviation of the noise on the sum, in the unit of
            `l2_norm_clip`, 0 or >= 1e-30. At 0 the sum is bare.
        chunk_bytes: How many bytes of records to materialize at a time, at
            least one record. About 5 times as much is needed
            (`benchmarks/chunked_queries.py`).

    Source: Nasr, Shokri, Generalizable Deep Learning with Differential
    Privacy, Algorithms 1 and 2. Its text makes norms equal to C where
    Algorithm 1 leaves short records as they are: so do we.

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

    def __post_init__(self) -> None:
        _check.finite_non_negative(threshold=self.threshold)
        _check.integer_at_least(1, chunk_bytes=self.chunk_bytes)
        noise = GaussianSumQuery(self.l2_norm_clip, self.stddev)
        object.__setattr__(self, "threshold", float(self.threshold))
        object.__setattr__(self, "l2_norm_clip", noise.l2_norm_clip)
        object.__setattr__(self, "stddev", noise.stddev)
        object.__setattr__(self, "chunk_bytes", int(self.chunk_bytes))

    @property
    def gaussian(self) -> GaussianSumQuery:
        """The query that adds the noise, with its states and events."""
        return GaussianSumQuery(self.l2_norm_clip, self.stddev)

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> GaussianGlobalState:
        return self.gaussian.initial_global_state(seed)

    @override
    def derive_sample_params(
        self, global_state: GaussianGlobalState
    ) -> tf.Tensor:
        return self.gaussian.derive_sample_params(global_state)

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        return self.gaussian.initial_sample_state(template)

    @override
    def preprocess_record(self, params: tf.Tensor, record: Nest) -> Nest:
        like = self.initial_sample_state(record)
        batch = records_lib.batch_of_one(record)
        return self._bounded_sum(params, like, batch, mask=None)

    @override
    def accumulate_preprocessed_record(
        self, sample_state: Nest, preprocessed_record: Nest
    ) -> Nest:
        return add(sample_state, preprocessed_record)

    @override
    def accumulate_records(
        self,
        params: tf.Tensor,
        sample_state: Nest,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        total = self._bounded_sum(params, sample_state, records, mask)
        return add(sample_state, total)

    @override
    def merge_sample_states(self, state_1: Nest, state_2: Nest) -> Nest:
        return add(state_1, state_2)

    @override
    def planned_event(self, global_state: GaussianGlobalState) -> GaussianEvent:
        return self.gaussian.planned_event(global_state)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: GaussianGlobalState
    ) -> QueryResult:
        return self.gaussian.get_noised_result(sample_state, global_state)

    @override
    def ledger_events(
        self, event: GaussianEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        return self.gaussian.ledger_events(event, name)

    @override
    def result_noise(
        self, global_state: GaussianGlobalState, value: Nest
    ) -> list[LeafNoise]:
        return self.gaussian.result_noise(global_state, value)

    def _bounded_sum(
        self, clip: tf.Tensor, like: Nest, records: Nest, mask: Any
    ) -> Nest:
        """The one place where records are bounded."""

        def contribution(rows: tf.Tensor) -> tf.Tensor:
            threshold = tf.constant(self.threshold, rows.dtype)
            moves = tf.abs(rows) > threshold
            norms = tf.sqrt(
                tf.cast(
                    tf.math.count_nonzero(moves, axis=1, dtype=tf.int64),
                    tf.float64,
                )
            )
            factors = records_lib.clip_factors(norms, clip)
            factors = tf.cast(factors, rows.dtype)[:, tf.newaxis]
            return tf.where(moves, tf.sign(rows) * factors, 0.0)

        return chunked_sums.chunked_sum(
            like, records, mask, self.chunk_bytes, contribution
        )
