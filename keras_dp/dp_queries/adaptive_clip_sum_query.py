"""A Gaussian sum whose clip follows the mean norm of the last round."""

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
from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
from keras_dp.dp_queries.gaussian.proven_sum import checked_precision
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.dp_queries.summing_query import on_grid

# The largest factor between the initial clip and a later one.
_CLIP_RANGE = 1e3


class AdaptiveClipState(NamedTuple):
    """The state of an `AdaptiveClipSumQuery`.

    Attributes:
        sum_state: The clip and the noise of the next sum.
        norm_state: The bound and the noise of the next sum of centred norms.
    """

    sum_state: GaussianGlobalState
    norm_state: GaussianGlobalState


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
    state: ClassVar[type] = AdaptiveClipState
    initial_l2_norm_clip: float
    noise_multiplier: float
    norm_noise_multiplier: float
    expected_num_records: float
    precision: str = "assumed"

    def __post_init__(self) -> None:
        check_clip(initial_l2_norm_clip=self.initial_l2_norm_clip)
        check_multiplier(
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
    def _limits(self) -> tuple[float, float]:
        clip = self.initial_l2_norm_clip
        return (
            max(clip / _CLIP_RANGE, SMALLEST_CLIP),
            min(clip * _CLIP_RANGE, LARGEST_CLIP),
        )

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
    def side_state(
        self, global_state: AdaptiveClipState
    ) -> GaussianGlobalState:
        return global_state.norm_state

    @override
    def bounded_sum(
        self,
        params: AdaptiveParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> AdaptiveSample:
        norms = records_lib.norms(tf.nest.flatten(records))
        half, spacing = params.side_params
        centred = tf.minimum(tf.cast(norms, tf.float64), 2 * half) - half
        counts = records_lib.masked(tf.ones_like(centred), mask)
        counts = tf.math.is_finite(norms) & (counts > 0)
        centred = tf.where(counts, centred, tf.zeros_like(centred))
        if self.is_proven:
            total = self.side_query.bounded_sum(
                params.side_params, like.side_state, centred, None
            )
        else:
            total = on_grid(like.side_state, tf.reduce_sum(centred), spacing)
        return AdaptiveSample(
            self.clipped_sum(params, like, records, norms, mask), total
        )

    @override
    def following(
        self,
        global_state: AdaptiveClipState,
        sum_state: GaussianGlobalState,
        side: QueryResult,
    ) -> AdaptiveClipState:
        half = global_state.norm_state.l2_norm_clip
        total = tf.cast(side.value, tf.float64)
        mean = total / self.expected_num_records + half
        mean = tf.clip_by_value(mean, tf.zeros_like(half), 2 * half)
        clip = tf.clip_by_value(mean, *self._limits)
        norm_clip = 2 * clip
        return AdaptiveClipState(
            sum_state._replace(
                l2_norm_clip=clip, stddev=self.noise_multiplier * clip
            ),
            side.global_state._replace(
                l2_norm_clip=norm_clip / 2,
                stddev=self.norm_noise_multiplier * norm_clip,
            ),
        )
