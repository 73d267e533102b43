"""Queries on a tree that start a new tree from time to time."""

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
    """Decides after which rounds a query restarts, from public state only.

    A subclass is a frozen dataclass that is registered with Keras, so that it
    can be saved.
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
    """Restarts after every `period` rounds.

    Attributes:
        period: Number of rounds from one restart to the next, >= 1.
        warmup: Number of rounds until the first restart, from 1 to
            `period - 1`; `period` if `None`.

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
        indicator_state: State of the indicator, which decides when.
    """

    inner_query_state: Nest
    indicator_state: Nest


@register
@dataclasses.dataclass(frozen=True, slots=True)
class RestartQuery(WrappingQuery):
    """A query on a tree that starts a new tree after certain rounds.

    The more rounds of one tree a record takes part in, the more this tree
    reveals about it. And the noise grows with the height of the tree. With a
    new tree for each pass over the data, a record is in each tree once.

    Guarantee: the guarantee of `inner_query`, for every adjacency relation. The
    restart is decided from public state, right after a release. So
    `planned_event` already has the tree of the next round.

    Attributes:
        inner_query: A query with `reset_state`, such as a
            `TreeResidualSumQuery`.
        restart_indicator: Decides after which rounds the query restarts.

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
                f"Received: inner_query={self.inner_query!r}. Use a "
                "TreeCumulativeSumQuery or a TreeResidualSumQuery."
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
