"""A Gaussian sum whose clip follows a quantile of the norms."""

import dataclasses
from typing import ClassVar, NamedTuple

import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.adaptive_sum_query import (
    LARGEST_CLIP,
    SMALLEST_CLIP,
    AdaptiveParams,
    AdaptiveSample,
    AdaptiveSumQuery,
    check_clip,
    check_multiplier,
)
from keras_dp.dp_queries.dp_query import Nest, QueryResult
from keras_dp.dp_queries.gaussian.gaussian_query import GaussianGlobalState
from keras_dp.dp_queries.gaussian.proven_sum import checked_precision
from keras_dp.dp_queries.quantile_estimator_query import (
    QuantileEstimatorQuery,
    QuantileEstimatorState,
)
from keras_dp.dp_queries.saving import as_floats, register


class QuantileAdaptiveClipState(NamedTuple):
    """The state of a `QuantileAdaptiveClipSumQuery`.

    Attributes:
        sum_state: Clip and noise of the next sum.
        quantile_estimator_state: State of the query that moves the clip.
    """

    sum_state: GaussianGlobalState
    quantile_estimator_state: QuantileEstimatorState


@register
@dataclasses.dataclass(frozen=True, slots=True)
class QuantileAdaptiveClipSumQuery(AdaptiveSumQuery):
    """A Gaussian sum whose clip follows a quantile of the records' norms.

    Each round makes two sums, and releases both with noise: the sum of the
    clipped records; and the sum of their *bits*, which are 1/2 for a record
    whose norm is within the clip, and -1/2 for another. The noised sum of bits
    estimates the share of records within the clip, and moves the next clip, as
    in `QuantileEstimatorQuery`.

    Guarantee: given the earlier releases, adding, removing or zeroing out one
    record moves the sum by at most the clip in joint L2 norm, up to float
    rounding as in `GaussianSumQuery`, and the sum of bits by at most 1/2,
    exactly. Replacing one record moves each by at most twice that. (A record
    that is zeroed out has no bit.) The ledger gets both sums as events of one
    sample. The clip depends on released numbers only. A record that is not
    finite, or whose norm is not, adds nothing to either sum. The clip of a
    later round lies in [1e-20, 1e20], whatever the noise.

    The two sums together cost what one Gaussian sum costs with the noise
    multiplier `(noise_multiplier^-2 + (2 clipped_count_stddev)^-2)^(-1/2)`.

    Attributes:
        initial_l2_norm_clip: The public clip of the first round, in the
            records' unit, in [1e-20, 1e20]; it may be 0 if
            `geometric_update` is false.
        noise_multiplier: Standard deviation of the noise on the sum, divided by
            the current clip; 0, or in [1e-10, 1e10].
        target_unclipped_quantile: The share of records that shall be within the
            clip, in [0, 1].
        learning_rate: The largest change of the clip's logarithm in a round, or
            of the clip if `geometric_update` is false, >= 0. The paper uses
            0.2.
        clipped_count_stddev: Standard deviation of the noise on the sum of
            bits, >= 0. The paper uses `expected_num_records / 20`.
        expected_num_records: The public divisor, > 0: the expected size of a
            sample.
        geometric_update: Whether the clip is multiplied by a factor in each
            round; if not, a step is subtracted.
        precision: "assumed" or "proven"; see `GaussianSumQuery`.

    Source: Andrew et al. (2021), arXiv:1905.03871v5, Algorithm 1. We differ in
    two ways: `noise_multiplier` is that of the sum alone (`z_delta` in the
    paper), and the divisor is the expected number of records, not the number
    that was drawn.

    >>> query = QuantileAdaptiveClipSumQuery(
    ...     4.0, 1.5, 0.5, 0.2, clipped_count_stddev=8.0,
    ...     expected_num_records=100)
    >>> event = query.planned_event(query.initial_global_state())
    >>> for leaf in query.ledger_events(event, name="g"): print(leaf)
    GaussianSum(name='g', l2_norm_bound=4.0, noise_stddev=6.0)
    GaussianSum(name='g/clipped_count', l2_norm_bound=0.5, noise_stddev=8.0)
    """

    side_name: ClassVar[str] = "clipped_count"
    state: ClassVar[type] = QuantileAdaptiveClipState
    initial_l2_norm_clip: float
    noise_multiplier: float
    target_unclipped_quantile: float
    learning_rate: float
    clipped_count_stddev: float
    expected_num_records: float
    geometric_update: bool = True
    precision: str = "assumed"

    def __post_init__(self) -> None:
        _check.boolean(geometric_update=self.geometric_update)
        if self.initial_l2_norm_clip != 0 or self.geometric_update:
            check_clip(initial_l2_norm_clip=self.initial_l2_norm_clip)
        check_multiplier(noise_multiplier=self.noise_multiplier)
        checked_precision(
            self.precision,
            min(self.noise_multiplier, self.clipped_count_stddev),
        )
        _check.share(
            "[0, 1]", target_unclipped_quantile=self.target_unclipped_quantile
        )
        _check.finite_non_negative(
            learning_rate=self.learning_rate,
            clipped_count_stddev=self.clipped_count_stddev,
        )
        _check.finite_positive(expected_num_records=self.expected_num_records)
        numbers = dataclasses.fields(self)[:-2]
        as_floats(self, *(field.name for field in numbers))

    @property
    @override
    def side_query(self) -> QuantileEstimatorQuery:
        """The query that moves the clip."""
        return QuantileEstimatorQuery(
            initial_estimate=self.initial_l2_norm_clip,
            target_quantile=self.target_unclipped_quantile,
            learning_rate=self.learning_rate,
            below_estimate_stddev=self.clipped_count_stddev,
            expected_num_records=self.expected_num_records,
            geometric_update=self.geometric_update,
            precision=self.precision,
        )

    @override
    def side_state(
        self, global_state: QuantileAdaptiveClipState
    ) -> QuantileEstimatorState:
        return global_state.quantile_estimator_state

    @override
    def bounded_sum(
        self,
        params: AdaptiveParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> AdaptiveSample:
        norms = records_lib.norms(tf.nest.flatten(records))
        none = self.side_query.initial_sample_state()
        return AdaptiveSample(
            self.clipped_sum(params, like, records, norms, mask),
            self.side_query.accumulate_records(
                params.side_params, none, norms, mask
            ),
        )

    @override
    def following(
        self,
        global_state: QuantileAdaptiveClipState,
        sum_state: GaussianGlobalState,
        side: QueryResult,
    ) -> QuantileAdaptiveClipState:
        clip = tf.clip_by_value(side.value, SMALLEST_CLIP, LARGEST_CLIP)
        stddev = clip * self.noise_multiplier
        return QuantileAdaptiveClipState(
            sum_state._replace(l2_norm_clip=clip, stddev=stddev),
            side.global_state._replace(current_estimate=clip),
        )
