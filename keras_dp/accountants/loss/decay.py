"""How fast the characteristic function of a density falls, at least.

A law that is a mixture of uniform ones and of a rest has a characteristic
function of at most `1 - sum_k p_k (1 - |sinc(t w_k / 2)|)`: a bound for all
frequencies at once, from nothing but a staircase below the density.
"""

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.loss_distribution import Layers

# |sin(y) / y| is at most this for y >= pi.
_LOBE = 0.2172336282112217
# Layers with less probability than that are left out.
_LEAST_PROBABILITY = 1e-9
# 1 - sin(y)/y is y^2/6 - y^4/120 below it, where it would cancel.
_SMALL = 1e-2


def layers_of_staircase(edges: Array, heights: Array) -> Layers:
    """Returns the rectangles that a staircase is made of, lowest first.

    Args:
        edges: Of the steps, nondecreasing, shape `[n + 1]`.
        heights: Of a function below a density, shape `[n]`.
    """
    probabilities: list[float] = []
    widths: list[float] = []
    bounds = edges.tolist()
    # Rectangles that have begun: where, and from which height.
    begun: list[tuple[float, float]] = []
    for start, height in zip(bounds, [*heights.tolist(), 0.0], strict=True):
        first = start
        while begun and begun[-1][1] > height:
            first, top = begun.pop()
            base = max(height, begun[-1][1] if begun else 0.0)
            probabilities.append((top - base) * (start - first))
            widths.append(start - first)
        if height > (begun[-1][1] if begun else 0.0):
            begun.append((first, height))
    kept = np.array(probabilities) > _LEAST_PROBABILITY
    return Layers(np.array(probabilities)[kept], np.array(widths)[kept])


def fall(layers: Layers, frequency: float) -> float:
    """Returns a lower bound on `1 - |M(c + i t)| / M(c)`, `t >= frequency`.

    `sinc` falls up to its first zero, and no later lobe exceeds the first of
    them.
    """
    half_turns = frequency * layers.widths / 2
    y = np.clip(half_turns, _SMALL, np.pi)
    falls = 1 - np.maximum(np.sin(y) / y, _LOBE)
    small = half_turns**2 / 6 - half_turns**4 / 120
    falls = np.where(half_turns < _SMALL, small, falls)
    return float(falls @ layers.probabilities)
