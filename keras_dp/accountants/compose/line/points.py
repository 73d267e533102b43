"""The moment generating function along a line, to many digits.

For `n` equal rounds an error of one round's logarithm counts `n` times: next to
nothing may be lost where a moment is next to 1.
"""

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.log_mgf import tilted_means, tilted_weights
from keras_dp.accountants.loss.decay import fall
from keras_dp.accountants.loss.loss_distribution import Layers, LossLaw
from keras_dp.errors import TooSlowError

Complex: TypeAlias = NDArray[np.complex128]

# Products of nodes and points on the line: some tenths of a second, and less
# for few rounds, for which there is a grid.
_MOST_WORK, _LITTLE_WORK = 6e8, 4e7
_FEW_ROUNDS = 200
_WORK_OF_EXPONENTIAL = 100
EPSILON = float(np.finfo(np.float64).eps)
# Rounding of a term of a sum, in units of float64's.
TERM = 8.0
# exp() of it is 0.
_NOTHING = -750.0
# Below it a series of five terms has 1e-16 of the first one.
_SMALL_ANGLE = 0.3
# Of |1 + z|^2 - 1, below which it is computed from 1 + z.
_SMALL_SIZE = -0.75
# Of a bundle's log moment, above which it is of no use.
_LARGEST_ERROR = 0.5


def log_ratios(
    composition: Composition,
    tilt: float,
    step: float,
    size: int,
    together: Sequence[Layers],
) -> tuple[Complex, Array]:
    """Returns `K(c + i t) - K(c) - i t K'(c)` of the laws on the line.

    And bounds on their errors, both of shape `[size]`.
    """
    total = np.zeros(size, dtype=np.complex128)
    errors = np.zeros(size)
    t = points(step, size)
    rounds = float(composition.counts.sum())
    are_few = rounds <= _FEW_ROUNDS and not composition.bundles
    most_work = _LITTLE_WORK if are_few else _MOST_WORK
    for law, count in zip(composition.laws, composition.counts, strict=True):
        logs, error = _log_ratio(law, tilt, step, size, most_work)
        total += count * logs
        errors += count * error
    for bundle, layers in zip(composition.bundles, together, strict=True):
        logs = np.zeros(size, dtype=np.complex128)
        for law, weight in zip(bundle.laws, bundle.weights, strict=True):
            part, error = _log_ratio(law, tilt, step, size, most_work)
            logs += weight * part
            errors += abs(weight) * error
        off = bundle.errors(tilt, t)
        for each in np.flatnonzero(off > _LARGEST_ERROR):
            # Not known, but not larger than this.
            logs[each] = -fall(layers, float(t[each]))
            off[each] = math.log(3)
        total += logs
        errors += off
    return total, errors


def points(step: float, size: int) -> Array:
    """Returns `Im s` of the points on the upper half of a line."""
    return np.asarray(step * np.arange(size, dtype=np.float64))


def _log_ratio(
    law: LossLaw, tilt: float, step: float, size: int, most_work: float
) -> tuple[Complex, Array]:
    """Returns what `log_ratios` does, for one round."""
    nodes = law.nodes(tilt, tilt, step * size)
    work = size + _WORK_OF_EXPONENTIAL * math.sqrt(size)
    if nodes.losses.size * work > most_work:
        raise TooSlowError
    at = np.array([[tilt]])
    weights = tilted_weights(nodes, at)[0]
    losses = nodes.losses - float(tilted_means(nodes, at)[0])
    change = _characteristic(losses, weights, step, size)
    # The angle of a term has the relative error of one rounding.
    angle = float(weights @ np.abs(losses)) * step * np.arange(size)
    error = math.exp(nodes.log_error) + TERM * EPSILON * angle
    # Where little is left of 1, that of the 1 as well.
    error = error + np.where(np.abs(1 + change) < 0.5, TERM * EPSILON, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return _log1p(change), error / np.abs(1 + change)


def _characteristic(
    losses: Array, weights: Array, step: float, size: int
) -> Complex:
    """Returns `sum_j w_j (e^(i t l_j) - 1)` for `t = 0, step, ...`.

    The mean of the losses is 0: `i t l_j` is left out, with what rounding
    would leave of it.
    """
    block = math.isqrt(size - 1) + 1
    fine = step * np.outer(losses, np.arange(block))
    coarse = step * block * np.outer(np.arange(block), losses)
    # With e(x) = e^(i x) - 1 it is e(a) e(b) + e(a) + e(b) at x = a + b, in
    # which nothing cancels.
    near, far = _excess(fine), _excess(coarse)
    left = np.asarray((far + 1j * coarse) * weights, dtype=np.complex128)
    right = np.asarray(near + 1j * fine, dtype=np.complex128)
    around = left @ right + (far @ weights)[:, None] + weights @ near
    return np.asarray(around.ravel()[:size])


def _excess(angles: Array) -> Complex:
    """Returns `e^(i x) - 1 - i x`, precise where it is small."""
    square = angles * angles
    series = 1 - square / 72 * (1 - square / 110)
    series = 1 - square / 20 * (1 - square / 42 * series)
    imaginary = np.where(
        np.abs(angles) < _SMALL_ANGLE,
        -angles * square / 6 * series,
        np.sin(angles) - angles,
    )
    return np.asarray(-2 * np.sin(angles / 2) ** 2 + 1j * imaginary)


def _log1p(z: Complex) -> Complex:
    """Returns `log(1 + z)`, precise where `z` is small and where `1 + z` is."""
    x, y = z.real, z.imag
    near = np.log1p(np.maximum(2 * x + x * x + y * y, -1.0)) / 2
    far = np.log(np.hypot(1 + x, y))
    sizes = np.where(2 * x + x * x + y * y > _SMALL_SIZE, near, far)
    return np.asarray(
        np.maximum(sizes, _NOTHING) + 1j * np.arctan2(y, 1 + x),
        dtype=np.complex128,
    )
