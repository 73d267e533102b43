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
        initial_estimate: A public first guess; > 0 if `geometric_update` is
            true.
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
