"""Noise that is correlated over rounds: draws, and buffers of earlier rounds.

Round `t` has the noise `(C^-1 z)_t` for a strategy C and independent draws `z`.
`Strategy.filter` says which buffers this takes: one for each band of C or of
its inverse but the first, or one for each decay. Buffers are kept, because on
CPUs a draw costs more than the memory traffic of several buffers.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_dp.ledger.events.strategies.strategy import Filter
from keras_dp.noise import grid


class FilteredNoise(NamedTuple):
    """The noise of a mechanism after some rounds.

    Attributes:
        step: The number of rounds so far, scalar int64.
        buffers: For each leaf of a record, `[buffers, ...]`, in steps of the
            grid: integers of int32 for draws, float64 for sums of them.
        seed: The seed of the next draw; see `seeds.fresh`.
    """

    step: tf.Tensor
    buffers: list[tf.Tensor]
    seed: tf.Tensor


def initial(
    like: list[tf.Tensor], how: Filter, seed: tf.Tensor
) -> FilteredNoise:
    """Returns the noise before the first round.

    Args:
        like: Tensors of the shapes and dtypes of one record.
        how: The filter.
        seed: A seed from `seeds.fresh`, which must not be used again.
    """
    count = how.weights.shape[1]
    holds_draws = how.keeps_draws and how.decays is None
    kind = tf.int32 if holds_draws else tf.float64
    return FilteredNoise(
        step=tf.constant(0, tf.int64),
        buffers=[tf.zeros([count, *x.shape], kind) for x in like],
        seed=seed,
    )


def growth(how: Filter, rounds: int) -> float:
    """Returns the largest stddev of the noise of a round, in draws.

    Args:
        how: The filter.
        rounds: The number of rounds of the mechanism.
    """
    # With one row for all rounds, each draw is heard as the first one is.
    draws = 1 if len(how.lead) == 1 else rounds
    buffers = np.zeros([how.weights.shape[1], draws])
    total, largest = np.zeros(draws), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(rounds):
            row = min(step, len(how.lead) - 1)
            made, drawn = how.weights[row] @ buffers, np.zeros(draws)
            if step < draws:
                drawn[step] = 1.0
                made[step] += how.lead[row]
            new = drawn if how.keeps_draws else made
            if how.decays is None:
                buffers = np.concatenate([new[np.newaxis], buffers])[
                    : len(buffers)
                ]
            else:
                buffers = how.decays[:, np.newaxis] * buffers + new
            square = np.square(made)
            total = total + square if draws == 1 else square
            largest = max(largest, float(np.sqrt(total.sum())))
            if not np.isfinite(total).all():
                return float("inf")
    return largest


def following(
    noise: FilteredNoise,
    how: Filter,
    rounds: int,
    like: list[tf.Tensor],
    stddev: tf.Tensor,
) -> tuple[list[tf.Tensor], FilteredNoise]:
    """Returns the noise of the next round in steps, and the state after it.

    After `rounds` rounds the noise is NaN, so that nothing is released without
    protection.

    Args:
        noise: The state before the round.
        how: The filter.
        rounds: The number of rounds of the mechanism.
        like: Tensors of the shapes of one record.
        stddev: The standard deviation of each draw, scalar.

    Returns:
        Noise in steps of the grid of `stddev`, float64, and the state.
    """
    drawn, seed = grid.draws(like, stddev, noise.seed)
    row = tf.minimum(noise.step, len(how.lead) - 1)
    lead = tf.where(
        noise.step < rounds,
        tf.constant(how.lead)[row],
        tf.constant(np.nan, tf.float64),
    )
    weights = tf.constant(how.weights)[row]

    decays = None if how.decays is None else tf.constant(how.decays)
    made, buffers = _made(
        drawn, noise.buffers, lead, weights, decays, how.keeps_draws
    )
    return made, FilteredNoise(noise.step + 1, buffers, seed)


# XLA reads and writes each buffer once.
@tf.function(autograph=False, jit_compile=True)
def _made(
    drawn: list[tf.Tensor],
    buffers: list[tf.Tensor],
    lead: tf.Tensor,
    weights: tf.Tensor,
    decays: tf.Tensor | None,
    keeps_draws: bool,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Returns the noise of each leaf, and the buffers after the round."""
    made, following = [], []
    for draw, kept in zip(drawn, buffers, strict=True):
        each = lead * tf.cast(draw, tf.float64)
        for number in range(kept.shape[0]):
            each += weights[number] * tf.cast(kept[number], tf.float64)
        new = tf.cast(draw if keeps_draws else each, kept.dtype)
        made.append(each)
        if decays is None:
            moved = tf.concat([new[tf.newaxis], kept], axis=0)
            following.append(moved[: kept.shape[0]])
        else:
            along = [-1] + [1] * new.shape.rank
            following.append(tf.reshape(decays, along) * kept + new)
    return made, following
