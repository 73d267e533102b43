"""Losses that are a function of one normal output, and their quadratures."""

import abc
import math

import numpy as np
from scipy import special

from keras_dp._override import override
from keras_dp.accountants.arrays import Array, Points
from keras_dp.accountants.loss.loss_distribution import (
    Decay,
    LossDistribution,
    Nodes,
)
from keras_dp.errors import TooSlowError

# Log of the relative error of a quadrature, far below that of float64.
LOG_ERROR = -60.0
# Integrands are cut off where they are below exp(-REACH^2 / 2) of their peak.
REACH = 12.0
# Precision of the end of a range, in noise stddevs.
PRECISION = 0.1
# Candidates for the half-width of a strip, in noise stddevs. Beyond 13 the
# density grows by more than the rule gains.
_STRIPS = np.geomspace(0.02, 13.0, 40)
# The same for strips above the real line; wider ones lose digits.
_HIGH_STRIPS = np.geomspace(1e-3, 2.0, 60)
# The share that is used of the strip without a zero of the likelihood ratio.
LARGEST_SHARE = 0.95
# Heights of paths that bound a decay, in units of the highest one. The best one
# for n rounds is about 1 / sqrt(n).
_SHARES_OF_HEIGHT = 3.0 ** -np.arange(0.0, 14.0)
# With more nodes, the moments of some tens of tilts take seconds.
_MOST_NODES = 33_500


class OutputLoss(LossDistribution):
    """A monotone loss `l(u)`, where `u` is a standard normal output.

    `P` and `Q` are `R N` for likelihood ratios `R` that are sums of
    exponentials: in the strip `|Im u| <= a` they are at most what they are at
    `Re u`, times `e^(a^2/2)` for `N`, and turn by at most `turn * a`.
    """

    __slots__ = ()

    @property
    @abc.abstractmethod
    def turn(self) -> float:
        """How fast the argument of `e^l` turns with `Im u`, at most."""

    @property
    @abc.abstractmethod
    def denominator_turn(self) -> float:
        """The same of the ratio in the denominator; 0 if there is none."""

    @property
    @abc.abstractmethod
    def rises(self) -> bool:
        """Whether the loss rises with the output; otherwise it falls."""

    @abc.abstractmethod
    def losses(self, u: Points) -> Points:
        """Returns `l(u)`, relatively precise also where it is near 0.

        For complex `u` with `turn * |Im u| < pi` the analytic continuation.
        """

    @abc.abstractmethod
    def log_density(self, u: Points) -> Points:
        """Returns the log of the density of `Q`, continued likewise."""

    @abc.abstractmethod
    def range(self, tilt: float) -> tuple[float, float]:
        """Returns where the integrands of the tilts up to `tilt` are.

        Outside, they are below `exp(-REACH^2 / 2)` of their peak.
        """

    @override
    def nodes(
        self,
        tilt: float,
        frequency: float = 0.0,
        most_nodes: int = _MOST_NODES,
    ) -> Nodes:
        highest = LARGEST_SHARE * np.pi / self.turn
        widths = farthest = np.minimum(_STRIPS, highest)
        if frequency:
            # The strip from the real line to twice the height of the path.
            farthest = np.minimum(_HIGH_STRIPS, highest)
            widths = farthest / 2
        steps = self._steps(widths, farthest, tilt, frequency)
        best = int(np.argmax(steps))
        step = float(steps[best])
        u: Points = _grid(*self.range(tilt), step, most_nodes)
        if frequency:
            u = u + (1j if self.rises else -1j) * widths[best]
        return Nodes(
            self.losses(u),
            self.log_density(u) + math.log(step),
            LOG_ERROR + math.log(2),
        )

    @override
    def decay(self, tilt: float) -> Decay:
        highest = min(_HIGH_STRIPS[-1], LARGEST_SHARE * np.pi / self.turn)
        strips = np.minimum(_STRIPS, LARGEST_SHARE * np.pi / self.turn)
        step = float(self._steps(strips, strips, tilt, 0.0).max())
        u = _grid(*self.range(tilt), step)
        side = 1j if self.rises else -1j
        paths = u + side * highest * _SHARES_OF_HEIGHT[:, None]
        losses = self.losses(paths)
        logs = (1 + tilt) * losses + self.log_density(paths)
        real = (1 + tilt) * self.losses(u) + self.log_density(u)
        return Decay(
            np.asarray(logs.real - special.logsumexp(real)),
            np.asarray(np.maximum(losses.imag, 0.0)),
        )

    def _steps(
        self, widths: Array, farthest: Array, tilt: float, frequency: float
    ) -> Array:
        """Returns steps of the trapezoidal rule for the relative error.

        Let a strip reach `a` to both sides of the path, and be at most `b`
        away from the real line, on the side where `Im l >= 0` unless the
        frequency is 0. There `|e^(i t l)| <= 1`, and the integrand of `M(s)` is
        at most `e^(b^2/2) cos(turn' b / 2)^(-Re s)` times what that of
        `M(Re s)` is on the real line. The error of the rule is the integral
        of that times `2 / (e^(2 pi a / h) - 1)`. The two other terms of
        `Nodes`, `1` and `(1+s) (e^l - 1)`, have the same bound, and so small
        an exponential is at least half of what it is without the `-1`.

        `widths` are `a`, `farthest` are `b`, both of shape `[n]`.
        """
        size = farthest**2 / 2 + math.log(2 * (3 + tilt + frequency))
        size = size - tilt * np.log(
            np.cos(self.denominator_turn * farthest / 2)
        )
        return np.asarray(2 * np.pi * widths / (size - LOG_ERROR))


def _grid(
    low: float, high: float, step: float, most_nodes: int = _MOST_NODES
) -> Array:
    size = (high - low) / step
    if not size <= most_nodes:
        raise TooSlowError
    return np.asarray(low + step * np.arange(math.ceil(size) + 1))
