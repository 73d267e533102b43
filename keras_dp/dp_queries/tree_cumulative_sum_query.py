"""Sums over all rounds so far, with the noise of a tree."""

import dataclasses
from typing import NamedTuple

import tensorflow as tf
from typing_extensions import override

from keras_dp import _nests
from keras_dp.dp_queries.dp_query import (
    Nest,
    QueryResult,
    add,
    zeros_like_record,
)
from keras_dp.dp_queries.saving import register
from keras_dp.dp_queries.tree_query import (
    TreeQuery,
    TreeState,
    first_tree,
    next_noise,
    next_tree,
)


class TreeCumulativeState(NamedTuple):
    """The state of a `TreeCumulativeSumQuery`.

    Attributes:
        l2_norm_clip: Scalar float64.
        stddev: Scalar float64.
        released: The last release; zero before the first.
        secret_tree: Its `base` is what was released before the tree began, its
            `total` the sum of the tree's rounds before noise.
    """

    l2_norm_clip: tf.Tensor
    stddev: tf.Tensor
    released: Nest
    secret_tree: TreeState


@register
@dataclasses.dataclass(frozen=True, slots=True)
class TreeCumulativeSumQuery(TreeQuery):
    """Sums the clipped records of all rounds so far, with little noise.

    The release of round `t` is the sum over rounds 1 to `t`. Its noise is that
    of at most `log2(t) + 1` nodes of a binary tree over the rounds, instead of
    `t` times that of a round. Needs no sampling. `reset_state` starts a new
    tree upon what is released; see `RestartQuery`.

    Guarantee: for every node, adding or removing one record of one round
    (zero-out alike) moves the sum over the node's rounds by at most
    `l2_norm_clip` in joint L2 norm, and replacing one by at most twice that,
    up to float rounding as in `GaussianSumQuery`; each node has Gaussian noise
    of `stddev`, drawn once, and all that is released is made of nodes.
    Rounds of one tree have one `tree_id` in the ledger, other trees another; it
    is random, and says nothing of the noise. A record that is not finite counts
    as zero. After `2^max_levels - 1` rounds of a tree answers are NaN.

    A model that is saved keeps what was released, and nothing of the tree: a
    restored one starts a new tree upon it.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        stddev: Standard deviation of the noise on each node, same unit.
        record_specs: Nest of `tf.TensorSpec`s: one record.
        use_efficient: Whether noise of a node's descendants is used, which
            nearly halves the variance and costs nothing.
        max_levels: Records of memory for the tree; at most 62.
        noise_seed: Makes the noise reproducible inside `reproducible()`, for
            tests. Such a query cannot be saved.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Algorithm 1 and
    Appendix B, whose tree we make without its optimizer.

    >>> query = TreeCumulativeSumQuery(5.0, 0.0, tf.TensorSpec([2]))
    >>> state = query.initial_global_state()
    >>> for _ in range(2):
    ...     sample = query.accumulate_record(
    ...         query.derive_sample_params(state),
    ...         query.initial_sample_state(tf.zeros([2])),
    ...         tf.constant([6.0, 8.0]))
    ...     value, state, _ = query.get_noised_result(sample, state)
    >>> value.numpy().tolist()
    [6.0, 8.0]
    """

    @override
    def initial_global_state(
        self, seed: int | None = None
    ) -> TreeCumulativeState:
        return TreeCumulativeState(
            l2_norm_clip=tf.constant(self.l2_norm_clip, tf.float64),
            stddev=tf.constant(self.stddev, tf.float64),
            released=zeros_like_record(_nests.thawed(self.record_specs)),
            secret_tree=first_tree(self, seed),
        )

    @override
    def get_noised_result(
        self, sample_state: Nest, global_state: TreeCumulativeState
    ) -> QueryResult:
        tree = global_state.secret_tree
        is_new = tf.equal(tree.noise.step, 0)
        base = tf.nest.map_structure(
            lambda released, old: tf.where(is_new, released, old),
            global_state.released,
            tree.base,
        )
        total = add(tree.total, sample_state)
        noise, following = next_noise(self, tree, global_state.stddev)
        value = tf.nest.map_structure(
            lambda *parts: tf.add_n(parts), total, noise, base
        )
        return QueryResult(
            value=value,
            global_state=global_state._replace(
                released=value,
                secret_tree=TreeState(tree.tree_id, following, base, total),
            ),
            event=self.planned_event(global_state),
        )

    @override
    def reset_state(
        self, noised_results: Nest, global_state: TreeCumulativeState
    ) -> TreeCumulativeState:
        return global_state._replace(
            released=noised_results,
            secret_tree=next_tree(self, global_state.secret_tree),
        )
