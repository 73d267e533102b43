"""Estimates of a quantile without privacy, recorded as such."""

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
    """A `QuantileEstimatorQuery` without noise, by the realized count.

    Guarantee: none. Each release is recorded as non-private. A record that is
    not finite counts as half a record below the estimate, and an empty sample
    as one that is halved by it.

    Attributes:
        initial_estimate: First guess; > 0 if updates are geometric.
        target_quantile: In [0, 1].
        learning_rate: As in `QuantileEstimatorQuery`.
        geometric_update: Whether steps are factors.

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
