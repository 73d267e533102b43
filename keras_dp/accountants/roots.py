"""Roots of falling functions, never on the unsafe side."""

from collections.abc import Callable

from scipy import optimize

# How near two arguments are at which float64 still tells values apart.
_NEAREST = 8e-16


def least_safe(
    excess: Callable[[float], float],
    unsafe: float,
    safe: float,
    *,
    nearest: float,
    precision: float = 0.0,
) -> float:
    """Returns an argument just above the root of a nonincreasing function.

    The result is one at which `excess` was found to be at most 0, however
    far the function is from being smooth or monotone.

    Args:
        excess: From an argument to how far the bound is above its target.
        unsafe: Where `excess` is > 0.
        safe: Where `excess` is <= 0, > `unsafe`.
        nearest: Arguments nearer to each other are not told apart, > 0.
        precision: An excess in `[-precision, 0]` is good enough.

    Source: Alefeld, Potra, Shi (1995), ACM Transactions on Mathematical
    Software 21, Algorithm 748, as `scipy.optimize.toms748` has it. We differ
    in keeping the safe end of its bracket.
    """
    least = safe

    def above_the_aim(argument: float) -> float:
        nonlocal least
        value = excess(argument)
        if value <= 0:
            least = min(least, float(argument))
            if value >= -precision:
                return 0.0
        return value + precision / 2  # The sign stays.

    optimize.toms748(
        above_the_aim, unsafe, safe, xtol=nearest, rtol=_NEAREST, disp=False
    )
    return least
