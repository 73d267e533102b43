"""A Gaussian sum whose clip follows the mean norm of the last round."""

import dataclasses
from typing import ClassVar, NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp import _check
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
from keras_dp.dp_queries.gaussian_sum_query import (
    GaussianGlobalState,
    GaussianSumQuery,
)
from keras_dp.dp_queries.saving import as_floats, register
from keras_dp.noise import seeds


class AdaptiveClipState(NamedTuple):
    """The state of an `AdaptiveClipSumQuery`.

    Attributes:
        sum_state: Clip and noise of the next sum.
        norm_state: Largest size and noise of the next sum of centred norms.
    """

    sum_state: GaussianGlobalState
    norm_state: GaussianGlobalState


@register
@dataclasses.dataclass(frozen=True, slots=True)
class AdaptiveClipSumQuery(AdaptiveSumQuery):
    """A Gaussian sum whose clip follows the mean norm of the last round.

    With the clip `C` of a round, norms are clipped at `beta C`. Each round
    releases, with noise, the sum of the clipped records and the sum of the
    clipped norms, each less `beta C / 2`. The noised sum of norms over the
    public `expected_num_records`, put back and held in [0, beta C], is the
    mean norm; `alpha` times it is the clip of the next round. Norms are
    computed once for both sums. An empty sample stands for a mean norm of
    `beta C / 2`, which with the defaults leaves the clip as it is.

    The query has one clip. For one per layer, nest it:
    `NestedQuery({"conv": AdaptiveClipSumQuery(...), "dense": ...})`.

    Guarantee: given what was released before, adding or removing one record
    (zero-out alike, where a record that is zeroed out has no norm) moves the
    sum by at most the clip in joint L2 norm, up to float rounding as in
    `GaussianSumQuery`, and the sum of norms by at most `beta C / 2`, to within
    a relative 1e-15; replacing one, by at most twice that. The ledger gets
    both as events of one sample. The clip follows from released numbers. A
    record that is not finite, or whose norm is not, adds nothing to either.
    The clip stays within a factor of `clip_range` of the initial one,
    whatever the noise, and grows at most by `alpha beta` a round.

    Together the two are worth one Gaussian sum of noise multiplier
    `(noise_multiplier^-2 + (2 norm_noise_multiplier)^-2)^(-1/2)`.

    Attributes:
        initial_l2_norm_clip: Public, in the records' unit.
        noise_multiplier: Standard deviation of the noise on the sum, in units
            of the current clip; 0, or in [1e-10, 1e10].
        norm_noise_multiplier: Standard deviation of the noise on the sum of
            norms, in units of `beta` times the current clip; alike.
        expected_num_records: Public constant, > 0.
        alpha: The next clip over the mean norm, > 0.
        beta: The clip of norms over the clip, > 0. The clip cannot grow if
            `alpha beta <= 1`.
        clip_range: Largest factor between the initial clip and another, >= 1.
            The initial clip times or over it must lie in [1e-20, 1e20].

    Source: van der Veen et al. (2018), arXiv:1812.02890v1, section 2.2. We
    differ: noise is on the sum, not on the mean as typed, as only so the
    stated budget comes out; norms are centred, which halves what a record
    moves at the same noise (uncentred, `norm_noise_multiplier` would have to
    be twice as large); the divisor is public; and the clip has limits.

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
    alpha: float = 1.0
    beta: float = 2.0
    clip_range: float = 1e3

    def __post_init__(self) -> None:
        check_clip(initial_l2_norm_clip=self.initial_l2_norm_clip)
        check_multiplier(
            noise_multiplier=self.noise_multiplier,
            norm_noise_multiplier=self.norm_noise_multiplier,
        )
        _check.finite_positive(
            expected_num_records=self.expected_num_records,
            alpha=self.alpha,
            beta=self.beta,
            clip_range=self.clip_range,
        )
        smallest, largest = self._limits
        if not SMALLEST_CLIP <= smallest <= largest <= LARGEST_CLIP:
            raise ValueError(
                "`clip_range` must be >= 1 and keep clips in "
                f"[{SMALLEST_CLIP}, {LARGEST_CLIP}]. Received: "
                f"clip_range={self.clip_range!r} with "
                f"initial_l2_norm_clip={self.initial_l2_norm_clip!r}."
            )
        as_floats(self, *(field.name for field in dataclasses.fields(self)))

    @property
    def _limits(self) -> tuple[float, float]:
        clip = self.initial_l2_norm_clip
        return clip / self.clip_range, clip * self.clip_range

    @property
    @override
    def side_query(self) -> GaussianSumQuery:
        """The sum of centred norms of the first round."""
        norm_clip = self.beta * self.initial_l2_norm_clip
        return GaussianSumQuery(
            norm_clip / 2, self.norm_noise_multiplier * norm_clip
        )

    @override
    def side_state(
        self, global_state: AdaptiveClipState
    ) -> GaussianGlobalState:
        return global_state.norm_state

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> AdaptiveClipState:
        one, two = seeds.children(seed, 2)
        return AdaptiveClipState(
            self.sum_query.initial_global_state(one),
            self.side_query.initial_global_state(two),
        )

    @override
    def bounded_sum(
        self,
        params: AdaptiveParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> AdaptiveSample:
        norms = records_lib.norms(tf.nest.flatten(records))
        half = params.side_params
        centred = tf.minimum(tf.cast(norms, tf.float64), 2 * half) - half
        counts = records_lib.masked(tf.ones_like(centred), mask)
        counts = tf.math.is_finite(norms) & (counts > 0)
        centred = tf.where(counts, centred, tf.zeros_like(centred))
        return AdaptiveSample(
            records_lib.clipped_sum(records, norms, params.sum_params, mask),
            tf.reduce_sum(centred),
        )

    @override
    def following(
        self,
        global_state: AdaptiveClipState,
        sum_state: GaussianGlobalState,
        side: QueryResult,
    ) -> AdaptiveClipState:
        half = global_state.norm_state.l2_norm_clip
        mean = side.value / self.expected_num_records + half
        mean = tf.clip_by_value(mean, tf.zeros_like(half), 2 * half)
        clip = tf.clip_by_value(self.alpha * mean, *self._limits)
        norm_clip = self.beta * clip
        return AdaptiveClipState(
            sum_state._replace(
                l2_norm_clip=clip, stddev=self.noise_multiplier * clip
            ),
            side.global_state._replace(
                l2_norm_clip=norm_clip / 2,
                stddev=self.norm_noise_multiplier * norm_clip,
            ),
        )
