"""Queries whose state starts anew from time to time."""

import abc
import dataclasses
from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp import _check
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.saving import Configured, register
from keras_dp.dp_queries.tree_query import TreeQuery
from keras_dp.dp_queries.wrapping_query import WrappingQuery


class RestartIndicator(Configured, abc.ABC):
    """Says after which rounds a query restarts, from public state alone.

    A subclass is a frozen dataclass, registered with Keras to be saved.
    """

    __slots__ = ()

    @abc.abstractmethod
    def initialize(self) -> Nest:
        """Returns the state before the first round, a nest of tensors."""

    @abc.abstractmethod
    def next(self, state: Nest) -> tuple[tf.Tensor, Nest]:
        """Returns whether to restart after this round, and the next state."""


@register
@dataclasses.dataclass(frozen=True, slots=True)
class PeriodicRoundRestartIndicator(RestartIndicator):
    """Restarts after every so many rounds.

    Attributes:
        period: Rounds from one restart to the next, >= 1.
        warmup: Rounds until the first restart, from 1 to `period - 1`; by
            default `period`.

    >>> indicator, flags = PeriodicRoundRestartIndicator(4, warmup=1), []
    >>> state = indicator.initialize()
    >>> for _ in range(6):
    ...     flag, state = indicator.next(state)
    ...     flags.append(bool(flag))
    >>> flags
    [True, False, False, False, True, False]
    """

    period: int
    warmup: int | None = None

    def __post_init__(self) -> None:
        _check.integer_at_least(1, period=self.period)
        if self.warmup is None:
            return
        _check.integer_at_least(1, warmup=self.warmup)
        if self.warmup >= self.period:
            raise ValueError(
                "`warmup` must be < `period`. Received: "
                f"warmup={self.warmup!r}, period={self.period!r}."
            )

    @override
    def initialize(self) -> tf.Tensor:
        return tf.constant(0, tf.int64)

    @override
    def next(self, state: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        first = self.period if self.warmup is None else self.warmup
        following = state + 1
        return tf.equal((following - first) % self.period, 0), following


class RestartState(NamedTuple):
    """The state of a `RestartQuery`.

    Attributes:
        inner_query_state: State of the query that is restarted.
        indicator_state: State of the indicator, which says when.
    """

    inner_query_state: Nest
    indicator_state: Nest


@register
@dataclasses.dataclass(frozen=True, slots=True)
class RestartQuery(WrappingQuery):
    """A query on a tree that starts a new tree after certain rounds.

    A tree hides a record the worse the more of its rounds the record takes part
    in, and its noise grows with its height: with a new tree for each pass over
    the data, each has the record once.

    Guarantee: as for the inner query, whatever the neighbouring relation. The
    restart follows from public state after a release, so that
    `planned_event` already names the tree of the next round. Records that are
    not finite are treated as by the inner query.

    Attributes:
        inner_query: A query with `reset_state`, such as a
            `TreeResidualSumQuery`.
        restart_indicator: Says after which rounds it restarts.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Appendix D.

    >>> from keras_dp.dp_queries.tree_residual_sum_query import (
    ...     TreeResidualSumQuery)
    >>> query = RestartQuery(
    ...     TreeResidualSumQuery(1.0, 5.0, tf.TensorSpec([2]), max_levels=10),
    ...     PeriodicRoundRestartIndicator(1000))
    >>> query.adapts
    True
    """

    inner_query: TreeQuery
    restart_indicator: RestartIndicator

    def __post_init__(self) -> None:
        if not isinstance(self.inner_query, DPQuery) or not hasattr(
            self.inner_query, "reset_state"
        ):
            raise TypeError(
                "`inner_query` must be a DPQuery with a `reset_state`. "
                f"Received: inner_query={self.inner_query!r}."
            )
        _check.kind(RestartIndicator, restart_indicator=self.restart_indicator)

    @property
    @override
    def inner(self) -> DPQuery:
        return self.inner_query

    @override
    def inner_state(self, global_state: RestartState) -> Nest:
        return global_state.inner_query_state

    @override
    def initial_global_state(self, seed: int | None = None) -> RestartState:
        return RestartState(
            self.inner_query.initial_global_state(seed),
            self.restart_indicator.initialize(),
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: RestartState
    ) -> QueryResult:
        result = self.inner_query.get_noised_result(
            sample_state, global_state.inner_query_state
        )
        restarts, indicator_state = self.restart_indicator.next(
            global_state.indicator_state
        )
        inner_state = tf.cond(
            restarts,
            lambda: self.inner_query.reset_state(
                result.value, result.global_state
            ),
            lambda: result.global_state,
        )
        return result._replace(
            global_state=RestartState(inner_state, indicator_state)
        )

    @property
    @override
    def adapts(self) -> bool:
        return True
