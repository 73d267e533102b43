"""Measures the noise in answers, and compares it with that of the ledger.

The answer to a query with additive noise is `a (sum + noise)`. Moving the sum
gives the factor `a`, and shows whether the noise moves with the sum. The noise
is then drawn on an empty sum, where nothing rounds it: on all coordinates in
some rounds, and on about a hundred coordinates in thousands of rounds. These
rounds are the query alone, without a training step. The training draws the same
noise later, so that the draws are secret.

The event has a cdf, which turns the draws into standard normal variables, so
that `normal_draws` tests them alike for every kind of noise.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import scipy.stats
import tensorflow as tf
from scipy import special

from keras_dp import ledger
from keras_dp.auditing import normal_draws, sensitivity
from keras_dp.auditing.normal_draws import BITS_OF_FLOAT, FALSE_ALARM
from keras_dp.dp_queries import DPQuery, QueryResult

Noise = npt.NDArray[np.float64]
# The noise of one event, in the unit of the sum, as arrays `[rounds,
# coordinates]`: of all coordinates, and of a few in many rounds. It is empty if
# the noise moves with the sum.
Measured: TypeAlias = list[Noise]

# So many draws tell a standard deviation that is 2 % too small: its sum of
# squares is 12.6 standard deviations away, and a false alarm at 6.4.
_DRAWS = 200_000
_MOST_ROUNDS = 400
# One round in a hundred is missed with a probability of 2e-9.
_MANY_ROUNDS = 2000
_FEW_COORDINATES = 100
_MOST_VALUES = 2_000_000
# The answers of a linear query follow its sums to this accuracy.
_LINEAR = 1e-3
# Sums of 1, 30 and 1,000 records, or of as many times the noise.
_SIZES_OF_SUMS = (1, 30, 1000)
# A query may refuse sums of another shape than those of its records.
_OTHER_SHAPE = (TypeError, ValueError, tf.errors.OpError)


def measured_noise(
    queries: Sequence[tuple[DPQuery, Any, Any]],
    events: Sequence[ledger.SumQueryEvent],
) -> list[Measured | None]:
    """Returns the noise of each event, or `None` if it cannot be measured.

    Each query comes with its sample and its state.
    """
    measured: list[Measured | None] = []
    start = 0
    for query, sample, state in queries:
        own = query.mechanisms(sample, state)
        part = events[start : start + len(own)]
        start += len(own)
        sizes = [len(keras.tree.flatten(each.sample_state)) for each in own]
        leaves = _noise_of(query, sample, state, part)
        if leaves is None or len(leaves) != sum(sizes):
            leaves = None
        place = 0
        for mechanism, event, size in zip(own, part, sizes, strict=True):
            found = None
            if leaves is not None:
                found = _joined(leaves[place : place + size])
                place += size
            if not found:
                inner = _noise_of(*mechanism, [event])
                found = None if inner is None else _joined(inner)
            measured.append(found)
    return measured


def departure(event: ledger.SumQueryEvent, noise: Measured) -> str | None:
    """Returns a description of how noise departs from that of its event.

    It is `None` if it does not depart, or if the event has no known noise.
    """
    known = _distribution(event)
    if known is None:
        return None
    if not noise:
        return (
            "the noise changes with the sum, or the answer is no multiple of "
            "the sum with its noise. Let a query around this one change answers"
        )
    for draws in noise:
        if not np.isfinite(draws).all():
            return "the noise is not finite"
        if known.scale == 0 or not draws.any():
            return "there is no noise: any accountant says epsilon = inf"
        found = normal_draws.repetition(
            draws, BITS_OF_FLOAT
        ) or normal_draws.departure(known.normal(draws))
        if found is None and _is_coarse(draws):
            found = "the noise is on a coarse grid"
        if found is not None:
            return found
    return None


def is_known(event: ledger.SumQueryEvent) -> bool:
    """Returns whether the event says what the noise of each round is."""
    return _distribution(event) is not None


def correlated(one: Measured, two: Measured) -> bool:
    """Returns whether the noises of two events depend on each other."""
    for a, b in zip(one, two, strict=False):
        rounds, size = (
            min(each) for each in zip(a.shape, b.shape, strict=True)
        )
        pair = (each[:rounds, :size].ravel() for each in (a, b))
        if _are_correlated(*pair):
            return True
    return False


def repeats_over_states(query: DPQuery, sample: Any) -> bool:
    """Returns whether two trainings would have the same noise.

    The query must have no fixed seed.
    """
    one, two = (
        query.get_noised_result(sample, query.initial_global_state()).value
        for _ in range(2)
    )
    pairs = zip(keras.tree.flatten(one), keras.tree.flatten(two), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _is_coarse(draws: Noise) -> bool:
    some = draws.ravel()[:_DRAWS]
    return len(np.unique(some)) < 0.9 * some.size


def _are_correlated(a: Noise, b: Noise) -> bool:
    if a.size < 16:
        return False
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return bool(np.ptp(a) == np.ptp(b) and a[0] == b[0])
    # Ranks have moments whatever the noise.
    a, b = (scipy.stats.rankdata(each) for each in (a, b))
    correlation = abs(float(np.corrcoef(a, b)[0, 1]))
    limit = scipy.stats.norm.isf(FALSE_ALARM) / np.sqrt(a.size)
    return bool(correlation > min(limit, 0.99))


class _Distribution(NamedTuple):
    """The scale of a noise, 0 for none, and what makes its draws normal."""

    scale: float
    normal: Callable[[Noise], Noise]


@functools.singledispatch
def _distribution(event: ledger.SumQueryEvent) -> _Distribution | None:
    """Returns the noise of an event, if it is the same in each round."""
    return None


@_distribution.register
def _(event: ledger.GaussianSum) -> _Distribution:
    scale = event.noise_stddev
    return _Distribution(scale, lambda draws: draws / scale)


@_distribution.register
def _(event: ledger.EncodedSum) -> _Distribution:
    cdf = event.noise.cdf

    def normal(draws: Noise) -> Noise:
        # The lower tail keeps its digits.
        tail = np.maximum(cdf(-np.abs(draws)), 1e-300)
        return np.asarray(-np.sign(draws) * special.ndtri(tail))

    return _Distribution(event.noise.scale, normal)


def _joined(leaves: Sequence[Measured | None]) -> Measured:
    known = [leaf for leaf in leaves if leaf is not None]
    if len(known) < len(leaves):
        return []
    return [np.concatenate(parts, axis=1) for parts in zip(*known, strict=True)]


def _noise_of(
    query: DPQuery,
    sample: Any,
    state: Any,
    events: Sequence[ledger.SumQueryEvent],
) -> list[Measured | None] | None:
    """Returns the noise on each leaf of the answer.

    The result is `None` if the answers do not have the structure of the sums,
    and a list of `None` if an answer does not follow its sum in a straight
    line.
    """
    empty = keras.tree.map_structure(tf.zeros_like, sample)
    sums = keras.tree.flatten(empty)
    release = tf.function(query.get_noised_result, autograph=False)

    def answers(move: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        moved = keras.tree.pack_sequence_as(empty, move)
        return list(keras.tree.flatten(release(moved, state).value))

    if [a.shape for a in answers(sums)] != [leaf.shape for leaf in sums]:
        return None
    known = [d for d in map(_distribution, events) if d is not None]
    scale = max(
        [1e-6]
        + [8 * float(each.scale) for each in known]
        + [getattr(event, "l2_norm_bound", 0.0) for event in events]
    )
    units = [
        unit
        for mechanism in query.mechanisms(sample, state)
        for unit in sensitivity.units_of(mechanism)
    ]
    if len(units) != len(sums):
        units = [1.0 for _ in sums]
    moves = [
        [
            _move(leaf, size * scale / unit)
            for leaf, unit in zip(sums, units, strict=True)
        ]
        for size in _SIZES_OF_SUMS
    ]
    moves.append(keras.tree.flatten(sample))
    factors = _factors(answers, sums, moves, units, scale)
    if factors is None:
        return [None for _ in sums]
    size = sum(np.size(leaf) for leaf in sums)
    rounds = int(np.clip(-(-_DRAWS // max(1, size)), 2, _MOST_ROUNDS))
    few = -(-_FEW_COORDINATES // len(sums))
    narrow = [tf.zeros([few], leaf.dtype) for leaf in sums]
    drawn = [_drawn(query, empty, state, rounds)]
    try:
        resized = keras.tree.pack_sequence_as(empty, narrow)
        drawn.append(_drawn(query, resized, state, _MANY_ROUNDS))
    except _OTHER_SHAPE:
        rounds = min(_MANY_ROUNDS, max(rounds, _MOST_VALUES // max(1, size)))
        drawn = [_drawn(query, empty, state, rounds)]
    return [
        [part / factor for part in parts]
        for factor, *parts in zip(factors, *drawn, strict=True)
    ]


def _factors(
    answers: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]],
    sums: list[tf.Tensor],
    moves: Sequence[Sequence[tf.Tensor]],
    units: Sequence[float],
    scale: float,
) -> list[float] | None:
    """Returns the factor between each sum and its answer.

    `answers` adds noise of one seed to any sums. The first of the `moves` gives
    the factors. The result is `None` unless all answers are these multiples of
    the sums, to a thousandth of `scale`, plus noise that is the same for all.
    """
    start = [_wide(answer) for answer in answers(sums)]
    factors: list[float] = []
    for move in moves:
        steps = [
            _wide(leaf) * unit for leaf, unit in zip(move, units, strict=True)
        ]
        changes = [
            _wide(after) - before
            for after, before in zip(answers(move), start, strict=True)
        ]
        with np.errstate(all="ignore"):
            factors = factors or [
                float(np.vdot(change, step) / np.vdot(step, step))
                for change, step in zip(changes, steps, strict=True)
            ]
            for change, step, factor in zip(
                changes, steps, factors, strict=True
            ):
                error = np.max(np.abs(change - factor * step), initial=0.0)
                if not (factor and error <= _LINEAR * abs(factor) * scale):
                    return None
    return factors


def _drawn(query: DPQuery, sums: Any, state: Any, rounds: int) -> list[Noise]:
    """Returns answers to one sum in several rounds, `[rounds, coordinates]`.

    Answers of many coordinates are cut to the first of each leaf.
    """
    leaves = len(keras.tree.flatten(sums))
    most = max(_FEW_COORDINATES, _MOST_VALUES // (rounds * leaves))

    def kept(result: QueryResult) -> list[tf.Tensor]:
        answers = keras.tree.flatten(result.value)
        return [tf.reshape(answer, [-1])[:most] for answer in answers]

    def in_rounds(state: Any) -> tf.Tensor:
        def a_round(number: tf.Tensor, state: Any, array: Any) -> Any:
            result = query.get_noised_result(sums, state)
            # Float64 holds floats and integers, and one array is fastest.
            wide = [tf.cast(part, tf.float64) for part in kept(result)]
            array = array.write(number, tf.concat(wide, axis=0))
            return number + 1, result.global_state, array

        start = tf.constant(0), state, tf.TensorArray(tf.float64, rounds)
        *_, array = tf.while_loop(
            lambda number, *_: number < rounds, a_round, start
        )
        return array.stack()

    sizes = [min(most, np.size(leaf)) for leaf in keras.tree.flatten(sums)]
    drawn = np.asarray(tf.function(in_rounds, autograph=False)(state))
    return np.split(drawn, np.cumsum(sizes)[:-1], axis=1)


def _wide(leaf: Any) -> Noise:
    return np.asarray(leaf, np.float64)


def _move(leaf: tf.Tensor, scale: float) -> tf.Tensor:
    """Returns a vector of this scale that differs in all coordinates."""
    size = np.size(leaf)
    values = scale * np.cos(1 + 2.4 * np.arange(size)).reshape(leaf.shape)
    if not leaf.dtype.is_floating:
        values = np.rint(np.where(np.abs(values) < 1, 1, values))
    return tf.cast(tf.constant(values), leaf.dtype)
