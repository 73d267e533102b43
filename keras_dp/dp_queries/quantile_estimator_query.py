"""Estimates of a quantile of scalar records, over many rounds."""

import dataclasses

from typing_extensions import override

from keras_dp import _check
from keras_dp.dp_queries.gaussian_average_query import GaussianAverageQuery
from keras_dp.dp_queries.quantile_estimator import (
    QuantileEstimator,
    check_estimator,
)
from keras_dp.dp_queries.saving import register


@register
@dataclasses.dataclass(frozen=True, slots=True)
class QuantileEstimatorQuery(QuantileEstimator):
    """Estimates a quantile of scalar records, a step each round.

    A round sums a bit per record, `1[record <= estimate] - 1/2`, adds noise,
    and divides by the public `expected_num_records`; with one half added and
    held in [0, 1], that is the share of records below. The estimate then moves
    by `learning_rate` times the excess of this share over the target: down, or
    geometrically by a factor of `exp` of it.

    Guarantee: adding or removing one record (zero-out alike, where a record
    that is zeroed out has no bit) moves the sum of bits by at most 1/2, and
    replacing one by at most 1, exactly: bits are summed in float64. A record
    that is not finite has no bit. The estimate is made of released numbers.

    Attributes:
        initial_estimate: Public guess; > 0 if updates are geometric.
        target_quantile: In [0, 1].
        learning_rate: Largest step in the unit of records, or, if updates are
            geometric, the largest change of the logarithm; >= 0.
        below_estimate_stddev: Standard deviation of the noise on the sum of
            bits, >= 0.
        expected_num_records: Public constant, > 0.
        geometric_update: Whether steps are factors, as fits norms. Estimates
            then stay between 1e-30 and 1e30, and otherwise within 1e30 of 0.

    Source: Andrew et al. (2021), arXiv:1905.03871v5, sections 2.1 to 2.3,
    which divides by the number of users in the round, of fixed size there.

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

    def __post_init__(self) -> None:
        check_estimator(self)
        query = self.below_estimate_query
        object.__setattr__(self, "below_estimate_stddev", query.sum_stddev)
        object.__setattr__(self, "expected_num_records", query.denominator)

    @property
    @override
    def below_estimate_query(self) -> GaussianAverageQuery:
        _check.finite_non_negative(
            below_estimate_stddev=self.below_estimate_stddev
        )
        _check.finite_positive(expected_num_records=self.expected_num_records)
        return GaussianAverageQuery(
            l2_norm_clip=0.5,
            sum_stddev=self.below_estimate_stddev,
            denominator=self.expected_num_records,
        )
