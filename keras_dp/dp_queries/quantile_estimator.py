"""Base of the queries that estimate a quantile, with and without privacy."""

import abc
import math
import numbers
from typing import Any, NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp import _check
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import DPQuery, Nest, QueryResult
from keras_dp.dp_queries.saving import as_floats
from keras_dp.dp_queries.wrapping_query import WrappingQuery

# Estimates, and the reciprocals of geometric ones, stay far inside float32.
LARGEST_ESTIMATE = 1e30
# A step that leads from one end of that range to the other.
_LARGEST_LOG_STEP = 2 * math.log(LARGEST_ESTIMATE)


class QuantileEstimatorState(NamedTuple):
    """The state of a quantile estimator.

    Attributes:
        current_estimate: Scalar float64.
        target_quantile: Scalar float64.
        learning_rate: Scalar float64, which may decay from round to round.
        below_estimate_state: State of the query for the share of records that
            are not above the estimate.
    """

    current_estimate: tf.Tensor
    target_quantile: tf.Tensor
    learning_rate: tf.Tensor
    below_estimate_state: Nest


class QuantileEstimatorParams(NamedTuple):
    """The public numbers that turn records into bits.

    Attributes:
        current_estimate: Scalar float64.
        below_estimate_params: For the query for the share of records.
    """

    current_estimate: tf.Tensor
    below_estimate_params: Nest


class QuantileEstimator(WrappingQuery):
    """Sums a bit for each record, and moves an estimate by the noised sum."""

    __slots__ = ()

    initial_estimate: float
    target_quantile: float
    learning_rate: float
    geometric_update: bool

    @property
    @abc.abstractmethod
    def below_estimate_query(self) -> DPQuery:
        """The query that averages bits of plus or minus one half."""

    @property
    @override
    def inner(self) -> DPQuery:
        return self.below_estimate_query

    @override
    def inner_state(self, global_state: QuantileEstimatorState) -> Nest:
        return global_state.below_estimate_state

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> QuantileEstimatorState:
        query = self.below_estimate_query
        return QuantileEstimatorState(
            current_estimate=tf.constant(self.initial_estimate, tf.float64),
            target_quantile=tf.constant(self.target_quantile, tf.float64),
            learning_rate=tf.constant(self.learning_rate, tf.float64),
            below_estimate_state=query.initial_global_state(seed),
        )

    @override
    def derive_sample_params(
        self, global_state: QuantileEstimatorState
    ) -> QuantileEstimatorParams:
        return QuantileEstimatorParams(
            global_state.current_estimate,
            self.below_estimate_query.derive_sample_params(
                global_state.below_estimate_state
            ),
        )

    @override
    def initial_sample_state(self, template: Nest = 0.0) -> Nest:
        _check_rank(template, 0)
        return self.below_estimate_query.initial_sample_state(
            tf.constant(0.0, tf.float64)
        )

    @override
    def preprocess_record(
        self, params: QuantileEstimatorParams, record: Any
    ) -> Nest:
        _check_rank(record, 0)
        return self.below_estimate_query.preprocess_record(
            params.below_estimate_params,
            _bits(record, params.current_estimate),
        )

    @override
    def accumulate_records(
        self,
        params: QuantileEstimatorParams,
        sample_state: Nest,
        records: Any,
        mask: tf.Tensor | None = None,
    ) -> Nest:
        if isinstance(records, records_lib.LazyRecords):
            records = records.materialize()
        _check_rank(records, 1)
        return self.below_estimate_query.accumulate_records(
            params.below_estimate_params,
            sample_state,
            _bits(records, params.current_estimate),
            mask,
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: QuantileEstimatorState
    ) -> QueryResult:
        result = self.below_estimate_query.get_noised_result(
            sample_state, global_state.below_estimate_state
        )
        below = tf.clip_by_value(result.value + 0.5, 0.0, 1.0)
        step = global_state.learning_rate * (
            below - global_state.target_quantile
        )
        estimate, smallest = global_state.current_estimate, -LARGEST_ESTIMATE
        if self.geometric_update:
            step = tf.clip_by_value(step, -_LARGEST_LOG_STEP, _LARGEST_LOG_STEP)
            estimate, smallest = estimate * tf.exp(-step), 1 / LARGEST_ESTIMATE
        else:
            estimate -= step
        estimate = tf.clip_by_value(estimate, smallest, LARGEST_ESTIMATE)
        return QueryResult(
            value=estimate,
            global_state=global_state._replace(
                current_estimate=estimate,
                below_estimate_state=result.global_state,
            ),
            event=result.event,
        )

    @override
    def derive_metrics(
        self, global_state: QuantileEstimatorState
    ) -> dict[str, tf.Tensor]:
        return {"estimate": global_state.current_estimate}


def check_estimator(query: Any) -> None:
    """Checks the fields that both estimators have, and makes them floats."""
    _check.boolean(geometric_update=query.geometric_update)
    _check.finite_non_negative(
        target_quantile=query.target_quantile, learning_rate=query.learning_rate
    )
    if query.target_quantile > 1:
        raise ValueError(
            "`target_quantile` must be in [0, 1]. Received: "
            f"target_quantile={query.target_quantile!r}."
        )
    initial = query.initial_estimate
    if query.geometric_update:
        _check.finite_positive(initial_estimate=initial)
    elif isinstance(initial, bool) or not isinstance(initial, numbers.Real):
        raise TypeError(
            "`initial_estimate` must be a number. Received: "
            f"initial_estimate={initial!r}."
        )
    elif not math.isfinite(initial):
        raise ValueError(
            "`initial_estimate` must be finite. Received: "
            f"initial_estimate={initial!r}."
        )
    as_floats(query, "initial_estimate", "target_quantile", "learning_rate")


def _check_rank(tensor: Any, rank: int) -> None:
    """Raises unless `tensor` is one tensor of scalar records."""
    shape = getattr(tensor, "shape", None)
    if shape is None:
        parts = tf.nest.flatten(tensor)
        shape = () if len(parts) == 1 and parts[0] is tensor else None
    if shape is None or tf.TensorShape(shape).rank not in {rank, None}:
        raise ValueError(
            "`records` must be scalars, in one tensor. Received: "
            + ("a nest." if shape is None else f"the shape {tuple(shape)}.")
        )


def _bits(records: Any, estimate: tf.Tensor) -> tf.Tensor:
    """Returns one half if not above the estimate, minus one half if above."""
    records = tf.cast(tf.convert_to_tensor(records), tf.float64)
    bits = tf.where(
        records <= estimate,
        tf.constant(0.5, tf.float64),
        tf.constant(-0.5, tf.float64),
    )
    return tf.where(tf.math.is_finite(records), bits, tf.zeros_like(bits))
