"""The search of calibration: few evaluations, never above the target.

Parameters are given by their logarithm, turned so that epsilon falls in them.
Log epsilon is a smooth function of the parameter and nearly straight, so that
the root finder takes a handful of evaluations.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_dp.accountants.roots import least_safe

# The first step is a little longer than what would do if epsilon were inverse
# to the parameter; further ones are twice the one before.
_OVERSHOOT, _SHORTEST_STEP, _LONGEST_STEP = 1.1, 0.05, math.log(100.0)
# How far below that of the target log epsilon may remain.
_PRECISION = 1e-7
# Logarithms of parameters that are nearer to each other are not told apart.
_NEAREST = 1e-11
# The same of the logarithms of counts.
_NEAREST_COUNTS = 1e-9
# log() of it stands for an infinite epsilon, or the log of a zero one.
_HUGE, _TINY = 1e300, 1e-300


class Unreachable(NamedTuple):
    """No parameter meets the target.

    Attributes:
        epsilon: The least one that was found.
    """

    epsilon: float


def least_that_meets(
    epsilon: Callable[[float], float],
    target_epsilon: float,
    *,
    least: float,
    most: float,
    start: float,
) -> float | Unreachable:
    """Returns the least parameter at which epsilon is at most the target.

    Args:
        epsilon: A nonincreasing function of the parameter.
        target_epsilon: > 0.
        least: Lower end of the parameter. It is returned if it meets the
            target already, however far below it.
        most: Upper end of the parameter.
        start: A first guess between them.
    """
    excess = _log_excess(epsilon, target_epsilon)
    bracket = _bracket(excess, least, most, start, _PRECISION)
    if not isinstance(bracket, _Bracket):
        return _or_unreachable(bracket, excess, target_epsilon)
    return least_safe(excess, *bracket, nearest=_NEAREST, precision=_PRECISION)


def most_that_meet(
    epsilon: Callable[[int], float],
    target_epsilon: float,
    *,
    most: int,
    start: int,
) -> int | Unreachable:
    """Returns the largest count from 1 at which epsilon is at most the target.

    Beyond 1e9: up to a share of 1e-9.

    Args:
        epsilon: A nondecreasing function of the count.
        target_epsilon: > 0.
        most: The largest count. It is returned if it meets the target.
        start: A first guess.
    """
    of_count = _log_excess(epsilon, target_epsilon)

    def excess(at: float) -> float:
        return of_count(_count(at))

    bracket = _bracket(excess, -math.log(most), 0.0, -math.log(start), 0.0)
    if not isinstance(bracket, _Bracket):
        found = _or_unreachable(bracket, excess, target_epsilon)
        return found if isinstance(found, Unreachable) else _count(found)
    too_many = _count(bracket.unsafe)
    nearest = max(_NEAREST_COUNTS, 1 / too_many)
    enough = _count(least_safe(excess, *bracket, nearest=nearest))
    # The root finder leaves a few counts.
    too_many = min(too_many, enough + math.ceil(2 * nearest * enough) + 1)
    while of_count(too_many) <= 0:
        enough, too_many = too_many, 2 * too_many - enough
    while too_many - enough > max(1, _NEAREST_COUNTS * enough):
        middle = (enough + too_many) // 2
        if of_count(middle) > 0:
            too_many = middle
        else:
            enough = middle
    return enough


class _Bracket(NamedTuple):
    """Parameters on both sides of the target."""

    unsafe: float
    safe: float


def _bracket(
    excess: Callable[[float], float],
    least: float,
    most: float,
    start: float,
    precision: float,
) -> _Bracket | float:
    """Returns a bracket around the target, or where the search ends.

    The search ends at `least` if that meets the target, at `most` if that
    does not, or where the target is met to within the precision.
    """
    at, value = start, excess(start)
    step = _OVERSHOOT * abs(value)
    step = min(max(step, _SHORTEST_STEP), _LONGEST_STEP)
    direction, end = (1, most) if value > 0 else (-1, least)
    while True:
        if at == end or (-precision <= value <= 0 and direction < 0):
            return at
        before = at
        at = min(max(at + direction * step, least), most)
        value = excess(at)
        if (value <= 0) == (direction > 0):
            return _Bracket(*sorted((before, at)))
        step *= 2


def _or_unreachable(
    at: float, excess: Callable[[float], float], target_epsilon: float
) -> float | Unreachable:
    if excess(at) <= 0:
        return at
    return Unreachable(target_epsilon * math.exp(excess(at)))


def _log_excess(
    epsilon: Callable[[Any], float],
    target_epsilon: float,
) -> Callable[[float], float]:
    """Returns how far log epsilon is above that of the target."""

    @functools.cache
    def excess(at: float) -> float:
        value = min(max(epsilon(at), _TINY), _HUGE)
        found = math.log(value) - math.log(target_epsilon)
        if value > target_epsilon:  # Which logarithms may not tell.
            return max(found, math.ulp(0.0))
        return min(found, 0.0)

    return excess


def _count(at: float) -> int:
    """Returns the `n` of `-log(n)`."""
    return round(math.exp(-at))
