"""Where monotone functions cross a target, rounded to the safe side."""

import functools
from collections.abc import Callable

import scipy

# Arguments that are nearer, as a share of them, give equal values in float64.
_NEAREST = 8e-16
# Each step computes up to three values and at least halves the bracket. A dozen
# steps are enough for smooth bounds; the others are for bounds that jump.
_MOST_STEPS = 24


def least_safe(
    excess: Callable[[float], float],
    unsafe: float,
    safe: float,
    *,
    nearest: float,
    precision: float = 0.0,
) -> float:
    """Returns an argument just above the root of a nonincreasing function.

    `excess` is the amount by which a bound exceeds its target. At the result it
    was computed and is at most 0, even if the function is neither smooth nor
    monotone, or returns something else each time.

    The search ends if the ends of its bracket are as near as `nearest`, after
    24 steps, or at an excess in `[-precision, 0]`.

    Source: Alefeld, Potra, Shi (1995), ACM Transactions on Mathematical
    Software 21, Algorithm 748, as `scipy.optimize.toms748` has it. We differ
    in keeping the safe end of its bracket.
    """
    least = safe

    @functools.cache
    def above_the_aim(argument: float) -> float:
        nonlocal least
        value = excess(argument)
        if value <= 0:
            least = min(least, float(argument))
            if value >= -precision:
                return 0.0
        return value + precision / 2  # The sign stays.

    # A bound may be nearer when it is asked for again.
    if above_the_aim(unsafe) <= 0 or above_the_aim(safe) > 0:
        return least
    scipy.optimize.toms748(
        above_the_aim,
        unsafe,
        safe,
        xtol=nearest,
        rtol=_NEAREST,
        maxiter=_MOST_STEPS,
        disp=False,
    )
    return least


def last_true(
    predicate: Callable[[float], bool],
    start: float,
    end: float,
    *,
    nearest: float = 0.0,
    share: float = 0.0,
) -> float:
    """Returns about the last argument up to `end` with a true predicate.

    The predicate is true up to some argument, and false beyond; `end` may be
    less than `start`. At the result it was computed and is true, unless that is
    `start`. The result is as near to an argument at which it is false as
    `nearest`, or as `share` of that argument. At 0 no float is between them.
    For integers `bisect` does the same.

    >>> last_true(lambda x: x * x < 2, 1.0, 2.0)
    1.414213562373095
    """
    while abs(end - start) > max(nearest, share * abs(end)):
        middle = (start + end) / 2
        if middle in (start, end):
            break
        if predicate(middle):
            start = middle
        else:
            end = middle
    return start
