"""Tests whether the noise in an answer is the noise of its event.

The answer to a query with additive noise is `a (sum + noise)`. Moving the sum
gives the factor `a`. The rest is the noise of each coordinate.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.stats
import tensorflow as tf

from keras_dp import ledger
from keras_dp.dp_queries import DPQuery, Mechanism

Noise = npt.NDArray[np.float64]

# The chance that a test fails by accident. A training has few tests.
FALSE_ALARM = 1e-10
# So many draws tell a standard deviation to 0.8 %.
_DRAWS = 8000
_MOST_ROUNDS = 400
# In so many rounds, coordinates can be compared with each other.
_ENOUGH_ROUNDS = 80
_MOST_COORDINATES = 200_000
# The answers of a linear query follow its sums to this accuracy.
_LINEAR = 1e-3


class Measured(NamedTuple):
    """The measured noise of one event.

    Attributes:
        rounds: One array for each of several rounds, in the unit of the sum.
    """

    rounds: list[Noise]

    @property
    def all(self) -> Noise:
        """The draws of all rounds."""
        return np.concatenate(self.rounds)


def measured_noise(
    queries: Sequence[tuple[DPQuery, Any, Any]],
    mechanisms: Sequence[Mechanism],
    events: Sequence[ledger.SumQueryEvent],
) -> list[Measured | None]:
    """Returns the noise of each event, or `None` if it cannot be measured.

    Args:
        queries: Each query, with its sample and its state.
        mechanisms: The mechanisms of all queries, one for each event.
        events: The events in the ledger.
    """
    measured: list[Measured | None] = []
    start = 0
    for query, sample, state in queries:
        own = query.mechanisms(sample, state)
        part = events[start : start + len(own)]
        start += len(own)
        sizes = [len(tf.nest.flatten(each.sample_state)) for each in own]
        leaves = _noise_of(query, sample, state, part)
        if leaves is None or len(leaves) != sum(sizes):
            leaves = None
        place = 0
        for mechanism, event, size in zip(own, part, sizes, strict=True):
            found = None
            if leaves is not None:
                found = _joined(leaves[place : place + size])
                place += size
            if found is None and mechanism.query is not query:
                inner = _noise_of(*mechanism, [event])
                found = None if inner is None else _joined(inner)
            measured.append(found)
    return measured


def departure(event: ledger.SumQueryEvent, noise: Measured) -> str | None:
    """Returns a description of how noise departs from that of its event.

    Args:
        event: The event in the ledger.
        noise: The draws.

    Returns:
        `None` if it does not depart, or if the event has no known noise.
    """
    distribution = _distribution(event)
    if distribution is None:
        return None
    draws = noise.all
    if not np.isfinite(draws).all():
        return "the noise is not finite"
    scale, cdf = distribution
    if scale == 0:
        return "there is no noise: any accountant says epsilon = inf"
    spread = float(np.sqrt(np.mean(np.square(draws))))
    if np.isfinite(_variance(event)):
        chance = scipy.stats.chi2.cdf(
            np.sum(np.square(draws)) / _variance(event), draws.size
        )
        if min(chance, 1 - chance) < FALSE_ALARM:
            return (
                f"its standard deviation is {spread:.4g} on {draws.size:,} "
                f"draws, and {np.sqrt(_variance(event)):.4g} in the ledger"
            )
    if cdf is not None:
        shape = _other_shape(draws, cdf)
        if shape is not None:
            return shape
    return _repetition(noise)


def correlated(one: Measured, two: Measured) -> bool:
    """Returns whether the noises of two events depend on each other."""
    pairs = zip(one.rounds, two.rounds, strict=False)
    a, b = (
        np.concatenate(parts)
        for parts in zip(
            *((x[: y.size], y[: x.size]) for x, y in pairs), strict=True
        )
    )
    return _are_correlated(a, b)


def repeats_over_states(query: DPQuery, sample: Any) -> bool:
    """Returns whether two trainings would have the same noise.

    Args:
        query: A query without a fixed seed.
        sample: Any sample.
    """
    one, two = (
        query.get_noised_result(sample, query.initial_global_state()).value
        for _ in range(2)
    )
    pairs = zip(tf.nest.flatten(one), tf.nest.flatten(two), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def _repetition(noise: Measured) -> str | None:
    """Returns a description of how rounds or coordinates repeat noise."""
    again = "rounds have the same noise: a seed is used again"
    for one, two in itertools.pairwise(noise.rounds):
        if _are_correlated(one, two):
            return again
    draws = np.array(noise.rounds)
    rounds, size = draws.shape
    if rounds < _ENOUGH_ROUNDS:
        halves = draws[:, : size // 2], draws[:, -(size // 2) :]
        if _are_correlated(*(each.ravel() for each in halves)):
            return "half of the coordinates have the noise of the others"
        return None
    if _are_correlated(draws[:-1].ravel(), draws[1:].ravel()):
        return again
    if 1 < size <= rounds:
        ranks = scipy.stats.rankdata(draws, axis=0)
        if not np.ptp(ranks, axis=0).all():
            return again
        matrix = np.abs(np.corrcoef(ranks, rowvar=False))
        np.fill_diagonal(matrix, 0.0)
        chance = FALSE_ALARM / size**2
        if matrix.max() > scipy.stats.norm.isf(chance) / np.sqrt(rounds):
            return "coordinates have the same noise"
    return None


def _other_shape(draws: Noise, cdf: Any) -> str | None:
    """Compares counts in bins of the distribution, its tails, and ties."""
    inner = np.linspace(0, 1, max(3, min(20, draws.size // 50)) + 1)
    outer = min(0.25, 20 / draws.size)
    edges = np.unique([*inner, outer, 1 - outer])
    places = np.clip(cdf(draws), 0, 1)
    counts, _ = np.histogram(places, edges)
    test = scipy.stats.chisquare(counts, np.diff(edges) * draws.size)
    if test.pvalue < FALSE_ALARM:
        return (
            f"{draws.size:,} draws are not of the distribution in the ledger "
            f"(chi-square p = {test.pvalue:.2g})"
        )
    farthest = float(np.max(np.abs(draws)))
    if draws.size * np.log(max(1e-300, 1 - 2 * cdf(-farthest))) < np.log(
        FALSE_ALARM
    ):
        return f"the noise is cut off at {farthest:.4g}"
    if len(np.unique(draws)) < 0.9 * draws.size:
        return "coordinates share one draw"
    return None


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


def _distribution(event: ledger.SumQueryEvent) -> Any:
    """Returns the scale of the noise, and its cdf if it is continuous."""
    if isinstance(event, ledger.GaussianSum):
        cdf = scipy.stats.norm(scale=event.noise_stddev or 1.0).cdf
        return event.noise_stddev, cdf
    if isinstance(event, ledger.DiscreteGaussianSum):
        return event.noise_scale, None
    if isinstance(event, ledger.EncodedSum):
        return event.noise.scale, event.noise.cdf
    return None


def _variance(event: ledger.SumQueryEvent) -> float:
    if isinstance(event, ledger.GaussianSum):
        return event.noise_stddev**2
    if isinstance(event, ledger.EncodedSum):
        return event.noise.variance if _is_light(event) else np.inf
    if isinstance(event, ledger.DiscreteGaussianSum) and event.noise_scale >= 1:
        return event.noise_scale**2
    return np.inf  # Below 1 the variance is smaller.


def _is_light(event: ledger.EncodedSum) -> bool:
    """Returns whether squares of the noise add up as those of a Gaussian."""
    return isinstance(event.noise, ledger.GaussianNoise)


def _joined(leaves: Sequence[list[Noise]]) -> Measured | None:
    if any(not leaf for leaf in leaves):
        return None
    rounds = [
        np.concatenate(parts)[:_MOST_COORDINATES]
        for parts in zip(*leaves, strict=True)
    ]
    return Measured(rounds)


def _noise_of(
    query: DPQuery,
    sample: Any,
    state: Any,
    events: Sequence[ledger.SumQueryEvent],
) -> list[list[Noise]] | None:
    """Returns the noise on each leaf of the answer, over several rounds.

    Returns:
        `None` if the answers do not have the structure of the sums. A leaf
        whose answers are not a multiple of its sum has an empty list.
    """
    sums = tf.nest.flatten(sample)
    scale = max(
        [1e-6]
        + [8 * float(_distribution(e)[0]) for e in events if _distribution(e)]
        + [getattr(e, "l2_norm_bound", 0.0) for e in events]
    )
    release = tf.function(query.get_noised_result, autograph=False)
    first = release(sample, state)
    answers = tf.nest.flatten(first.value)
    if [a.shape for a in answers] != [s.shape for s in sums]:
        return None
    moves = [_move(leaf, scale) for leaf in sums]
    moved = release(
        tf.nest.pack_sequence_as(
            sample, [s + m for s, m in zip(sums, moves, strict=True)]
        ),
        state,
    )
    factors = [
        _factor(*map(_wide, each))
        for each in zip(
            answers, tf.nest.flatten(moved.value), moves, strict=True
        )
    ]
    size = sum(np.size(leaf) for leaf in sums)
    rounds = int(np.clip(-(-_DRAWS // max(1, size)), 2, _MOST_ROUNDS))
    noises: list[list[Noise]] = [[] for _ in sums]
    for _ in range(rounds):
        result = release(sample, state)
        state = result.global_state
        for own, factor, answer, leaf in zip(
            noises, factors, tf.nest.flatten(result.value), sums, strict=True
        ):
            if factor is not None:
                own.append((_wide(answer) / factor - _wide(leaf)).ravel())
    return noises


def _wide(leaf: Any) -> Noise:
    return np.asarray(leaf, np.float64)


def _move(leaf: tf.Tensor, scale: float) -> tf.Tensor:
    """Returns a vector of this scale that differs in all coordinates."""
    size = np.size(leaf)
    values = scale * np.cos(1 + 2.4 * np.arange(size)).reshape(leaf.shape)
    if not leaf.dtype.is_floating:
        values = np.rint(np.where(np.abs(values) < 1, 1, values))
    return tf.cast(tf.constant(values), leaf.dtype)


def _factor(before: Noise, after: Noise, move: Noise) -> float | None:
    """Returns the factor between a sum and its answer, if it is constant."""
    with np.errstate(all="ignore"):
        change = after - before
        factor = float(np.vdot(change, move) / np.vdot(move, move))
        error = np.max(np.abs(change - factor * move), initial=0.0)
        if not error <= _LINEAR * abs(factor) * np.max(np.abs(move)):
            return None
    return factor or None
