"""Queries on a tree that start a new tree from time to time."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf

from keras_dp import _check
from keras_dp._override import override
from keras_dp.dp_queries.dp_query import (
    DPQuery,
    Nest,
    QueryResult,
)
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.tree_residual_sum_query import TreeResidualSumQuery
from keras_dp.dp_queries.wrapping_query import WrappingQuery


class RestartState(NamedTuple):
    """The state of a `RestartQuery`.

    Attributes:
        inner_query_state: State of the query that is restarted.
        rounds: The number of rounds so far, scalar int64.
    """

    inner_query_state: Nest
    rounds: tf.Tensor


@register
@dataclasses.dataclass(frozen=True, slots=True)
class RestartQuery(WrappingQuery):
    """A query on a tree that starts a new tree after every `period` rounds.

    The more rounds of one tree a record takes part in, the more this tree
    reveals about it. And the noise grows with the height of the tree. With a
    new tree for each pass over the data, a record is in each tree once.

    Guarantee: the guarantee of `inner_query`, for every adjacency relation. A
    restart is decided by the number of rounds, right after a release. So
    `planned_event` already has the tree of the next round.

    Attributes:
        inner_query: A query whose noise comes from a tree.
        period: The number of rounds of a tree, >= 1.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Appendix D.

    >>> query = RestartQuery(
    ...     TreeResidualSumQuery(1.0, 5.0, tf.TensorSpec([2]), max_levels=10),
    ...     period=1000)
    >>> query.adapts
    True
    """

    inner_query: TreeResidualSumQuery
    period: int

    def __post_init__(self) -> None:
        _check.kind(TreeResidualSumQuery, inner_query=self.inner_query)
        _check.integer_at_least(1, period=self.period)

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
            tf.constant(0, tf.int64),
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: RestartState
    ) -> QueryResult:
        result = self.inner_query.get_noised_result(
            sample_state, global_state.inner_query_state
        )
        rounds = global_state.rounds + 1
        restarts = tf.equal(rounds % self.period, 0)
        inner_state = tf.cond(
            restarts,
            lambda: self.inner_query.reset_state(result.global_state),
            lambda: result.global_state,
        )
        return result._replace(global_state=RestartState(inner_state, rounds))

    @property
    @override
    def adapts(self) -> bool:
        return True
