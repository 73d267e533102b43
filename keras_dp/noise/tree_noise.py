"""The noise of prefix sums, made of the nodes of a binary tree.

A prefix sum is the sum of the first `t` rounds. The rounds are the leaves of
the tree. A node of level `l` holds the sum of a block of `2^l` rounds, plus
noise that is drawn once for this node. The binary digits of `t` say which nodes
add up to the first `t` rounds: one node for each digit that is one.

The sum of a node is also the sum of its descendants on any lower level. On
level `l - k` there are `2^k` descendants, and the noise of their sum has
variance `2^k`. The mean over all levels with weights proportional to `2^-k` has
the least variance, `1 / (2 - 2^-l)`; the noise of the node alone has variance
1. Nodes above, and nodes of later rounds, are not used: they are not known when
the prefix sum is released.

Only one node per level is kept: the latest complete block that is the left
child of its parent, or the root so far.

Source: Honaker (2015), "Efficient Use of Differentially Private Binary Trees",
the estimate from below, as used by Kairouz et al. (2021), arXiv:2103.00039v3,
Appendix B. We keep the levels in buffers of fixed size, so that rounds compile
once.
"""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from keras_dp.noise import seeds

# Draws the noise of one node from a seed: a tensor for each leaf of a record.
NodeNoise = Callable[[tf.Tensor], list[tf.Tensor]]


class TreeNoise(NamedTuple):
    """The noise of a tree after some rounds.

    Attributes:
        step: The number of rounds so far, scalar int64.
        levels: For each leaf of a record, the noise of the node that is kept on
            each level, `[max_levels, ...]` in float64, before it is divided by
            the sum of the weights.
        seed: The seed for the next nodes; see `seeds.fresh`.
    """

    step: tf.Tensor
    levels: list[tf.Tensor]
    seed: tf.Tensor


def initial(
    like: list[tf.Tensor], max_levels: int, seed: tf.Tensor
) -> TreeNoise:
    """Returns a tree without leaves.

    Args:
        like: Tensors of the shapes of one record.
        max_levels: The number of levels. The tree has at most
            `2^max_levels - 1` rounds.
        seed: A seed from `seeds.fresh`, which must not be used again.
    """
    return TreeNoise(
        step=tf.constant(0, tf.int64),
        levels=[tf.zeros([max_levels, *x.shape], tf.float64) for x in like],
        seed=seed,
    )


def following(
    noise: TreeNoise, draw: NodeNoise
) -> tuple[list[tf.Tensor], TreeNoise]:
    """Returns the noise of the next prefix sum, and the tree after this round.

    After `2^max_levels - 1` rounds the noise is NaN, so that nothing is
    released without protection.

    Args:
        noise: The tree before the round.
        draw: Draws the noise of one node from a seed.
    """
    max_levels = noise.levels[0].shape[0]
    step = noise.step + 1
    places = tf.range(max_levels, dtype=tf.int64)
    digits = tf.bitwise.bitwise_and(tf.bitwise.right_shift(step, places), 1)
    level = tf.cast(tf.reduce_sum(tf.math.cumprod(1 - digits)), tf.int32)

    seed, own = seeds.split(noise.seed, 2)
    node, seed = _merged(noise.levels, level, draw(own), seed, draw)
    at = tf.minimum(level, max_levels - 1)[tf.newaxis, tf.newaxis]
    levels = [
        tf.tensor_scatter_nd_update(each, at, new[tf.newaxis])
        for each, new in zip(noise.levels, node, strict=True)
    ]

    weights = tf.cast(digits, tf.float64)
    weights /= 2 - tf.pow(
        tf.constant(0.5, tf.float64), tf.cast(places, tf.float64)
    )
    is_full = tf.bitwise.right_shift(step, max_levels) > 0
    weights = tf.where(is_full, tf.constant(float("nan"), tf.float64), weights)
    total = [_weighted(each, weights) for each in levels]
    return total, TreeNoise(step, levels, seed)


def _merged(
    levels: list[tf.Tensor],
    level: tf.Tensor,
    node: list[tf.Tensor],
    seed: tf.Tensor,
    draw: NodeNoise,
) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns the noise of the node of `level` that a new leaf completes.

    On the way up, a right child and its left sibling make their parent:
    `own + (left + right) / 2` is the weighted sum of all levels below it.
    """

    def parent(
        below: tf.Tensor, right: list[tf.Tensor], seed: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor], tf.Tensor]:
        seed, mine = seeds.split(seed, 2)
        node = [
            own + 0.5 * (each[below] + child)
            for own, each, child in zip(draw(mine), levels, right, strict=True)
        ]
        return below + 1, node, seed

    _, node, seed = tf.while_loop(
        lambda below, *_: below < level,
        parent,
        (tf.constant(0), node, seed),
        parallel_iterations=1,
    )
    return node, seed


def _weighted(levels: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the weighted sum over levels.

    It does not use a matrix product, which GPUs would round to 10 bits.
    """
    weights = tf.cast(weights, levels.dtype)
    along = [levels.shape[0]] + [1] * (levels.shape.rank - 1)
    return tf.reduce_sum(levels * tf.reshape(weights, along), axis=0)
