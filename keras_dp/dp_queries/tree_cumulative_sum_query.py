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
        released: The last release; zero before the first.
        secret_tree: The tree. Its `base` is the last release before the tree
            began, and its `total` the sum over the rounds of the tree, before
            noise.
    """

    released: Nest
    secret_tree: TreeState


@register
@dataclasses.dataclass(frozen=True, slots=True)
class TreeCumulativeSumQuery(TreeQuery):
    """Sums the clipped records of all rounds so far, with little noise.

    The release of round `t` is the sum over rounds 1 to `t`. Its noise is the
    noise of at most `log2(t) + 1` nodes of a binary tree over the rounds;
    adding `t` noised rounds would add noise `t` times. The records need not be
    sampled. `reset_state` starts a new tree, whose sums begin with the last
    release; see `RestartQuery`.

    Guarantee: for every node of the tree, adding, removing or zeroing out one
    record of one round moves the sum over the rounds of the node by at most
    `l2_norm_clip` in joint L2 norm, and replacing one by at most twice that, up
    to float rounding as in `GaussianSumQuery`. Each node has Gaussian noise of
    `stddev`, drawn once, and every release is computed from noised nodes. In
    the ledger, the rounds of one tree have the same `tree_id`, which is random
    and independent of the noise. A record that is not finite counts as zero.
    After `2^max_levels - 1` rounds of a tree, answers are NaN.

    A saved model keeps the last release, and nothing of the tree. When it is
    restored, it starts a new tree, whose sums begin with this release.

    Attributes:
        l2_norm_clip: Bound on one record's norm, in the record's unit, >= 0.
        stddev: Standard deviation of the noise on each node, in the record's
            unit.
        record_specs: Nest of `tf.TensorSpec`s: the shapes and dtypes of one
            record.
        max_levels: Number of levels of the tree, in [1, 62]. Each takes the
            memory of one record.

    Source: Kairouz et al. (2021), arXiv:2103.00039v3, Algorithm 1 and
    Appendix B. We differ in making the tree only, without their optimizer.

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
        noise, following = next_noise(self, tree)
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
