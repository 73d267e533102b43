"""Thresholds: how likely they let a key pass that one record alone holds.

A record of `t` keys gives each of them a weight of at most `S / sqrt(t)`. If no
other record holds them, the chance that one of them passes the threshold `T`
is at most

    d(t) = 1 - Phi((T - S / sqrt(t)) / sigma)^t,   1 <= t <= m.

Guarantee: `d(t)` is largest at `t = 1` or at `t = m`, so that two values tell
it for any `m`. With `a = T / sigma`, `x = S / (sigma sqrt(t))` and
`H(x) = -log Phi(a - x)`, `-log(1 - d(t))` is `H(x) / x^2`, but for a factor
that is constant. Its slope in `log x` has the sign of `g(x) = x H' - 2 H`. Let
`y = a - x`, and let `u(y)` and `v(y) = u'(y)` be the mean and the variance of
a normal variable of mean `y` and stddev 1 that is known to be positive:
`u = y + phi(y)/Phi(y)`. Then `g' = x H'' - H' = H' (x u - 1)`, whose sign is
that of `a - w(y)` with `w = y + 1/u`. As that variable has a log-concave
density on the positive numbers, its stddev is at most its mean, `v <= u^2`, so
that `w' = 1 - v/u^2 >= 0`: as `x` grows, `g'` changes its sign once at most,
from minus to plus. `g` begins at `-2 H(0) < 0` and therefore changes its sign
once at most, from minus to plus as well. `H(x)/x^2` falls first and rises then.

A group of `k` records holds at most `N = k m` keys that no other record holds,
whose sums have an L2 norm of at most `k S`, also if they share keys, or if each
is in another batch of an epoch. The chance that one of them passes is at most

    1 - exp(-N H(X / sqrt(N)) - H(X)),   X = k S / sigma.

Guarantee: as a function of the square of `x`, `H` is concave first and convex
then, because its slope there is `H' / (2 x)` and `(H' / x)' = g' / x^2`. So the
sum of `H` over `N` keys, whose squares add up to at most `X^2`, is at most `N`
times its concave envelope on `[0, X^2]` at `X^2 / N`. There the envelope is a
mean of values at a point that is not larger, and at `X^2` with a share of at
most `1 / N`.
"""

import functools
import math
from typing import NamedTuple

from scipy import special

# More than the errors of a tail of the normal distribution and some products.
_ROUND_UP = 1 + 1e-12
# Rounding of the argument, relative to its terms.
_ARGUMENT = 1e-15
# Below it no float is; a chance is never rounded to 0.
_LEAST = math.ulp(0.0)
# A threshold that misses its aim by rounding is raised by so much.
_STEP = 1e-13


class Threshold(NamedTuple):
    """The numbers of a `ThresholdedSum`: `S`, `sigma`, `m` and `T`.

    `S` bounds the L2 norm of the weights of one record, which has `m` keys.
    """

    l2_norm_bound: float
    noise_stddev: float
    max_keys: int
    threshold: float


@functools.lru_cache(maxsize=1024)
def chance_to_pass(
    l2_norm_bound: float,
    noise_stddev: float,
    max_keys: int,
    threshold: float,
    records: int = 1,
) -> float:
    """Returns how likely a key that only `records` hold is released.

    It is the largest for any number of keys, rounded up, in (0, 1].
    """
    if records == 1:
        size = max(
            _size(l2_norm_bound, noise_stddev, keys, threshold)
            for keys in {1, max_keys}
        )
    else:
        norm = records * l2_norm_bound
        size = sum(
            _size(norm, noise_stddev, keys, threshold)
            for keys in (1, records * max_keys)
        )
    return min(1.0, max(_LEAST, -math.expm1(-size) * _ROUND_UP))


def least_threshold(
    l2_norm_bound: float, noise_stddev: float, max_keys: int, chance: float
) -> float:
    """Returns the least threshold that a key passes with at most `chance`."""
    found = 0.0
    for keys in {1, max_keys}:
        one = -math.expm1(math.log1p(-chance) / keys)
        weight = l2_norm_bound / math.sqrt(keys)
        found = max(found, weight - noise_stddev * float(special.ndtri(one)))
    step = _STEP
    bounds = l2_norm_bound, noise_stddev, max_keys
    while chance_to_pass(*bounds, found * (1 + step)) > chance:
        step *= 2
    return found * (1 + step)


def _size(
    l2_norm_bound: float, noise_stddev: float, keys: int, threshold: float
) -> float:
    """Returns `-log` of the chance that none of some equal keys passes."""
    weight = l2_norm_bound / math.sqrt(keys)
    slack = _ARGUMENT * (threshold + weight)
    margin = (threshold - weight - slack) / noise_stddev
    if margin < 0:
        return -keys * float(special.log_ndtr(margin))
    return -keys * math.log1p(-float(special.ndtr(-margin)))
