"""Losses that are a function of one normal output, and their quadratures."""

import abc
import dataclasses
import math

import numpy as np
from typing_extensions import override

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.decay import layers_of_staircase
from keras_dp.accountants.loss.loss_distribution import Layers, LossLaw, Nodes
from keras_dp.errors import TooSlowError

# Log of the relative error of a quadrature.
_LOG_ERROR = -60.0
# Integrands are left out where they are below exp(-r^2 / 2) times their peak.
REACH = 12.0
# Of the end of a range, in noise stddevs.
PRECISION = 0.1
# Half-widths of strips that are tried, in noise stddevs, and the share of the
# strip in which the likelihood ratio has no zero.
_STRIPS = np.geomspace(0.02, 13.0, 40)
_LARGEST_SHARE = 0.95
# Steps of a staircase below a density, in noise stddevs.
_STAIR = 0.1
# An upper bound on a mass from a sum over such steps.
_MASS = 1.01
_MOST_NODES = 10**6
_MOST_IN_PANELS = 3 * 10**5

# Gauss-Legendre panels, and ellipses around them by their half-axes, in units
# of half a panel.
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_SUM_OF_AXES = 4.0
_WIDE = (_SUM_OF_AXES + 1 / _SUM_OF_AXES) / 2
_HIGH = (_SUM_OF_AXES - 1 / _SUM_OF_AXES) / 2
# Log of the error of a panel relative to the largest value in its ellipse.
_LOG_PANEL_ERROR = math.log(64 / 15 / (_SUM_OF_AXES**2 - 1)) - 2 * len(
    _POINTS
) * math.log(_SUM_OF_AXES)
# How much an integrand may grow from a panel to its ellipse, in nats, and how
# a panel is shortened if it grows by more.
_GROWTH = 105.0
_SHRINK = 0.7
# If equal steps need more nodes, panels are taken.
_MANY_NODES = 1000


