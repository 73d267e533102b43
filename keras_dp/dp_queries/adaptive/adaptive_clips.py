"""Gaussian sums whose clip follows what earlier rounds released."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple

import keras
import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.adaptive.quantile_estimator_query import (
    EstimateAndShare,
    QuantileEstimatorQuery,
)
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Nest,
    QueryResult,
    add,
)
from keras_dp.dp_queries.gaussian.gaussian_query import GaussianGlobalState
from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
from keras_dp.dp_queries.gaussian.proven_sum import checked_precision
from keras_dp.dp_queries.nested_query import NestedQuery
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.dp_queries.summing_query import SumParams, on_grid
from keras_dp.dp_queries.wrapping_query import WrappingQuery

# Clips, and the noise made of them, stay far inside the range of float32.
_CLIPS = 1e-20, 1e20
_MULTIPLIERS = 1e-10, 1e10
# The largest factor between the initial clip and a later one by mean norms.
_CLIP_RANGE = 1e3


class SumAndSide(NamedTuple):
    """A pair of queries, or of their states, params, answers or events.

    `sum` belongs to the query that sums the records, and `side` to the one that
    moves the clip.
    """

    sum: Any
    side: Any


class AdaptiveSumQuery(WrappingQuery):
    """A Gaussian sum whose clip follows a second sum over the same sample.

    Two queries answer as one. The ledger has the second sum under its
    `side_name`. The noise multiplier is in units of the clip.
    """

    __slots__ = ()
    adapts = True

    side_name: ClassVar[str]
    initial_l2_norm_clip: float
    noise_multiplier: float
    precision: str

    @property
    def sum_query(self) -> GaussianSumQuery:
        """The query that makes the sum in the first round."""
        clip = self.initial_l2_norm_clip
        return GaussianSumQuery(
            clip, self.noise_multiplier * clip, precision=self.precision
        )

    @property
    @abc.abstractmethod
    def side_query(self) -> DPQuery:
        """The query that moves the clip, as it is in the first round."""

    @abc.abstractmethod
    def side_records(self, norms: tf.Tensor, params: Any) -> tf.Tensor:
        """Returns what the second sum adds up, `[batch]`, for float64 norms."""

    @abc.abstractmethod
    def following(
        self, side_value: tf.Tensor, side_state: Any
    ) -> tuple[tf.Tensor, Any]:
        """Returns the clip of the next round, and the state that has it."""

    @property
    @override
    def inner(self) -> NestedQuery:
        return NestedQuery(SumAndSide(self.sum_query, self.side_query))

    @override
    def initial_sample_state(self, template: Nest) -> SumAndSide:
        kind = tf.float32 if self.is_proven else tf.float64
        both = SumAndSide(template, tf.zeros([], kind))
        return self.inner.initial_sample_state(both)

    @override
    def accumulate_records(
        self,
        params: SumAndSide,
        sample_state: SumAndSide,
        records: Nest,
        mask: tf.Tensor | None = None,
    ) -> SumAndSide:
        norms = records_lib.norms(keras.tree.flatten(records))
        if self.is_proven:  # It has bounds on norms of its own.
            total = self.sum_query.bounded_sum(
                params.sum, sample_state.sum, records, mask
            )
        else:
            clip, spacing = params.sum
            sums = records_lib.clipped_sum(records, norms, clip, mask)
            total = on_grid(sample_state.sum, sums, spacing)
        side = self.side_records(tf.cast(norms, tf.float64), params.side)
        return SumAndSide(
            add(sample_state.sum, total),
            self.side_query.accumulate_records(
                params.side, sample_state.side, side, mask
            ),
        )

    @override
    def get_noised_result(
        self, sample_state: SumAndSide, global_state: SumAndSide
    ) -> QueryResult:
        value, state, event = self.inner.get_noised_result(
            sample_state, global_state
        )
        clip, side_state = self.following(value.side, state.side)
        sum_state = state.sum._replace(
            l2_norm_clip=clip, stddev=self.noise_multiplier * clip
        )
        return QueryResult(value.sum, SumAndSide(sum_state, side_state), event)

    @override
    def ledger_events(
        self, event: SumAndSide, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        side_name = f"{name}/{self.side_name}"
        return (
            *self.sum_query.ledger_events(event.sum, name),
            *self.side_query.ledger_events(event.side, side_name),
        )

    @override
    def result_noise(
        self, global_state: SumAndSide, value: Nest
    ) -> list[LeafNoise]:
        return self.sum_query.result_noise(global_state.sum, value)

    @override
    def derive_metrics(self, global_state: SumAndSide) -> dict[str, tf.Tensor]:
        return {"clip": global_state.sum.l2_norm_clip}


@register
@dataclasses.dataclass(frozen=True, slots=True)
class AdaptiveClipSumQuery(AdaptiveSumQuery):
    """A Gaussian sum whose clip follows the mean norm of the last round.

    Let `C` be the clip of a round. The round makes two sums, and releases both
    with noise: the sum of the records, clipped to `C`; and the sum of the
    *centred* norms, which are the norms clipped to `2 C`, less `C`. The noised
    sum of centred norms is divided by the public `expected_num_records`. Then
    `C` is added again, and the result is held in [0, 2 C]. This is the mean
    norm of the round, and the clip of the next round. An empty sample leaves
    the clip as it is, before noise.

    The query has one clip for the whole record. For one clip per layer, nest
    it: `NestedQuery({"conv": AdaptiveClipSumQuery(...), "dense": ...})`.

    Guarantee: given the earlier releases, adding, removing or zeroing out one
    record moves the sum by at most the clip in joint L2 norm, up to float
    rounding as in `GaussianSumQuery`, and the sum of centred norms by at most
    the clip, up to a relative 1e-15. Replacing one record moves each by at
    most twice that. (A record that is zeroed out has no norm.) The ledger gets
    both sums as events of one sample. The clip depends on released numbers
    only. A record that is not finite, or whose norm is not, adds nothing to
    either sum. The clip stays within a factor of 1,000 of the initial one,
    whatever the noise, and at most doubles in a round.

    The two sums together cost what one Gaussian sum costs with the noise
    multiplier `(noise_multiplier^-2 + (2 norm_noise_multiplier)^-2)^(-1/2)`.

    Attributes:
        initial_l2_norm_clip: The public clip of the first round, in the
            records' unit.
        noise_multiplier: Standard deviation of the noise on the sum, divided by
            the current clip; 0, or in [1e-10, 1e10].
        norm_noise_multiplier: Standard deviation of the noise on the sum of
            norms, divided by twice the current clip; 0, or in [1e-10, 1e10].
        expected_num_records: The public divisor, > 0: the expected size of a
            sample.
        precision: "assumed" or "proven"; see `GaussianSumQuery`.

    Source: van der Veen et al. (2018), arXiv:1812.02890v1, section 2.2. We
    differ in four ways. The noise is on the sum: the paper prints it on the
    mean, with which its stated budget does not come out. Norms are centred,
    which halves the sensitivity of their sum; without it,
    `norm_noise_multiplier` would have to be twice as large. The divisor is
    public. And the clip has limits.

    >>> query = AdaptiveClipSumQuery(2.0, 0.75, 2.5, expected_num_records=128)
    >>> event = query.planned_event(query.initial_global_state())
    >>> for leaf in query.ledger_events(event, name="gradients"): print(leaf)
    GaussianSum(name='gradients', l2_norm_bound=2.0, noise_stddev=1.5)
    GaussianSum(name='gradients/norms', l2_norm_bound=2.0, noise_stddev=10.0)
    """

    side_name: ClassVar[str] = "norms"
    initial_l2_norm_clip: float
    noise_multiplier: float
    norm_noise_multiplier: float
    expected_num_records: float
    precision: str = "assumed"

    def __post_init__(self) -> None:
        _check.within(*_CLIPS, initial_l2_norm_clip=self.initial_l2_norm_clip)
        _check.within(
            *_MULTIPLIERS,
            or_zero=True,
            noise_multiplier=self.noise_multiplier,
            norm_noise_multiplier=self.norm_noise_multiplier,
        )
        _check.finite_positive(expected_num_records=self.expected_num_records)
        checked_precision(
            self.precision,
            min(self.noise_multiplier, self.norm_noise_multiplier),
        )
        numbers = dataclasses.fields(self)[:-1]
        as_floats(self, *(field.name for field in numbers))

    @property
    @override
    def side_query(self) -> GaussianSumQuery:
        """The sum of centred norms of the first round."""
        norm_clip = 2 * self.initial_l2_norm_clip
        return GaussianSumQuery(
            norm_clip / 2,
            self.norm_noise_multiplier * norm_clip,
            precision=self.precision,
        )

    @override
    def side_records(self, norms: tf.Tensor, params: SumParams) -> tf.Tensor:
        half = params.l2_norm_clip
        centred = tf.minimum(norms, 2 * half) - half
        is_finite = tf.math.is_finite(norms)
        return tf.where(is_finite, centred, tf.zeros_like(centred))

    @override
    def following(
        self, side_value: tf.Tensor, side_state: GaussianGlobalState
    ) -> tuple[tf.Tensor, GaussianGlobalState]:
        half, first = side_state.l2_norm_clip, self.initial_l2_norm_clip
        total = tf.cast(side_value, tf.float64)
        mean = total / self.expected_num_records + half
        mean = tf.clip_by_value(mean, tf.zeros_like(half), 2 * half)
        smallest, largest = _CLIPS
        clip = tf.clip_by_value(
            mean,
            max(first / _CLIP_RANGE, smallest),
            min(first * _CLIP_RANGE, largest),
        )
        stddev = self.norm_noise_multiplier * (2 * clip)
        return clip, side_state._replace(l2_norm_clip=clip, stddev=stddev)


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
        _check.within(
            *_CLIPS,
            or_zero=not self.geometric_update,
            initial_l2_norm_clip=self.initial_l2_norm_clip,
        )
        _check.within(
            *_MULTIPLIERS, or_zero=True, noise_multiplier=self.noise_multiplier
        )
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
    def side_records(self, norms: tf.Tensor, params: Any) -> tf.Tensor:
        return norms

    @override
    def following(
        self, side_value: tf.Tensor, side_state: EstimateAndShare
    ) -> tuple[tf.Tensor, EstimateAndShare]:
        clip = tf.clip_by_value(side_value, *_CLIPS)
        return clip, side_state._replace(current_estimate=clip)
