"""The root finder of calibration: few evaluations, never above the target.

Parameters are given by their logarithm, turned so that more costs less. Log
epsilon is a smooth function of it and nearly straight, so that the secant
through the last two points finds the root in a handful of evaluations.
"""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

# The first step is a little longer than what would do if epsilon were inverse
# to the parameter; further ones are twice the one before.
_OVERSHOOT, _SHORTEST_STEP, _LONGEST_STEP = 1.1, 0.05, math.log(100.0)
# If the bracket has not become half as wide in that many steps it is halved;
# the number falls by one each time, as then there is a jump.
_PATIENCE = 3
# log() of it stands for an infinite epsilon, or the log of a zero one.
_HUGE, _TINY = 1e300, 1e-300


class Interval(NamedTuple):
    """Where to search among all numbers.

    Attributes:
        least: Lower end.
        most: Upper end.
        precision: How far below that of the target log epsilon may remain.
        nearest: Numbers nearer to each other are not told apart.
    """

    least: float
    most: float
    precision: float = 1e-7
    nearest: float = 1e-11

    def between(
        self, guess: float, misses: float, meets: float
    ) -> float | None:
        """Returns a number near `guess` between two; None if there is none."""
        if meets - misses <= self.nearest:
            return None
        margin = min(self.nearest, (meets - misses) / 4)
        return min(max(guess, misses + margin), meets - margin)


class Counts(NamedTuple):
    """Where to search among `-log(n)` for the integers `n` from 1.

    Attributes:
        largest: The largest `n`.
        precision: None: a count never is good enough while the next may be.
        nearest: Counts nearer to each other, relatively, are not told apart.
    """

    largest: int
    precision: float | None = None
    nearest: float = 1e-9

    @property
    def least(self) -> float:
        """What costs most."""
        return -math.log(self.largest)

    @property
    def most(self) -> float:
        """What costs least."""
        return 0.0

    def between(
        self, guess: float, misses: float, meets: float
    ) -> float | None:
        """Returns a number near `guess` between two; None if there is none."""
        too_many, enough = count(misses), count(meets)
        if too_many - enough <= max(1, self.nearest * enough):
            return None
        wanted = count(min(max(guess, misses), meets))
        return -math.log(min(max(wanted, enough + 1), too_many - 1))


Domain: TypeAlias = Interval | Counts


class Unreachable(NamedTuple):
    """No parameter meets the target.

    Attributes:
        epsilon: The nearest to it.
    """

    epsilon: float


class _Point(NamedTuple):
    at: float
    excess: float


def count(at: float) -> int:
    """Returns the `n` of `-log(n)`."""
    return round(math.exp(-at))


def least_that_meets(
    epsilon: Callable[[float], float],
    target_epsilon: float,
    domain: Domain,
    start: float,
) -> float | Unreachable:
    """Returns the least parameter at which epsilon is at most the target.

    Args:
        epsilon: A nonincreasing function of the parameter.
        target_epsilon: > 0.
        domain: Where to search. Its `least` is returned if that meets the
            target already, however far below it.
        start: A first guess, in the domain.
    """

    def point(at: float) -> _Point:
        value = min(max(epsilon(at), _TINY), _HUGE)
        excess = math.log(value) - math.log(target_epsilon)
        if value > target_epsilon:  # Which logarithms may not tell.
            return _Point(at, max(excess, math.ulp(0.0)))
        return _Point(at, min(excess, 0.0))

    last = before = point(start)
    misses = meets = None
    step = _OVERSHOOT * abs(last.excess)
    step = min(max(step, _SHORTEST_STEP), _LONGEST_STEP)
    while True:
        if last.excess > 0:
            misses = last
        else:
            meets = last
        if misses and meets:
            return _refined(point, domain, before, last, misses, meets)
        if misses and last.at >= domain.most:
            return Unreachable(target_epsilon * math.exp(last.excess))
        if meets and (last.at <= domain.least or _suffices(last, domain)):
            return last.at
        at = last.at + step if misses else last.at - step
        at = min(max(at, domain.least), domain.most)
        before, last, step = last, point(at), 2 * step


def _refined(
    point: Callable[[float], _Point],
    domain: Domain,
    before: _Point,
    last: _Point,
    misses: _Point,
    meets: _Point,
) -> float:
    """Returns a parameter that meets the target, from a bracket."""
    width, steps, patience = meets.at - misses.at, 0, _PATIENCE
    while not _suffices(meets, domain):
        steps += 1
        guess = _secant(before, last, (domain.precision or 0.0) / 2)
        if steps > patience or not misses.at < guess < meets.at:
            guess = (misses.at + meets.at) / 2
            patience = max(patience - 1, 0)
        at = domain.between(guess, misses.at, meets.at)
        if at is None:
            break
        before, last = last, point(at)
        if last.excess > 0:
            misses = last
        else:
            meets = last
        if meets.at - misses.at <= width / 2:
            width, steps = meets.at - misses.at, 0
    return meets.at


def _suffices(meets: _Point, domain: Domain) -> bool:
    return domain.precision is not None and meets.excess >= -domain.precision


def _secant(one: _Point, other: _Point, below: float) -> float:
    """Returns where the line through two points is `below` the target."""
    rise = other.excess - one.excess
    if rise == 0:
        return math.nan
    return other.at - (other.excess + below) * (other.at - one.at) / rise