class OutputLaw(LossLaw):
    """A law of losses `l(u)`, rising or falling, with `u` normal under `N`.

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

    @abc.abstractmethod
    def losses(self, u: Array) -> Array:
        """Returns `l(u)`, relatively precise also where it is near 0."""

    @abc.abstractmethod
    def log_density(self, u: Array) -> Array:
        """Returns the log of the density of `Q`."""

    @abc.abstractmethod
    def range(self, tilt: float) -> tuple[float, float]:
        """Returns where the integrands of the tilts up to `tilt` are.

        Outside, they are below `exp(-REACH^2 / 2)` of their peak.
        """

    @abc.abstractmethod
    def bend(self, tilt: float) -> float:
        """Returns a bound on the second derivative of the log of a tilted law.

        At least 0.
        """

    @abc.abstractmethod
    def slopes(self, u: Array) -> Array:
        """Returns bounds on `|l'|` between neighbours, shape `[n - 1]`."""

    @abc.abstractmethod
    def steepest(self, low: float, high: float) -> float:
        """Returns a bound on `|l'|` between two outputs."""

    @abc.abstractmethod
    def log_tail(self, u: float) -> float:
        """Returns the log of the mass of `P` above `u`, where `l > 0`."""

    @override
    def nodes(self, least_tilt: float, tilt: float, frequency: float) -> Nodes:
        step = self._step(tilt, frequency)
        low, high = self.range(tilt)
        size = (high - low) / step
        if frequency > 0 and size > _MANY_NODES:
            edges = _panels(self, low, high, tilt, frequency)
            if len(edges) * _POINTS.size < size:
                return _panel_nodes(self, edges, tilt, frequency)
        u = _grid(low, high, step)
        return Nodes(
            self.losses(u),
            self.log_density(u) + math.log(step),
            _LOG_ERROR + math.log(2),
        )

    @override
    def layers(self, tilt: float) -> Layers:
        return staircase(self, tilt, *self.range(tilt))

    def _step(self, tilt: float, frequency: float) -> float:
        """Returns a step of the trapezoidal rule for the relative error.

        In the strip `|Im u| <= a` the integrand of `M(s)` is at most `e^(a^2/2
        + |Im s| turn a)` times that of `M(Re s)`, and if a ratio is in the
        denominator `cos(turn' a / 2)^(-Re s)` times that. The error of the
        rule is that by `2 / (e^(2 pi a / h) - 1)`. The two other terms of
        `Nodes`, `1` and `(1+s) (e^l - 1)`, have the same bound, and so small
        an exponential is at least half of what it is without the `-1`.
        """
        turn, other = self.turn, self.denominator_turn
        a = np.minimum(_STRIPS, _LARGEST_SHARE * np.pi / turn)
        size = a * a / 2 + frequency * turn * a
        size = size - tilt * np.log(np.cos(other * a / 2))
        size = size + math.log(2 * (3 + tilt + frequency))
        return float((2 * np.pi * a / (size - _LOG_ERROR)).max())


@dataclasses.dataclass(frozen=True, slots=True)
class CutLaw(LossLaw):
    """A law without its largest losses.

    What is left is no probability law any more. Delta of the whole is at most
    that of what is left, plus the mass that was cut; and not below it.

    Attributes:
        law: With a loss that rises.
        largest_output: The largest `u`.
        log_left_out: Log of a bound on the mass of `P` and `Q` above it.
    """

    law: OutputLaw
    largest_output: float
    log_left_out: float

    @property
    @override
    def support(self) -> tuple[float, float]:
        largest = self.law.losses(np.array([self.largest_output]))
        return self.law.support[0], float(largest[0])

    @override
    def nodes(self, least_tilt: float, tilt: float, frequency: float) -> Nodes:
        low, high = self._range(tilt)
        found = panel_nodes(self.law, low, high, tilt, frequency)
        left_out = self.log_left_out + math.log(3 + tilt + frequency)
        return found._replace(
            log_error=float(np.logaddexp(found.log_error, left_out))
        )

    @override
    def log_masses(self, edges: Array) -> tuple[Array, Array]:
        top = self.support[1]
        kept = np.append(edges[edges < top], top)
        p, q = self.law.log_masses(kept)
        nothing = np.full(edges.size - kept.size + 1, -np.inf)
        return (
            np.concatenate([p[:-1], nothing]),
            np.concatenate([q[:-1], nothing]),
        )

    @override
    def layers(self, tilt: float) -> Layers:
        return staircase(self.law, tilt, *self._range(tilt))

    def _range(self, tilt: float) -> tuple[float, float]:
        low, high = self.law.range(tilt)
        return low, min(high, self.largest_output)


def cut(law: OutputLaw, log_mass: float) -> CutLaw:
    """Returns `law` without its largest losses.

    Args:
        law: With a loss that rises.
        log_mass: Log of what may be cut from `P`.
    """
    low, high = 0.0, 1.0
    while law.log_tail(high) > log_mass:
        low, high = high, 2 * high
    while high - low > PRECISION:
        middle = (low + high) / 2
        if law.log_tail(middle) > log_mass:
            low = middle
        else:
            high = middle
    return CutLaw(law, high, law.log_tail(high))


def staircase(law: OutputLaw, tilt: float, low: float, high: float) -> Layers:
    """Returns layers of the law of losses between two outputs.

    The tilted law is normalized by what it has there.
    """
    bend = law.bend(tilt)
    step = min(_STAIR, 1 / math.sqrt(max(bend, 1.0)))
    u = _grid(low, high, step)
    losses = law.losses(u)
    log_density = (1 + tilt) * losses + law.log_density(u)
    density = np.exp(log_density - log_density.max())
    total = float(density.sum()) * step * _MASS
    least = np.minimum(density[1:], density[:-1])
    heights = least * math.exp(-bend * step**2 / 8) / total / law.slopes(u)
    if losses[0] > losses[-1]:
        return layers_of_staircase(losses[::-1], heights[::-1])
    return layers_of_staircase(losses, heights)


def panel_nodes(
    law: OutputLaw, low: float, high: float, tilt: float, frequency: float
) -> Nodes:
    """Returns nodes between two outputs, Gauss and Legendre's in panels.

    Raises:
        TooSlowError: They are too many.
    """
    edges = _panels(law, low, high, tilt, frequency)
    return _panel_nodes(law, edges, tilt, frequency)


def _panels(
    law: OutputLaw, low: float, high: float, tilt: float, frequency: float
) -> list[float]:
    """Returns the ends of panels that are short only where the loss is steep.

    Raises:
        TooSlowError: They are too many.
    """
    edges = [low]
    half = 1.0
    while edges[-1] < high:
        half = min(2 * half, math.pi / (2 * law.turn * _HIGH))
        while _growth(law, edges[-1], half, tilt, frequency) > _GROWTH:
            half *= _SHRINK
        edges.append(edges[-1] + 2 * half)
        if len(edges) * _POINTS.size > _MOST_IN_PANELS:
            raise TooSlowError
    edges[-1] = high
    return edges


def _panel_nodes(
    law: OutputLaw, edges: list[float], tilt: float, frequency: float
) -> Nodes:
    starts, ends = np.array(edges[:-1]), np.array(edges[1:])
    halves = (ends - starts) / 2
    u = (starts + halves)[:, None] + halves[:, None] * _POINTS
    weights = np.log(halves)[:, None] + np.log(_WEIGHTS)
    u = u.ravel()
    log_error = _LOG_PANEL_ERROR + _GROWTH
    log_error += math.log(2 * halves.size * (3 + tilt + frequency))
    return Nodes(law.losses(u), weights.ravel() + law.log_density(u), log_error)


def _growth(
    law: OutputLaw, start: float, half: float, tilt: float, frequency: float
) -> float:
    """Returns how much an integrand may grow from a panel to its ellipse.

    In nats. The ellipse reaches `far` beyond the ends and is `high` above the
    axis, where `|(log R)'|` is at most `1/cos(turn high / 2)` times what it is
    on the axis, and the integral of that is how far `e^l` turns.
    """
    far, high = (_WIDE - 1) * half, _HIGH * half
    low_end, high_end = start - far, start + 2 * half + far
    steepest = law.steepest(low_end, high_end)
    slope = (1 + tilt) * steepest + max(abs(low_end), abs(high_end))
    turned = high * steepest / math.cos(law.turn * high / 2)
    less = -tilt * math.log(math.cos(law.denominator_turn * high / 2))
    return slope * far + high**2 / 2 + frequency * turned + less


def _grid(low: float, high: float, step: float) -> Array:
    """Returns points with a distance of `step`.

    Raises:
        TooSlowError: They are too many.
    """
    size = (high - low) / step
    if size > _MOST_NODES:
        raise TooSlowError
    return np.asarray(low + step * np.arange(math.ceil(size) + 1))
