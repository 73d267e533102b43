"""Noise that is correlated over rounds: draws, and buffers of earlier rounds.

Round `t` has the noise `(C^-1 z)_t` for a strategy C and independent draws `z`.
`Strategy.filter` says which buffers this takes: one for each band of C but the
first, or one for each decay. Buffers are kept, because on
CPUs a draw costs more than the memory traffic of several buffers. A restart
needs no work: a buffer is not read before it has noise of the new mechanism.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_dp.ledger.events.strategies import Filter
from keras_dp.noise import grid, xla


class FilteredNoise(NamedTuple):
    """The noise of a mechanism, or of several in turn, after some rounds.

    There is a list of buffers for each leaf of a record, of float64 and in
    steps of the grid. The seed is that of the next draw.
    """

    step: tf.Tensor
    buffers: list[list[tf.Tensor]]
    seed: tf.Tensor


def initial(
    like: list[tf.Tensor], how: Filter, seed: tf.Tensor
) -> FilteredNoise:
    """Returns the noise before the first round."""
    count = how.weights.shape[1]
    return FilteredNoise(
        step=tf.constant(0, tf.int64),
        buffers=[[tf.zeros(x.shape, tf.float64)] * count for x in like],
        seed=seed,
    )


def following(
    noise: FilteredNoise,
    how: Filter,
    rounds: int,
    sums: list[tf.Tensor],
    stddev: tf.Tensor,
    *,
    period: int,
) -> tuple[list[tf.Tensor], FilteredNoise]:
    """Returns sums with the noise of the next round, and the state after it.

    Both are rounded to the grid of the draws. After `rounds` rounds, those of
    all mechanisms, the noise is NaN, so that nothing is released without
    protection. A new mechanism begins after each `period`. The stddev is that
    of a draw.
    """
    drawn, seed = grid.draws(sums, stddev, noise.seed)
    before = noise.step % period
    if how.order is None:
        row = tf.minimum(before, len(how.lead) - 1)
    else:
        row = tf.cast(tf.constant(how.order)[before], tf.int64)
    lead = tf.where(
        noise.step < rounds,
        tf.constant(how.lead)[row],
        tf.constant(np.nan, tf.float64),
    )
    is_of_now = before > tf.range(how.weights.shape[1], dtype=tf.int64)
    if how.decays is not None:
        is_of_now = before > 0
    weights = tf.where(is_of_now, tf.constant(how.weights)[row], 0.0)

    g = grid.spacing(stddev)
    # XLA reads each buffer once.
    answers, made = xla.compiled(_answered)(
        sums, drawn, noise.buffers, g, lead, weights
    )
    if how.decays is None:  # Buffers move by one place, without a copy.
        buffers = [
            [each, *kept][: len(kept)]
            for each, kept in zip(made, noise.buffers, strict=True)
        ]
    else:
        decays = tf.where(is_of_now, tf.constant(how.decays)[row], 0.0)
        buffers = xla.compiled(_decayed)(noise.buffers, made, decays)
    return answers, FilteredNoise(noise.step + 1, buffers, seed)


def _answered(
    sums: list[tf.Tensor],
    drawn: list[tf.Tensor],
    buffers: list[list[tf.Tensor]],
    g: tf.Tensor,
    lead: tf.Tensor,
    weights: tf.Tensor,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    answers, made = [], []
    for total, draw, kept in zip(sums, drawn, buffers, strict=True):
        each = lead * tf.cast(draw, tf.float64)
        for number, buffer in enumerate(kept):
            each += weights[number] * buffer
        answers.append(grid.with_noise(total, each, g, g))
        made.append(each)
    return answers, made


def _decayed(
    buffers: list[list[tf.Tensor]], new: list[tf.Tensor], decays: tf.Tensor
) -> list[list[tf.Tensor]]:
    return [
        [decays[number] * buffer + each for number, buffer in enumerate(kept)]
        for each, kept in zip(new, buffers, strict=True)
    ]
