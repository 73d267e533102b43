"""The loss that dominates a sample of fixed size, in which a record changes.

Subsampling bounds the divergence of such a round for `e >= 0` by that of a
sampled pair `P`, `Q`. As either data set can come first, the divergence for
`-e` follows from that for `e`: the dominating loss has the distribution of
the loss of `P`, `Q` where it is positive, its mirror image where it is
negative, and an atom at 0. This is not the loss of `P`, `Q`, which is negative
more often than that, and whose composition is not a bound.

Source: Balle, Barthe, Gaboardi (2018), arXiv:1807.01647v2, Theorems 9 and 10;
that a profile composes as the pair it belongs to: Zhu, Dong, Wang (2022),
arXiv:2106.08567v4, Theorem 10.
"""

import dataclasses
import math

import numpy as np
from scipy import special

from keras_dp._override import override
from keras_dp.accountants.arrays import Complex, Points
from keras_dp.accountants.loss.loss_distribution import (
    NO_DECAY,
    Decay,
    LossDistribution,
    Nodes,
)
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.accountants.loss.of_normal_output import LARGEST_SHARE, REACH
from keras_dp.errors import TooSlowError

# Gauss-Legendre panels, and ellipses around them whose half-axes sum up to 3
# halves of a panel. On a diagonal, a panel from `a` to `2 a` has its ellipse
# above the real line; so has a level panel of 0.7 times its height.
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_SUM_OF_AXES = 3.0
_LEVEL = 0.7
# Log of the error of a panel relative to the largest value in its ellipse
# (Trefethen 2013, "Approximation Theory and Approximation Practice", 19.3).
_LOG_PANEL_ERROR = math.log(64 / 15 / (_SUM_OF_AXES**2 - 1)) - 2 * len(
    _POINTS
) * math.log(_SUM_OF_AXES)
# The ellipse of the first panel reaches below the real line by this share of
# its length; an integrand may grow by this many nats there.
_GROWTH, _BELOW = 4.0, 0.4
# A denominator may add this many nats in a strip.
_DENOMINATOR = 10.0
_MOST_PANELS = 4000


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizeLoss(LossDistribution):
    """The symmetric distribution of the positive losses of a removed record."""

    largest = math.inf

    part: MixtureLoss

    @override
    def nodes(self, tilt: float, frequency: float = 0.0) -> Nodes:
        losses, log_weights, log_error = _positive(self.part, tilt, frequency)
        # Q has the mass at -l that P has at l. Conjugate losses have an
        # `Im l >= 0` as well. What is left is the atom.
        mirrored = np.conj(log_weights + losses)
        atom = 1 - np.exp(log_weights).sum() - np.exp(mirrored).sum()
        return Nodes(
            np.concatenate([losses, [0.0], -np.conj(losses)]),
            np.concatenate([log_weights, [np.log(atom.real)], mirrored]),
            log_error,
        )

    @override
    def decay(self, tilt: float) -> Decay:
        # The atom at 0 never falls.
        return NO_DECAY


def _positive(part: MixtureLoss, tilt: float, frequency: float) -> Nodes:
    """Returns nodes on the positive losses.

    With a frequency they are on a path that leaves the real line where the
    loss is 0: first diagonal, in panels that grow, and then level.
    """
    low = part.free_output
    high = max(part.range(tilt)[1], low + REACH)
    highest = LARGEST_SHARE * math.pi / part.turn
    # cos(turn b / 2)^-tilt is about exp(tilt (turn b)^2 / 8).
    highest = min(highest, math.sqrt(8 * _DENOMINATOR / tilt) / part.turn, 2.0)
    ends: Points
    if frequency:
        ends = _climbing(low, high, highest / 2, frequency * part.turn)
    else:
        size = math.ceil((high - low) / (_LEVEL * highest))
        ends = np.linspace(low, high, min(size, _MOST_PANELS) + 1)
    if ends.size > _MOST_PANELS:
        raise TooSlowError
    halves = np.diff(ends)[:, None] / 2
    u = (ends[:-1, None] + halves + halves * _POINTS).ravel()
    log_steps = np.log((halves * _WEIGHTS).ravel())
    # The integrand at the real parts of the outputs, where it is largest.
    logs = part.losses(u.real) * (1 + tilt) + part.log_density(u.real)
    steepest = (1 + tilt) * part.turn + abs(low) + abs(high)
    log_largest = float(logs.max()) + steepest * float(np.abs(halves).max()) / 4
    log_error = _LOG_PANEL_ERROR + max(log_largest, 0.0) + highest**2 / 2
    log_error += _GROWTH + _DENOMINATOR
    log_error += math.log(ends.size * (high - low) * (3 + tilt + frequency))
    # M(tilt) is at least 1, and at least the part of the positive losses. A
    # diagonal step is longer than its real part, by less than 2.
    least = float(special.logsumexp(logs + log_steps.real)) - math.log(2)
    return Nodes(
        part.losses(u),
        part.log_density(u) + log_steps,
        log_error - max(least, 0.0) + math.log(2),
    )


def _climbing(low: float, high: float, height: float, speed: float) -> Complex:
    """Returns the ends of panels: up a diagonal, then level.

    The path begins at `low` on the real line and ends above `high`. The
    exponent turns with the output at most with the speed.
    """
    first = min(_GROWTH / (_BELOW * speed), height)
    size = 1 + math.ceil(math.log2(height / first))
    diagonal = height * 2.0 ** -np.arange(size, dtype=np.float64)[::-1]
    levels = math.ceil((high - low - height) / (2 * _LEVEL * height))
    level = np.linspace(low + height, high, max(levels, 1) + 1)[1:]
    return np.concatenate(
        [[low + 0j], low + (1 + 1j) * diagonal, level + 1j * height]
    )
