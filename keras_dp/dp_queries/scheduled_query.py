"""A query whose noise and clip change from round to round, as planned."""

import dataclasses
import hashlib
from typing import Any, NamedTuple, TypeAlias

import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp._schedules import Schedule, counted, factors_of
from keras_dp.dp_queries.dp_query import (
    GaussianEvent,
    LeafNoise,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.gaussian_average_query import GaussianAverageQuery
from keras_dp.dp_queries.gaussian_sum_query import (
    GaussianGlobalState,
    GaussianSumQuery,
)
from keras_dp.dp_queries.joint_clip_query import JointClipQuery
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.wrapping_query import WrappingQuery

GaussianQuery: TypeAlias = (
    GaussianSumQuery | GaussianAverageQuery | JointClipQuery
)
_SCHEDULES = ("noise", "clip", "divisor")


class ScheduleState(NamedTuple):
    """The state of a `ScheduledQuery`.

    Attributes:
        released: How many rounds were released, scalar int64.
        query_state: The clip, the noise and the seed of the next round.
    """

    released: tf.Tensor
    query_state: GaussianGlobalState


@register
@dataclasses.dataclass(frozen=True, slots=True, init=False, repr=False)
class ScheduledQuery(WrappingQuery):
    """A Gaussian query whose noise and clip follow a schedule by round.

    A schedule is a factor for each round. In round t, the noise multiplier is
    that of `query` times `noise[t]`; the clip is that of `query` times
    `clip[t]`, and the noise follows the clip; and the answer is divided by
    `divisor[t]`, besides the denominator of `query`. Where the samples grow
    (`PoissonBatches(..., probability_schedule=)`), a `divisor` of the same
    schedule makes the answers averages again.

    Guarantee: the guarantee of `query`, in each round with the clip and the
    noise of that round, which are public before the first one. The ledger gets
    each round with its own numbers, and the plan of the run has all of them.
    After the last round of the schedule nothing is released.

    Attributes:
        query: A `GaussianSumQuery`, `GaussianAverageQuery` or
            `JointClipQuery`, of the noise and the clip at factor 1.
        rounds: How many rounds the schedules have, >= 1: at least those of the
            training.
        noise: The factor of the noise multiplier in each round: a schedule of
            `keras.optimizers.schedules`, a function of the number of the round,
            or `rounds` numbers. The query keeps the numbers, rounded to six
            digits; they are finite and > 0. `None` for 1 in all rounds.
        clip: The factor of the clip, in the same way.
        divisor: The factor of the denominator, in the same way.

    Raises:
        TypeError: `query` is another query, or there is no schedule.
        ValueError: A schedule has fewer numbers than `rounds`; a number is not
            finite and > 0; or the query cannot have such a noise or clip.

    >>> import keras
    >>> decay = keras.optimizers.schedules.PolynomialDecay(1.0, 100, 0.5)
    >>> query = ScheduledQuery(GaussianSumQuery(1.0, 2.0), 100, noise=decay)
    >>> query.noise[0], query.noise[50], query.noise[99]
    (1.0, 0.75, 0.505)
    >>> state = query.initial_global_state()
    >>> for event, count in query.schedule(state)[:2]:
    ...     print(*query.ledger_events(event), count)
    GaussianSum(name='records', l2_norm_bound=1.0, noise_stddev=2.0) 1
    GaussianSum(name='records', l2_norm_bound=1.0, noise_stddev=1.99) 1
    """

    adapts = True
    query: GaussianQuery
    rounds: int
    noise: tuple[float, ...] | None
    clip: tuple[float, ...] | None
    divisor: tuple[float, ...] | None

    def __init__(
        self,
        query: GaussianQuery,
        rounds: int,
        *,
        noise: Schedule | None = None,
        clip: Schedule | None = None,
        divisor: Schedule | None = None,
    ) -> None:
        if type(query) not in (
            GaussianSumQuery,
            GaussianAverageQuery,
            JointClipQuery,
        ):
            raise TypeError(
                "`query` must be a GaussianSumQuery, a GaussianAverageQuery or "
                "a JointClipQuery, whose noise and clip are two numbers. "
                f"Received: query={query!r}. Put the schedule inside of a "
                "query that wraps another, and each query of a nest into a "
                "schedule of its own."
            )
        _check.integer_at_least(1, rounds=rounds)
        given = {"noise": noise, "clip": clip, "divisor": divisor}
        if all(each is None for each in given.values()):
            raise TypeError(
                "`noise`, `clip` or `divisor` must be a schedule. Received: "
                "none of them. Without a schedule, take the query itself."
            )
        set_fields(
            self,
            query=query,
            rounds=int(rounds),
            **{
                name: None
                if each is None
                else factors_of(each, rounds, **{name: each})
                for name, each in given.items()
            },
        )
        self._numbers()  # Raises for a noise or a clip that cannot be.

    @property
    @override
    def inner(self) -> GaussianQuery:
        return self.query

    @override
    def inner_state(self, global_state: ScheduleState) -> GaussianGlobalState:
        return global_state.query_state

    @override
    def __repr__(self) -> str:
        parts = [f"query={self.query!r}", f"rounds={self.rounds}"]
        for name in _SCHEDULES:
            factors = getattr(self, name)
            if factors is not None:
                digest = hashlib.sha256(repr(factors).encode()).hexdigest()
                parts.append(
                    f"{name}=<{factors[0]:g} to {factors[-1]:g}, "
                    f"sha256 {digest[:16]}>"
                )
        return f"{type(self).__name__}({', '.join(parts)})"

    @override
    def initial_global_state(self, seed: int | None = None) -> ScheduleState:
        state = self.query.initial_global_state(seed)
        return self._state(tf.constant(0, tf.int64), state)

    @override
    def planned_event(self, global_state: ScheduleState) -> GaussianEvent:
        if tf.executing_eagerly() and global_state.released >= self.rounds:
            raise ValueError(
                "`rounds` must be at least the number of rounds of the "
                f"training. Received: rounds={self.rounds}, which were all "
                "released. Give a longer schedule to a new optimizer."
            )
        return self.query.planned_event(global_state.query_state)

    @override
    def schedule(
        self, global_state: ScheduleState
    ) -> list[tuple[GaussianEvent, int]]:
        clips, stddevs = self._numbers()
        rest = slice(int(global_state.released), None)
        return [
            (GaussianEvent(*(tf.constant(x, tf.float64) for x in each)), count)
            for each, count in counted(
                zip(clips[rest], stddevs[rest], strict=True)
            )
        ]

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: ScheduleState
    ) -> QueryResult:
        result = self.query.get_noised_result(
            sample_state, global_state.query_state
        )
        divisor = self._divisor(global_state)
        return QueryResult(
            value=tf.nest.map_structure(
                lambda leaf: leaf / tf.cast(divisor, leaf.dtype), result.value
            ),
            global_state=self._state(
                global_state.released + 1, result.global_state
            ),
            event=result.event,
        )

    @override
    def result_noise(
        self, global_state: ScheduleState, value: Nest
    ) -> list[LeafNoise]:
        divisor = self._divisor(global_state)
        return [
            each._replace(scale=each.scale / divisor)
            for each in self.query.result_noise(global_state.query_state, value)
        ]

    @override
    def derive_metrics(
        self, global_state: ScheduleState
    ) -> dict[str, tf.Tensor]:
        state = global_state.query_state
        metrics = {"noise_multiplier": state.stddev / state.l2_norm_clip}
        if self.clip is not None:
            metrics["clip"] = state.l2_norm_clip
        return metrics

    def _numbers(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns the clip and the stddev of each round.

        Raises:
            ValueError: The query cannot have such a clip or noise.
        """
        ones = (1.0,) * self.rounds
        pairs = list(zip(self.clip or ones, self.noise or ones, strict=True))
        found = {pair: _with(self.query, *pair) for pair in set(pairs)}
        clips, stddevs = zip(*(found[pair] for pair in pairs), strict=True)
        return clips, stddevs

    def _state(
        self, released: tf.Tensor, state: GaussianGlobalState
    ) -> ScheduleState:
        """Returns the state after some rounds, for the next one.

        After the last round it keeps the numbers of that round, which
        `planned_event` refuses.
        """
        clips, stddevs = self._numbers()
        place = tf.minimum(released, self.rounds - 1)
        return ScheduleState(
            released,
            state._replace(
                l2_norm_clip=tf.gather(tf.constant(clips, tf.float64), place),
                stddev=tf.gather(tf.constant(stddevs, tf.float64), place),
            ),
        )

    def _divisor(self, global_state: ScheduleState) -> tf.Tensor:
        if self.divisor is None:
            return tf.constant(1.0, tf.float64)
        place = tf.minimum(global_state.released, self.rounds - 1)
        return tf.gather(tf.constant(self.divisor, tf.float64), place)


def _with(
    query: GaussianQuery, clip: float, noise: float
) -> tuple[float, float]:
    """Returns the clip and the stddev of a query, both times their factors."""
    name = "stddev" if isinstance(query, GaussianSumQuery) else "sum_stddev"
    changed: Any = dataclasses.replace(
        query,
        **{
            "l2_norm_clip": query.l2_norm_clip * clip,
            name: getattr(query, name) * clip * noise,
        },
    )
    return changed.l2_norm_clip, getattr(changed, name)
