"""Estimates of a quantile without privacy, which the ledger marks as such."""

import dataclasses

from typing_extensions import override

from keras_dp.dp_queries.no_privacy_average_query import NoPrivacyAverageQuery
from keras_dp.dp_queries.quantile_estimator import (
    QuantileEstimator,
    check_estimator,
)
from keras_dp.dp_queries.saving import register


@register
@dataclasses.dataclass(frozen=True, slots=True)
class NoPrivacyQuantileEstimatorQuery(QuantileEstimator):
    """A `QuantileEstimatorQuery` without noise, for comparison.

    It divides by the number of records that were drawn. Guarantee: none. Each
    release is recorded as non-private. A record that is not finite counts as
    half a record below the estimate. For an empty sample, the share below the
    estimate is 1/2.

    Attributes:
        initial_estimate: The first guess; > 0 if `geometric_update` is true.
        target_quantile: The share of records that shall be below the estimate,
            in [0, 1].
        learning_rate: See `QuantileEstimatorQuery`.
        geometric_update: See `QuantileEstimatorQuery`.

    >>> query = NoPrivacyQuantileEstimatorQuery(10.0, 0.5, 1.0)
    >>> query.ledger_events(
    ...     query.planned_event(query.initial_global_state()), "bits")
    (NonPrivateSum(name='bits'),)
    """

    initial_estimate: float
    target_quantile: float
    learning_rate: float
    geometric_update: bool = False

    def __post_init__(self) -> None:
        check_estimator(self)

    @property
    @override
    def below_estimate_query(self) -> NoPrivacyAverageQuery:
        return NoPrivacyAverageQuery()
