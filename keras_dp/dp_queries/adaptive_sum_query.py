"""Base of the Gaussian sums whose clip changes from round to round."""

import abc
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from keras_dp import _check, ledger
from keras_dp._override import override
from keras_dp.dp_queries import records as records_lib
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    LeafNoise,
    Mechanism,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.gaussian.gaussian_query import GaussianGlobalState
from keras_dp.dp_queries.gaussian.gaussian_sums import GaussianSumQuery
from keras_dp.dp_queries.summing_query import (
    SummingQuery,
    SumParams,
    on_grid,
)
from keras_dp.noise import seeds

# Clips, and the noise made of them, stay far inside the range of float32.
SMALLEST_CLIP, LARGEST_CLIP = 1e-20, 1e20
_SMALLEST_MULTIPLIER, _LARGEST_MULTIPLIER = 1e-10, 1e10


class AdaptiveParams(NamedTuple):
    """The public numbers that an `AdaptiveSumQuery` bounds records by.

    Attributes:
        sum_params: For the sum.
        side_params: The values of the query that moves the clip.
    """

    sum_params: SumParams
    side_params: Nest


class AdaptiveSample(NamedTuple):
    """The two sums of an `AdaptiveSumQuery` over a sample, or over one record.

    Attributes:
        sum_state: Sum of the clipped records.
        side_state: Sum of the numbers that move the clip, scalar.
    """

    sum_state: Nest
    side_state: tf.Tensor


class AdaptiveEvent(NamedTuple):
    """The two releases of one round of an `AdaptiveSumQuery`.

    Attributes:
        sum_event: The sum of the clipped records.
        side_event: The sum of the numbers that move the clip.
    """

    sum_event: Nest
    side_event: Nest


class AdaptiveSumQuery(SummingQuery):
    """A Gaussian sum whose clip follows a second sum over the same sample.

    Its global state has a `sum_state`, with the clip and the noise.

    Attributes:
        side_name: Name of the second sum in the ledger.
        initial_l2_norm_clip: The clip of the first round.
        noise_multiplier: The noise on the sum, in units of the clip.
        precision: "assumed" or "proven"; see `GaussianSumQuery`.
    """

    __slots__ = ()
    adapts = True

    side_name: ClassVar[str]
    state: ClassVar[type]
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
    def side_state(self, global_state: Any) -> Nest:
        """Returns the global state of the query that moves the clip."""

    @abc.abstractmethod
    def following(
        self, global_state: Any, sum_state: GaussianGlobalState, side: Any
    ) -> Any:
        """Returns the state of the next round.

        Args:
            global_state: The state of this round.
            sum_state: The state that the sum left, with the old clip.
            side: The `QueryResult` of the query that moves the clip.
        """

    @override
    def initial_global_state(self, seed: int | None = None) -> Any:
        one, two = seeds.children(seed, 2)
        return self.state(
            self.sum_query.initial_global_state(one),
            self.side_query.initial_global_state(two),
        )

    @override
    def derive_sample_params(self, global_state: Any) -> AdaptiveParams:
        return AdaptiveParams(
            self.sum_query.derive_sample_params(global_state.sum_state),
            self.side_query.derive_sample_params(self.side_state(global_state)),
        )

    @override
    def initial_sample_state(self, template: Nest) -> AdaptiveSample:
        kind = tf.float32 if self.is_proven else tf.float64
        return AdaptiveSample(
            self.sum_query.initial_sample_state(template),
            self.side_query.initial_sample_state(tf.zeros([], kind)),
        )

    @override
    def planned_event(self, global_state: Any) -> AdaptiveEvent:
        return AdaptiveEvent(
            self.sum_query.planned_event(global_state.sum_state),
            self.side_query.planned_event(self.side_state(global_state)),
        )

    @override
    def get_noised_result(
        self, sample_state: AdaptiveSample, global_state: Any
    ) -> QueryResult:
        total = self.sum_query.get_noised_result(
            sample_state.sum_state, global_state.sum_state
        )
        side = self.side_query.get_noised_result(
            sample_state.side_state, self.side_state(global_state)
        )
        return QueryResult(
            value=total.value,
            global_state=self.following(global_state, total.global_state, side),
            event=AdaptiveEvent(total.event, side.event),
        )

    @override
    def ledger_events(
        self, event: AdaptiveEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        sum_event, side_event = event
        side_name = f"{name}/{self.side_name}"
        return (
            *self.sum_query.ledger_events(sum_event, name),
            *self.side_query.ledger_events(side_event, side_name),
        )

    @override
    def mechanisms(
        self, sample_state: AdaptiveSample, global_state: Any
    ) -> list[Mechanism]:
        return [
            *self.sum_query.mechanisms(
                sample_state.sum_state, global_state.sum_state
            ),
            *self.side_query.mechanisms(
                sample_state.side_state, self.side_state(global_state)
            ),
        ]

    @property
    @override
    def is_proven(self) -> bool:
        return self.precision == "proven"

    def clipped_sum(
        self,
        params: AdaptiveParams,
        like: AdaptiveSample,
        records: Nest,
        norms: tf.Tensor,
        mask: tf.Tensor | None,
    ) -> Nest:
        """Returns the sum of the clipped records.

        Args:
            params: See `bounded_sum`.
            like: See `bounded_sum`.
            records: See `bounded_sum`.
            norms: The joint norm of each record.
            mask: See `bounded_sum`.
        """
        if self.is_proven:  # It has bounds on norms of its own.
            return self.sum_query.bounded_sum(
                params.sum_params, like.sum_state, records, mask
            )
        clip, spacing = params.sum_params
        sums = records_lib.clipped_sum(records, norms, clip, mask)
        return on_grid(like.sum_state, sums, spacing)

    @override
    def result_noise(self, global_state: Any, value: Nest) -> list[LeafNoise]:
        return self.sum_query.result_noise(global_state.sum_state, value)

    @override
    def derive_metrics(self, global_state: Any) -> dict[str, tf.Tensor]:
        return {"clip": global_state.sum_state.l2_norm_clip}


def check_clip(**named: float) -> None:
    """Raises unless every value is a clip in [1e-20, 1e20]."""
    _check.finite_positive(**named)
    for name, value in named.items():
        if not SMALLEST_CLIP <= value <= LARGEST_CLIP:
            raise ValueError(
                f"`{name}` must be in [{SMALLEST_CLIP}, {LARGEST_CLIP}]. "
                f"Received: {name}={value!r}."
            )


def check_multiplier(**named: float) -> None:
    """Raises unless every value is a noise multiplier that suits float32."""
    for name, value in named.items():
        _check.finite_non_negative(**{name: value})
        if value and not _SMALLEST_MULTIPLIER <= value <= _LARGEST_MULTIPLIER:
            raise ValueError(
                f"`{name}` must be 0, or in [{_SMALLEST_MULTIPLIER}, "
                f"{_LARGEST_MULTIPLIER}]. Received: {name}={value!r}."
            )
