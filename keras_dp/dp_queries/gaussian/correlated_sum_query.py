"""Sums of each round, with noise that is correlated over the rounds."""

import dataclasses
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _check, _nests, ledger
from keras_dp._override import override
from keras_dp.dp_queries import saving
from keras_dp.dp_queries.dp_query import Nest, QueryResult, divided
from keras_dp.dp_queries.gaussian.gaussian_sums import (
    GaussianSumQuery,
    JointClipQuery,
)
from keras_dp.dp_queries.saving import register, set_fields
from keras_dp.dp_queries.summing_query import (
    SummingQuery,
    SumParams,
    empty_sum,
)
from keras_dp.noise import filtered_noise, grid, seeds

# Noise that is larger than a draw by this factor is rounded, in float32, to
# less than a thousandth of a draw.
_LARGEST_GROWTH = 1000


class CorrelatedEvent(NamedTuple):
    """One release of a `CorrelatedSumQuery`.

    The bound and the standard deviation of each draw are scalars of float64.
    `rounds` is the number of rounds of the mechanism, and `mechanism_id` is
    int64 of shape `[2]`.
    """

    l2_norm_bound: tf.Tensor
    noise_stddev: tf.Tensor
    rounds: tf.Tensor
    mechanism_id: tf.Tensor


class CorrelatedState(NamedTuple):
    """The id and the noise of mechanisms, which are never saved.

    The id, int64 of shape `[2]`, is that of the first mechanism. It is public
    and independent of the noise. The next mechanism has the next number.
    """

    secret_id: tf.Tensor
    secret_noise: filtered_noise.FilteredNoise


