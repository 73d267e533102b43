"""Few points in place of the many of a fine lattice."""

import math

import numpy as np

from keras_dp.accountants.arrays import Array

# Points in place of each panel: exact for polynomials of degree 11.
_POINTS = 6
# Phase of the fastest wave over a panel: the error is 1e-13 of it.
_PHASE = 1.5
# Of a polynomial that is 0 on all points of a panel but for rounding.
_LEAST_NORM = 1e-28


def compressed(
    points: Array, log_weights: Array, step: float, largest: float
) -> tuple[Array, Array]:
    """Returns points and log weights of a measure with the same integrals.

    Every panel of points gets the Gauss rule of its measure (Stieltjes'
    procedure), whose weights are positive.

    Args:
        points: In rising or falling order, at most `step` apart.
        log_weights: Of the same shape.
        step: As said.
        largest: Of `|s|` for the `e^(s x)` that are integrated.
    """
    size = int(_PHASE / (largest * step))
    if size <= 2 * _POINTS:
        kept = np.isfinite(log_weights)
        return points[kept], log_weights[kept]
    count = math.ceil(points.size / size)
    missing = count * size - points.size
    shape = count, size
    x = np.pad(points, (0, missing), mode="edge").reshape(shape)
    logs = np.pad(log_weights, (0, missing), constant_values=-np.inf)
    logs = logs.reshape(shape)
    peak = logs.max(axis=1)
    seen = np.isfinite(peak)
    x, logs, peak = x[seen], logs[seen], peak[seen]
    weight = np.exp(logs - peak[:, None])
    total = weight.sum(axis=1)
    middle = (x[:, :1] + x[:, -1:]) / 2
    half = np.maximum(np.abs(x[:, -1:] - x[:, :1]) / 2, step * 1e-6)
    nodes, shares = _gauss((x - middle) / half, weight / total[:, None])
    falling = points[-1] < points[0]
    if falling:
        nodes, shares = nodes[:, ::-1], shares[:, ::-1]
    with np.errstate(divide="ignore"):
        found = np.log(shares) + (peak + np.log(total))[:, None]
    result = (middle + half * nodes).ravel(), found.ravel()
    kept = np.isfinite(result[1])
    return result[0][kept], result[1][kept]


def _gauss(x: Array, weight: Array) -> tuple[Array, Array]:
    """Returns nodes and weights of each row's rule, `[rows, points]`."""
    jacobi = np.zeros((len(x), _POINTS, _POINTS))
    previous, current = np.zeros_like(x), np.ones_like(x)
    norm, last_norm = np.ones(len(x)), np.ones(len(x))
    for k in range(_POINTS):
        # A row with fewer points than that ends here.
        alive = norm > _LEAST_NORM
        square = weight * current * current
        mean = np.divide(
            (square * x).sum(axis=1), norm, out=np.zeros_like(norm), where=alive
        )
        jacobi[:, k, k] = mean
        ratio = np.where(alive, norm / last_norm, 0.0)
        if k:
            jacobi[:, k, k - 1] = jacobi[:, k - 1, k] = np.sqrt(ratio)
        following = (x - mean[:, None]) * current - ratio[:, None] * previous
        previous, current = current, following
        last_norm = np.where(alive, norm, 1.0)
        norm = (weight * current * current).sum(axis=1)
    nodes, vectors = np.linalg.eigh(jacobi)
    return nodes, np.square(vectors[:, 0, :])
