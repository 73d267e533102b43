"""Rényi divergence of pairs of Gaussian mixtures, at any real order > 1."""

import numpy as np
from numpy.typing import NDArray

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.renyi.mixture_pairs import Pairs
from keras_dp.accountants.renyi.windows import Windows, windows

# The integrand is analytic in a strip of half-width pi * z around the real
# line, and of Gaussian decay: with steps of half a stddev, or of z/2, the
# trapezoid rule errs by less than 1e-14.
_STEP = 0.5
# More points than any order that could be best needs.
_MOST_POINTS = 2**17
# Points evaluated at once.
_BLOCK = 2**17
# Divergences grow with q; from here on they are below every float of use.
_LEAST_PROBABILITY = 1e-100
# Below it the sample hides next to nothing, and the windows become wide.
_LEAST_NOISE_MULTIPLIER = 0.01


def log_moment(
    probability: Array,
    noise_multiplier: Array,
    excess: Array,
    *,
    other_mean: float,
) -> Array:
    """Returns `(a-1) D_a(P || Q)` of the pairs of `_pairs`.

    The trapezoid rule on a function that is analytic around the real line
    converges geometrically; every term is positive and is added in logs, so
    that neither overflow nor cancellation occurs. Measured for `q` in
    1e-8..1, `z` in 0.1..1e4 and orders to 1e6, against 60 digits where those
    can be had and against itself with half the steps elsewhere: 1.4e-14.

    Where that would take more than 2^17 points (orders that are of no use: `q`
    near 1 and `z` near 0) the value is that of `q = 1`, a bound.

    Args:
        probability: `q`, in (0, 1), shape `[n]`.
        noise_multiplier: `z` > 0, shape `[n]`.
        excess: `a - 1` > 0, shape `[n]`.
        other_mean: 0 or -1, the mean of the record's part in `Q`.

    Returns:
        Shape `[n]`, > 0.

    Source: Mironov, Talwar, Zhang (2019), arXiv:1908.10530v1, section 3. They
    give a finite sum for integer and a series for other orders; this is one
    integral for both. `D(P || Q)` is the larger direction (Theorem 5).
    """
    distance = 1 - other_mean
    bound = excess * (1 + excess) * (distance / noise_multiplier) ** 2 / 2
    use = noise_multiplier >= _LEAST_NOISE_MULTIPLIER
    result = bound.copy()
    if use.any():
        pairs = Pairs(
            np.maximum(probability[use], _LEAST_PROBABILITY),
            noise_multiplier[use],
            excess[use],
            other_mean,
        )
        lower, upper = windows(pairs)
        area = np.logaddexp(
            _log_integral(pairs, lower), _log_integral(pairs, upper)
        )
        result[use] = np.logaddexp(0, area)
    return np.minimum(result, bound)


def _log_integral(pairs: Pairs, window: Windows) -> Array:
    """Returns the log of the mass in the windows, `-inf` in empty ones."""
    result = np.full_like(window.start, -np.inf)
    filled = window.end > window.start
    width = np.where(filled, window.end, 0) - np.where(filled, window.start, 0)
    points = np.where(filled, np.ceil(width / _steps(pairs)) + 2, 0)
    result[points > _MOST_POINTS] = np.inf
    for rows in _blocks(points):
        size = int(points[rows].max())
        step = width[rows] / (size - 1)
        x = window.start[rows, None] + step[:, None] * np.arange(size)
        values = pairs.take(rows).log_integrand(x)
        peak = values.max(axis=1)
        total = np.exp(values - peak[:, None]).sum(axis=1)
        result[rows] = peak + np.log(total * step / np.sqrt(2 * np.pi))
    return result


def _steps(pairs: Pairs) -> Array:
    """Returns the largest step that keeps the error below 1e-14."""
    q, z = pairs.probability, pairs.noise_multiplier
    if pairs.other_mean == 0:
        return np.asarray(_STEP * np.minimum(1, z))
    # v^(1-a) grows away from the real line, faster than the Gaussian.
    share = np.minimum(q, 0.5)
    growth = pairs.excess * share * (1 - share) / z**2
    return np.asarray(_STEP * np.minimum(1 / np.sqrt(1 + growth), z))


def _blocks(points: Array) -> list[NDArray[np.intp]]:
    """Returns rows of similar size, each block of at most `_BLOCK` points."""
    rows = np.argsort(points, kind="stable")
    rows = rows[(points[rows] > 0) & (points[rows] <= _MOST_POINTS)]
    blocks = []
    while rows.size:
        # The last row of a block is its largest.
        total = points[rows] * np.arange(1, rows.size + 1)
        taken = max(1, int(np.searchsorted(total, _BLOCK, side="right")))
        blocks.append(rows[:taken])
        rows = rows[taken:]
    return blocks