@register
@dataclasses.dataclass(frozen=True, slots=True)
class CorrelatedSumQuery(SummingQuery):
    """Sums the clipped records of a round, with noise that partly cancels.

    The noise of the rounds is correlated, so that the sum over the first rounds
    has less noise than with independent noise for the same privacy. An
    optimizer that adds up the answers, as SGD does, gains from this, with and
    without momentum. The strategy says how the noise is correlated. Wrap the
    query in a `NormalizedQuery` for an average.

    `noise_multiplier` is not the noise multiplier of the whole mechanism. That
    is `noise_multiplier / accountants.strategy_sensitivity(...).upper`.

    Guarantee: adding, removing or zeroing out one record of one round moves the
    sum of this round by at most `l2_norm_clip` in joint L2 norm, and replacing
    one by at most twice that, up to float rounding as in `GaussianSumQuery`.
    The noise of round `t` is row `t` of `C^-1 z`, where the entries of `z` are
    independent, Gaussian with `stddev`, and drawn once. In the ledger, all
    rounds have one `mechanism_id`, which is random and independent of the
    noise. A record that is not finite counts as zero. After `rounds` rounds
    answers are NaN, and the ledger refuses to reserve more. With
    `restart_after` there are several mechanisms, one after the other, each with
    an id and draws of its own. Strategies whose noise grows to more than 1000
    times a draw are refused, because floats would round the draws away.

    A saved model keeps nothing of the mechanism: neither seeds nor buffers.
    When it is restored, it starts a new mechanism, which costs as much again.

    Attributes:
        strategy: C, such as `BandedToeplitz`, from `keras_dp.ledger`. Its
            coefficients are public.
        l2_norm_clip: Bound on one record's norm, in the record's unit, > 0.
        noise_multiplier: Standard deviation of each draw, divided by
            `l2_norm_clip`, >= 0.
        rounds: The number of rounds, >= 1. Those of a mechanism are paid for
            when its first one runs.
        record_specs: Nest of `tf.TensorSpec`s: the shapes and dtypes of one
            record. Each band of the strategy but the first, or each of its
            buffers, takes the memory of one record. A `BinaryTree` has as many
            buffers as the rounds of a mechanism can be halved.
        scales: Typical norms of the groups of a record, which are clipped
            together, as in `JointClipQuery`; the clip is then that of the
            scaled record, and dimensionless. `None` for one group.
        restart_after: The number of rounds after which a new mechanism begins,
            >= 1; `None` for one mechanism of all rounds. With that of a pass
            over the data, a record takes part in each mechanism once.

    Source: Denisov et al. (2022), arXiv:2202.08312; Choquette-Choo et al.
    (2023), arXiv:2306.08153; McMahan et al. (2024), arXiv:2404.16706.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> query = CorrelatedSumQuery(
    ...     BandedToeplitz((1.0, 0.5)), 5.0, 0.0, 100, tf.TensorSpec([2]))
    >>> state = query.initial_global_state()
    >>> sample = query.accumulate_record(
    ...     query.derive_sample_params(state),
    ...     query.initial_sample_state(tf.zeros([2])),
    ...     tf.constant([6.0, 8.0]))
    >>> query.get_noised_result(sample, state).value.numpy().tolist()
    [3.0, 4.0]
    """

    strategy: ledger.Strategy
    l2_norm_clip: float
    noise_multiplier: float
    rounds: int
    record_specs: Nest
    scales: Nest | None = None
    restart_after: int | None = None

    def __post_init__(self) -> None:
        _check.kind(ledger.Strategy, strategy=self.strategy)
        _check.finite_positive(l2_norm_clip=self.l2_norm_clip)
        checked = self.record_query  # It checks the noise and the scales.
        _check.integer_at_least(1, rounds=self.rounds)
        if self.restart_after is not None:
            _check.integer_at_least(1, restart_after=self.restart_after)
        event = self._event("records", self.stddev, "checked")
        growth = self.strategy.growth(event.rounds)
        if not growth <= _LARGEST_GROWTH:
            raise ValueError(
                "The noise of `strategy` must not grow to more than "
                f"{_LARGEST_GROWTH} times a draw: floats would round draws "
                f"away, and with them the privacy. Received: {growth:.3g} "
                f"times a draw within {event.rounds!r} rounds, with strategy="
                f"{self.strategy!r}. Take one whose coefficients decrease, "
                "or fewer rounds."
            )
        set_fields(
            self,
            l2_norm_clip=checked.l2_norm_clip,
            noise_multiplier=float(self.noise_multiplier),
            rounds=int(self.rounds),
            record_specs=saving.frozen_specs(self.record_specs),
            scales=getattr(checked, "scales", None),
        )

    @property
    def period(self) -> int:
        """The number of rounds of one mechanism."""
        return min(self.restart_after or self.rounds, self.rounds)

    @property
    @override
    def adapts(self) -> bool:
        return self.period < self.rounds

    @property
    def stddev(self) -> float:
        """Standard deviation of each draw, in the unit of the clip."""
        return self.noise_multiplier * self.l2_norm_clip

    @property
    def record_query(self) -> GaussianSumQuery | JointClipQuery:
        """The query that bounds and sums the records of one round."""
        clip, noise = self.l2_norm_clip, self.noise_multiplier
        if self.scales is None:
            return GaussianSumQuery(clip, noise_multiplier=noise)
        return JointClipQuery(
            self.scales, clip, noise_multiplier=noise, denominator=1.0
        )

    @override
    def initial_global_state(self, seed: int | None = None) -> CorrelatedState:
        like = empty_sum(_nests.thawed(self.record_specs))
        # Its id is never from a seed: two runs of one seed are two mechanisms.
        return CorrelatedState(
            seeds.fresh_id(),
            filtered_noise.initial(
                keras.tree.flatten(like),
                self.strategy.filter(self.period),
                seeds.fresh(seed),
            ),
        )

    @override
    def derive_sample_params(self, global_state: CorrelatedState) -> SumParams:
        return SumParams(
            tf.constant(self.l2_norm_clip, tf.float64),
            grid.spacing(self.stddev),
        )

    @override
    def initial_sample_state(self, template: Nest) -> Nest:
        saving.check_fits(template, self.record_specs)
        return self.record_query.initial_sample_state(template)

    @override
    def bounded_sum(
        self,
        params: SumParams,
        like: Nest,
        records: Nest,
        mask: tf.Tensor | None,
    ) -> Nest:
        return self.record_query.bounded_sum(params, like, records, mask)

    @override
    def planned_event(self, global_state: CorrelatedState) -> CorrelatedEvent:
        step = global_state.secret_noise.step
        if tf.executing_eagerly() and step >= self.rounds:
            raise ValueError(
                "`rounds` must be at least the number of rounds of the "
                f"training. Received: rounds={self.rounds}, which were all "
                "released. Make a new query with a new optimizer."
            )
        number = step // self.period
        return CorrelatedEvent(
            tf.constant(self.l2_norm_clip, tf.float64),
            tf.constant(self.stddev, tf.float64),
            tf.minimum(self.rounds - number * self.period, self.period),
            global_state.secret_id + [0, 1] * number,
        )

    @override
    def coming_events(
        self, global_state: CorrelatedState
    ) -> list[tuple[CorrelatedEvent, int]]:
        found: list[tuple[CorrelatedEvent, int]] = []
        step = int(global_state.secret_noise.step)
        if step >= self.rounds:
            return found
        event = self.planned_event(global_state)
        # Eager operations for each mechanism would take milliseconds.
        mechanism_id = np.asarray(event.mechanism_id)
        for begin in range(step - step % self.period, self.rounds, self.period):
            rounds = min(self.period, self.rounds - begin)
            each = event._replace(
                rounds=np.int64(rounds), mechanism_id=mechanism_id
            )
            found.append((each, begin + rounds - max(begin, step)))
            mechanism_id = mechanism_id + np.array([0, 1])
        return found

    @override
    def ledger_events(
        self, event: CorrelatedEvent, name: str = "records"
    ) -> tuple[ledger.SumQueryEvent, ...]:
        words = (int(word) % 2**64 for word in np.asarray(event.mechanism_id))
        made = self._event(
            name,
            float(event.noise_stddev),
            "".join(f"{word:016x}" for word in words),
        )
        bound, rounds = float(event.l2_norm_bound), int(event.rounds)
        return (dataclasses.replace(made, l2_norm_bound=bound, rounds=rounds),)

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: CorrelatedState
    ) -> QueryResult:
        answers, following = filtered_noise.following(
            global_state.secret_noise,
            self.strategy.filter(self.period),
            self.rounds,
            keras.tree.flatten(sample_state),
            tf.constant(self.stddev, tf.float64),
            period=self.period,
        )
        value = keras.tree.pack_sequence_as(sample_state, answers)
        scales = self.record_query.scales_of(value)
        return QueryResult(
            value=divided(value, [1 / scale for scale in scales]),
            global_state=global_state._replace(secret_noise=following),
            event=self.planned_event(global_state),
        )

    def _event(
        self, name: str, stddev: float, mechanism_id: str
    ) -> ledger.CorrelatedSum:
        return ledger.CorrelatedSum(
            name=name,
            l2_norm_bound=self.l2_norm_clip,
            noise_stddev=stddev,
            strategy=self.strategy,
            rounds=self.period,
            mechanism_id=mechanism_id,
        )
