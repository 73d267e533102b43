"""Sums of single rounds, whose noise cancels in sums over rounds."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp.dp_queries.dp_query import (
    Nest,
    QueryResult,
    add,
)
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.tree_query import (
    TreeQuery,
    TreeState,
    first_tree,
    next_noise,
    next_tree,
)


class TreeResidualState(NamedTuple):
    """The state of a `TreeResidualSumQuery`.

    Attributes:
        secret_tree: The tree. Its `total` is the noise on the sum over the
            rounds of the tree so far. It has no `base`.
    """

    secret_tree: TreeState


@register
@dataclasses.dataclass(frozen=True, slots=True)
class TreeResidualSumQuery(TreeQuery):
    """Sums the clipped records of a round, with noise that partly cancels.

    The release of round `t` is the difference of two releases of
    `TreeCumulativeSumQuery`: those of rounds `t` and `t - 1`. An optimizer that
    adds up the answers, as plain SGD does, then has the noise of a few nodes of
    the tree only. This is DP-FTRL. Use the query in place of a
    `GaussianSumQuery` if records are not sampled, and wrap it in a
    `NormalizedQuery` for an average.

    Guarantee: the guarantee of `TreeCumulativeSumQuery`, because the releases
    of each query can be computed from those of the other. For every node of the
    tree, adding, removing or zeroing out one record of one round moves the sum
    over the rounds of the node by at most `l2_norm_clip` in joint L2 norm, and
    replacing one by at most twice that, up to float rounding. A record that is
    not finite counts as zero. After `2^max_levels - 1` rounds of a tree,
    answers are NaN.

    A saved model keeps nothing of the tree. When it is restored, it starts a
    new tree.

    Attributes: see `TreeCumulativeSumQuery`.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Algorithm 1 and
    Appendix B.

    >>> query = TreeResidualSumQuery(5.0, 2.0, tf.TensorSpec([2]))
    >>> query.reset_state(None, query.initial_global_state())._fields
    ('secret_tree',)
    """

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> TreeResidualState:
        return TreeResidualState(
            secret_tree=first_tree(self, seed)._replace(base=()),
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: TreeResidualState
    ) -> QueryResult:
        tree = global_state.secret_tree
        noise, following = next_noise(self, tree)
        change = tf.nest.map_structure(tf.subtract, noise, tree.total)
        return QueryResult(
            value=add(sample_state, change),
            global_state=global_state._replace(
                secret_tree=tree._replace(noise=following, total=noise)
            ),
            event=self.planned_event(global_state),
        )

    @override
    def reset_state(
        self, noised_results: Nest, global_state: TreeResidualState
    ) -> TreeResidualState:
        del noised_results  # A sum over rounds is the caller's.
        return global_state._replace(
            secret_tree=next_tree(self, global_state.secret_tree)
        )
