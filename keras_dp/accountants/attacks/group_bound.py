"""The privacy of a group, from the bounds for one record and nothing else.

A group of `k` records is a chain of neighbours: the laws `P_0, ..., P_k` of
the releases, of which each is next to the one before. From `P_1(S) <= d_1 +
e^(e_1) P_0(S)`, `P_2(S) <= d_2 + e^(e_2) P_1(S)` and so on follows a bound on
`P_k(S)` by `P_0(S)`, a line with slope `e^(e_1 + ... + e_k)`. The best lines
for all `P_0(S)` at once are the `k`-fold composition of the curve of one
record: Dong, Roth, Su (2019), arXiv:1905.02383v3, Theorem 2.14.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.attacks.trade_off import TradeOff, curve_of
from keras_dp.accountants.normalize.mechanisms import CountedMechanism

# Of the curve of one record, from which the generic bound is made.
_LINES = 100
# Nothing is known below it, next to the least floats.
_LEAST_RATE = 1e-300
# The curve of one record ends where it matters by less than this share.
_END = 1e-4
# Steps in search of that end.
_GROWTH = 1.3
# Each doubles the number of lines where they are needed.
_REFINEMENTS = 4
# Of sums of that many positive terms, relative.
_ROUND_UP = 1e-15


def generic_epsilon(
    accountant: Accountant,
    rounds: tuple[CountedMechanism, ...],
    group_size: int,
    delta: float,
) -> float:
    """Returns an epsilon of a group, `inf` if none is found.

    Args:
        accountant: Has a bound for all rounds.
        rounds: What a ledger normalizes to.
        group_size: >= 1.
        delta: In (0, 1).
    """
    log_delta = math.log(delta)
    lines = _refined(
        accountant,
        rounds,
        group_size,
        _end_for_delta(accountant, rounds, group_size, log_delta),
        lambda lines: _below(lines, log_delta),
    )
    return _epsilon_at(lines, log_delta)


def generic_delta(
    accountant: Accountant,
    rounds: tuple[CountedMechanism, ...],
    group_size: int,
    epsilon: float,
) -> float:
    """Returns a delta of a group, 1 if none is found.

    Args:
        accountant: Has a bound for all rounds.
        rounds: What a ledger normalizes to.
        group_size: >= 1.
        epsilon: Finite and >= 0.
    """

    def found(least_rate: float) -> float:
        lines = _refined(
            accountant,
            rounds,
            group_size,
            least_rate,
            lambda lines: _above(lines, epsilon),
        )
        return _log_delta_at(lines, epsilon)

    # With equal shares for all records; the best ones can be far better.
    share = epsilon / group_size
    delta = max(accountant.delta_of(rounds, share), _LEAST_RATE)
    equal = math.log(delta) + _log_growth(share, group_size)
    log_delta = found(_end(equal, epsilon) if equal < 0 else _LEAST_RATE)
    if log_delta < min(equal, 0.0) - 1:
        log_delta = min(log_delta, found(_end(log_delta, epsilon)))
    return min(1.0, max(math.exp(log_delta), math.ulp(0.0)))


def _end_for_delta(
    accountant: Accountant,
    rounds: tuple[CountedMechanism, ...],
    group_size: int,
    log_delta: float,
) -> float:
    """Returns where the curve of one record may end.

    With equal shares `e` of epsilon for all records; the best are not more.
    """
    share = accountant.epsilon_of(rounds, math.exp(log_delta) / group_size)
    while 0 < share < math.inf:
        delta = accountant.delta_of(rounds, share)
        if delta <= _LEAST_RATE:
            return _LEAST_RATE
        if math.log(delta) + _log_growth(share, group_size) <= log_delta:
            break
        share *= _GROWTH
    return _end(log_delta, group_size * share)


def _end(log_delta: float, epsilon: float) -> float:
    end = log_delta - epsilon + math.log(_END)
    return math.exp(max(end, math.log(_LEAST_RATE)))


def _log_growth(share: float, group_size: int) -> float:
    """Returns the log of `1 + e^share + ... + e^((k-1) share)`."""
    if share == 0:
        return math.log(group_size)
    most = (group_size - 1) * share
    return most + math.log(math.expm1(-group_size * share) / math.expm1(-share))


class _Lines(NamedTuple):
    """Lines above the true positive rates of attacks on a group.

    Attributes:
        log_slopes: Rising, >= 0: each is an epsilon.
        log_deltas: Falling.
        chains: Which line of one record each is made of, `[k, n]`.
    """

    log_slopes: Array
    log_deltas: Array
    chains: NDArray[np.intp]


def _refined(
    accountant: Accountant,
    rounds: tuple[CountedMechanism, ...],
    group_size: int,
    least_rate: float,
    position: Callable[[_Lines], int],
) -> _Lines:
    """Returns lines for the group, dense where the one in question is."""
    curve = curve_of(
        accountant,
        rounds,
        lines=_LINES,
        least_rate=least_rate,
        tail_weight=1.0,
    )
    lines = _composed(curve, group_size, least_rate)
    for _ in range(_REFINEMENTS):
        near = position(lines)
        columns = lines.chains[:, max(near - 1, 0) : near + 1]
        curve = _denser(accountant, rounds, curve, columns)
        lines = _composed(curve, group_size, least_rate)
    return lines


def _denser(
    accountant: Accountant,
    rounds: tuple[CountedMechanism, ...],
    curve: TradeOff,
    used: NDArray[np.intp],
) -> TradeOff:
    """Returns the curve with new lines on both sides of those in use."""
    found = dict(zip(curve.epsilons, curve.deltas, strict=True))
    epsilons = curve.epsilons
    # Lines from `len(epsilons)` on are the mirror images.
    for index in np.unique(used % len(epsilons)):
        for left in (index - 1, index):
            if 0 <= left < len(epsilons) - 1:
                middle = (epsilons[left] + epsilons[left + 1]) / 2
                if middle not in found:
                    found[middle] = accountant.delta_of(rounds, middle)
    return TradeOff(*zip(*sorted(found.items()), strict=True))


def _composed(curve: TradeOff, group_size: int, least_rate: float) -> _Lines:
    """Returns lines for a group, each a chain of lines for one record.

    From `P_1(S) <= d_1 + e^(e_1) P_0(S)`, `P_2(S) <= d_2 + e^(e_2) P_1(S)`
    and so on follows a line with slope `e^(e_1 + ... + e_k)`. Chains are
    those that are lowest at some false positive rate.
    """
    epsilons, deltas = np.array(curve.epsilons), np.array(curve.deltas)
    with np.errstate(divide="ignore"):
        steep = np.log(deltas)
        flat = np.log(-np.expm1(np.log1p(-deltas) - epsilons))
    log_slopes = np.concatenate([epsilons, -epsilons])
    log_deltas = np.concatenate([steep, flat])
    x = _starts(curve, least_rate)
    slopes = np.zeros_like(x)
    offsets = np.full_like(x, -np.inf)
    chains = []
    for _ in range(group_size):
        heights = np.logaddexp(log_deltas, log_slopes + x[:, None])
        lowest = np.argmin(heights, axis=1)
        chains.append(lowest)
        x = np.minimum(heights[np.arange(x.size), lowest], 0.0)
        slopes = slopes + log_slopes[lowest]
        offsets = np.logaddexp(log_deltas[lowest], log_slopes[lowest] + offsets)
    slopes = np.maximum(slopes * (1 + group_size * _ROUND_UP), 0.0)
    offsets = np.maximum(offsets, math.log(_LEAST_RATE))
    offsets = offsets + group_size * _ROUND_UP * (1 + np.abs(offsets))
    order = np.lexsort([offsets, slopes])
    least = np.minimum.accumulate(
        np.concatenate([[np.inf], offsets[order][:-1]])
    )
    order = order[offsets[order] < least]
    return _Lines(slopes[order], offsets[order], np.stack(chains)[:, order])


def _starts(curve: TradeOff, least_rate: float) -> Array:
    """Returns logs of false positive rates, some for each line."""
    corners = np.log(
        np.array([each for each in curve.corners if each > least_rate])
    )
    ends = np.array([math.log(least_rate), *corners, 0.0])
    return np.concatenate([ends, (ends[1:] + ends[:-1]) / 2])


def _below(lines: _Lines, log_delta: float) -> int:
    """Returns the first line with at most this delta."""
    return int(np.searchsorted(-lines.log_deltas, -log_delta))


def _above(lines: _Lines, epsilon: float) -> int:
    """Returns the first line with more than this epsilon."""
    return int(np.searchsorted(lines.log_slopes, epsilon, side="right"))


def _epsilon_at(lines: _Lines, log_delta: float) -> float:
    """Returns epsilon between two lines: a mixture of them is one, too."""
    right = _below(lines, log_delta)
    if right == lines.log_slopes.size:
        return math.inf
    high = float(lines.log_slopes[right])
    if right == 0:
        return high
    low = float(lines.log_slopes[right - 1])
    deltas = np.exp(lines.log_deltas[right - 1 : right + 1] - log_delta)
    share = (1 - deltas[1]) / (deltas[0] - deltas[1]) * (1 - _ROUND_UP)
    found = high + math.log1p(max(0.0, share) * math.expm1(low - high))
    return found * (1 + _ROUND_UP)


def _log_delta_at(lines: _Lines, epsilon: float) -> float:
    """Returns log delta between two lines: a mixture of them is one, too."""
    right = _above(lines, epsilon)
    if right == 0:
        return 0.0
    low, high_delta = lines.log_slopes[right - 1], lines.log_deltas[right - 1]
    if right == lines.log_slopes.size:
        return float(high_delta)
    high, low_delta = lines.log_slopes[right], lines.log_deltas[right]
    share = math.expm1(epsilon - high) / math.expm1(low - high)
    share = min(1.0, share * (1 + _ROUND_UP))
    ratio = math.expm1(low_delta - high_delta)
    return float(high_delta + math.log1p((1 - share) * ratio) + _ROUND_UP)
