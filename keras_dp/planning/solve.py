"""The search of calibration. Its results never exceed the target.

A parameter is the logarithm of a quantity, with the sign for which epsilon
decreases in it. The logarithm of epsilon is a smooth, nearly linear function of
the parameter, so that the root finder needs few evaluations.
"""

import bisect
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

from keras_dp.accountants.roots import least_safe

# The first step would be a little too long if epsilon were inversely
# proportional to the quantity. Each further step is twice the one before.
_OVERSHOOT, _SHORTEST_STEP, _LONGEST_STEP = 1.1, 0.05, math.log(100.0)
# Log epsilon may stay this far below the log of the target.
PRECISION = 1e-7
# The root finder stops when parameters are this near to each other, as a share
# of the precision: epsilon jumps there.
_NEAREST = 1e-4
# The same for the logarithms of counts.
_NEAREST_COUNTS = 1e-9
# Epsilons are clipped to these values before their logarithm is taken.
_HUGE, _TINY = 1e300, 1e-300


class Unreachable(NamedTuple):
    """The result of a search in which no parameter meets the target.

    Attributes:
        epsilon: The epsilon at the most private parameter.
    """

    epsilon: float


def least_that_meets(
    epsilon: Callable[[float], float],
    target_epsilon: float,
    *,
    least: float,
    most: float,
    start: float,
    precision: float = PRECISION,
) -> float | Unreachable:
    """Returns the least parameter at which epsilon is at most the target.

    Args:
        epsilon: A nonincreasing function of the parameter.
        target_epsilon: > 0.
        least: The lower end of the parameter. It is returned if it meets the
            target.
        most: The upper end of the parameter.
        start: A first guess in `[least, most]`.
        precision: How far log epsilon may stay below that of the target.
    """
    excess = _log_excess(epsilon, target_epsilon)
    bracket = _bracket(excess, least, most, start, precision)
    if not isinstance(bracket, _Bracket):
        return _or_unreachable(bracket, excess, target_epsilon)
    nearest = _NEAREST * precision
    return least_safe(excess, *bracket, nearest=nearest, precision=precision)


def most_that_meet(
    epsilon: Callable[[int], float],
    target_epsilon: float,
    *,
    most: int,
    start: int,
) -> int | Unreachable:
    """Returns the largest count from 1 at which epsilon is at most the target.

    Beyond 1e9, a count that is larger by a share of 1e-9 may meet it too.

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
    counts = range(enough, too_many, max(1, int(_NEAREST_COUNTS * enough)))
    return counts[
        bisect.bisect_left(counts, True, lo=1, key=lambda n: of_count(n) > 0)
        - 1
    ]


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
    """Returns a bracket around the target, or the parameter of the result.

    The search ends without a bracket at `least` if that meets the target, at
    `most` if that does not, or at a parameter that meets the target to within
    the precision.
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
    """Returns a function: log epsilon minus the log of the target."""

    @functools.cache
    def excess(at: float) -> float:
        value = min(max(epsilon(at), _TINY), _HUGE)
        found = math.log(value) - math.log(target_epsilon)
        if value > target_epsilon:  # The logarithms may be equal.
            return max(found, math.ulp(0.0))
        return min(found, 0.0)

    return excess


def _count(at: float) -> int:
    """Returns the `n` of `-log(n)`."""
    return round(math.exp(-at))
