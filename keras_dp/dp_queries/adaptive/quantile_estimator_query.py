"""Estimates of a quantile of scalar records, over many rounds."""

import dataclasses
import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import Nest, QueryResult
from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianAverageQuery
from keras_dp.dp_queries.gaussian.proven_sum import checked_precision
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.dp_queries.wrapping_query import WrappingQuery

# Estimates, and the reciprocals of geometric ones, stay far inside float32.
_LARGEST_ESTIMATE = 1e30
# A step that leads from one end of that range to the other.
_LARGEST_LOG_STEP = 2 * math.log(_LARGEST_ESTIMATE)


class EstimateAndShare(NamedTuple):
    """The state of a `QuantileEstimatorQuery`, or its params of one round.

    Attributes:
        current_estimate: Scalar float64.
        below_estimate: The state or the params of the query that estimates the
            share of records below the estimate.
    """

    current_estimate: tf.Tensor
    below_estimate: Nest


@register
@dataclasses.dataclass(frozen=True, slots=True)
class QuantileEstimatorQuery(WrappingQuery):
    """Estimates a quantile of scalar records, by one small step in each round.

    Each record has a *bit*: 1/2 if the record is at most the estimate, and -1/2
    if it is larger. A round sums the bits, adds noise, and divides by the
    public `expected_num_records`. The result plus 1/2, held in [0, 1], is the
    noised share of records below the estimate. With `step = learning_rate *
    (share - target_quantile)`, the next estimate is `estimate - step`, or
    `estimate * exp(-step)` if `geometric_update` is true.

    Guarantee: adding, removing or zeroing out one record moves the sum of bits
    by at most 1/2, and replacing one by at most 1, exactly: bits are summed in
    float64. (A record that is zeroed out has no bit, nor has one that is not
    finite.) The estimate depends on released numbers only.

    Attributes:
        initial_estimate: A public first guess, in [-1e30, 1e30]; or > 0 if
            `geometric_update` is true.
        target_quantile: The share of records that shall be below the estimate,
            in [0, 1].
        learning_rate: The largest step, in the unit of the records, or the
            largest change of the estimate's logarithm if `geometric_update` is
            true; >= 0.
        below_estimate_stddev: Standard deviation of the noise on the sum of
            bits, >= 0.
        expected_num_records: The public divisor, > 0: the expected size of a
            sample.
        geometric_update: Whether the estimate is multiplied by a factor, which
            suits norms. It then stays between 1e-30 and 1e30, and otherwise
            between -1e30 and 1e30.
        precision: "assumed" or "proven"; see `GaussianSumQuery`.

    Source: Andrew et al. (2021), arXiv:1905.03871v5, sections 2.1 to 2.3. We
    differ in the divisor: the paper divides by the number of users in the
    round, which is fixed there.

    >>> import tensorflow as tf
    >>> query = QuantileEstimatorQuery(10.0, 0.5, 1.0, 0.0, 2)
    >>> state = query.initial_global_state()
    >>> sample = query.accumulate_records(
    ...     query.derive_sample_params(state),
    ...     query.initial_sample_state(tf.constant(0.0)),
    ...     tf.constant([3.0, 4.0]))
    >>> print(query.get_noised_result(sample, state).value.numpy())
    9.5
    >>> query.ledger_events(query.planned_event(state), "bits")
    (GaussianSum(name='bits', l2_norm_bound=0.5, noise_stddev=0.0),)
    """

    initial_estimate: float
    target_quantile: float
    learning_rate: float
    below_estimate_stddev: float
    expected_num_records: float
    geometric_update: bool = False
    precision: str = "assumed"

    def __post_init__(self) -> None:
        _check.boolean(geometric_update=self.geometric_update)
        _check.share("[0, 1]", target_quantile=self.target_quantile)
        _check.finite_non_negative(learning_rate=self.learning_rate)
        initial = self.initial_estimate
        if self.geometric_update:
            _check.finite_positive(initial_estimate=initial)
        else:
            limit = _LARGEST_ESTIMATE
            _check.within(-limit, limit, initial_estimate=initial)
        _check.finite_non_negative(
            below_estimate_stddev=self.below_estimate_stddev
        )
        _check.finite_positive(expected_num_records=self.expected_num_records)
        checked_precision(self.precision, self.below_estimate_stddev)
        numbers = dataclasses.fields(self)[:-2]
        as_floats(self, *(field.name for field in numbers))

    @property
    @override
    def inner(self) -> GaussianAverageQuery:
        """The query that averages bits of plus or minus one half."""
        return GaussianAverageQuery(
            l2_norm_clip=0.5,
            sum_stddev=self.below_estimate_stddev,
            denominator=self.expected_num_records,
            precision=self.precision,
        )

    @override
    def inner_state(self, global_state: EstimateAndShare) -> Nest:
        return global_state.below_estimate

    @override
    def initial_global_state(self, seed: int | None = None) -> EstimateAndShare:
        return EstimateAndShare(
            tf.constant(self.initial_estimate, tf.float64),
            self.inner.initial_global_state(seed),
        )

    @override
    def derive_sample_params(
        self, global_state: EstimateAndShare
    ) -> EstimateAndShare:
        return EstimateAndShare(
            global_state.current_estimate,
            self.inner.derive_sample_params(global_state.below_estimate),
        )

    @override
    def initial_sample_state(self, template: Nest = 0.0) -> Nest:
        _check_rank(template, 0)
        kind = tf.float32 if self.is_proven else tf.float64
        return self.inner.initial_sample_state(tf.constant(0.0, kind))

    @override
    def accumulate_records(
        self,
        params: EstimateAndShare,
        sample_state: Nest,
        records: Any,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        if isinstance(records, records_lib.LazyRecords):
            records = records.materialize()
        _check_rank(records, 1)
        return self.inner.accumulate_records(
            params.below_estimate,
            sample_state,
            _bits(records, params.current_estimate),
            mask,
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: EstimateAndShare
    ) -> QueryResult:
        result = self.inner.get_noised_result(
            sample_state, global_state.below_estimate
        )
        below = tf.cast(result.value, tf.float64) + 0.5
        below = tf.clip_by_value(below, 0.0, 1.0)
        step = self.learning_rate * (below - self.target_quantile)
        estimate, smallest = global_state.current_estimate, -_LARGEST_ESTIMATE
        if self.geometric_update:
            step = tf.clip_by_value(step, -_LARGEST_LOG_STEP, _LARGEST_LOG_STEP)
            estimate, smallest = estimate * tf.exp(-step), 1 / _LARGEST_ESTIMATE
        else:
            estimate -= step
        estimate = tf.clip_by_value(estimate, smallest, _LARGEST_ESTIMATE)
        return QueryResult(
            value=estimate,
            global_state=EstimateAndShare(estimate, result.global_state),
            event=result.event,
        )

    @override
    def derive_metrics(
        self, global_state: EstimateAndShare
    ) -> dict[str, tf.Tensor]:
        return {"estimate": global_state.current_estimate}


def _check_rank(tensor: Any, rank: int) -> None:
    shape = getattr(tensor, "shape", None)
    if shape is None:
        parts = keras.tree.flatten(tensor)
        shape = () if len(parts) == 1 and parts[0] is tensor else None
    if shape is None or tf.TensorShape(shape).rank not in {rank, None}:
        raise ValueError(
            "`records` must be scalars, in one tensor. Received: "
            + ("a nest." if shape is None else f"the shape {tuple(shape)}.")
        )


def _bits(records: Any, estimate: tf.Tensor) -> tf.Tensor:
    records = tf.cast(tf.convert_to_tensor(records), tf.float64)
    bits = tf.where(
        records <= estimate,
        tf.constant(0.5, tf.float64),
        tf.constant(-0.5, tf.float64),
    )
    return tf.where(tf.math.is_finite(records), bits, tf.zeros_like(bits))
