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
        l2_norm_clip: Scalar float64.
        stddev: Scalar float64.
        secret_tree: Its `total` is the noise on the sum over the tree's rounds
            so far. It has no `base`.
    """

    l2_norm_clip: tf.Tensor
    stddev: tf.Tensor
    secret_tree: TreeState


@register
@dataclasses.dataclass(frozen=True, slots=True)
class TreeResidualSumQuery(TreeQuery):
    """Sums the clipped records of a round, with noise that does not add up.

    The release of round `t` is the difference between what
    `TreeCumulativeSumQuery` would release for `t` and for `t - 1`, so that an
    optimizer that adds up answers, as plain SGD does, has the noise of a few
    nodes of the tree: DP-FTRL. Takes the place of a `GaussianSumQuery` where
    records are not sampled; wrap it by `NormalizedQuery` for an average.

    Guarantee: as for `TreeCumulativeSumQuery`, of whose releases the sums of
    this query's are made, and the other way round: for every node of the tree
    adding or removing one record of one round (zero-out alike) moves the sum
    over the node's rounds by at most `l2_norm_clip`, replacing one by at most
    twice that, up to float rounding. A record that is not finite counts as
    zero. After `2^max_levels - 1` rounds of a tree answers are NaN.

    A model that is saved keeps nothing of the tree; a restored one starts a new
    tree.

    Attributes: see `TreeCumulativeSumQuery`.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Algorithm 1 and
    Appendix B.

    >>> query = TreeResidualSumQuery(5.0, 2.0, tf.TensorSpec([2]))
    >>> query.reset_state(None, query.initial_global_state())._fields
    ('l2_norm_clip', 'stddev', 'secret_tree')
    """

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> TreeResidualState:
        return TreeResidualState(
            l2_norm_clip=tf.constant(self.l2_norm_clip, tf.float64),
            stddev=tf.constant(self.stddev, tf.float64),
            secret_tree=first_tree(self, seed)._replace(base=()),
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: TreeResidualState
    ) -> QueryResult:
        tree = global_state.secret_tree
        noise, following = next_noise(self, tree, global_state.stddev)
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
