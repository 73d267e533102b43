"""The privacy loss of a sampled round with noise of any unimodal law."""

import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import ndimage
from typing_extensions import override

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.encoded import masses
from keras_dp.accountants.loss.encoded.coordinates import Shift, worst_shift
from keras_dp.accountants.loss.encoded.lattice import Lattice, lattice
from keras_dp.accountants.loss.encoded.quadrature import compressed
from keras_dp.accountants.loss.loss_distribution import Layers, LossLaw, Nodes
from keras_dp.accountants.normalize.mechanisms import AdditiveNoise

# exp() of it is finite.
_EXPONENT = 600.0
# What is asked for at least, so that most requests share one lattice.
_LEAST_TILT, _TILT_MARGIN = 66.0, 2.0
# Beyond that many times more, and for faster waves than that many points
# resolve, there is no bound on the error but that of every law.
_MOST_OCTAVES, _MOST_POINTS = 3, 1e6
# The loss is analytic in a strip of half-width pi: waves of a frequency that
# much above what is asked for have e^(-12 pi) = 4e-17 of it.
_ANALYTIC = 12.0
# Nodes with less than e^-45 = 3e-20 of the largest term are left out.
_LOG_NEGLIGIBLE = -45.0
# Tilts between the ends of a rectangle at which errors are bounded; between
# them they vary by less than the factor that covers it.
_TILTS, _ROUND_UP = 9, 2.0
# |s| up to 128: compressed points are shared by most requests.
_LEAST_OCTAVE = 7
# How many uniform laws, how many cells, and the share of the density that is
# claimed where it is known from bins only.
_LAYERS, _BINS, _CLAIMED = 64, 512, 0.9


def additive_laws(mechanism: AdditiveNoise) -> tuple[LossLaw, LossLaw]:
    """Returns the laws of the loss of one round, a record removed or added.

    Guarantee: let `Z` be the law of all noise of the round, `v` the vector of
    `worst_shift` and `q` the sampling probability. The first law is that of
    `P = (1-q) Z + q Z(.-v)` and `Q = Z`, the second of the same two in the
    other order. For records within the bounds, in any order, with any signs
    and chosen in view of past rounds, every f-divergence of the outputs, and
    so every composed privacy profile, is at most that of these pairs: the
    output is the pair for some `|w| <= v`, moved by the other records; joint
    convexity takes the mixture over these away, and `worst_shift` has why
    less of a shift costs less.

    The loss is `log(1-q + q e^y)` with `y = log dZ(.-v)/dZ` the sum of the
    losses of independent coordinates. Where the law of `y` has a smooth
    density it is found from its characteristic function, to the errors that
    are stated: those are measured, and ten times the largest. Where it has
    not, with few coordinates, each is moved to a lattice in a way that
    dominates it, so that the laws are those of a pair that costs more;
    `log_error` holds a bound on how much.

    Raises:
        UnsupportedEventError: Vectors cross (see `worst_shift`), or the law is
            neither smooth nor one of few coordinates.

    Source: Nasr et al. (2020), arXiv:2007.11524v1, Lemmas 4 and 5, have Rényi
    divergences of integer orders. We have the law itself.
    """
    shift = worst_shift(mechanism)
    q = mechanism.sampling_probability
    if not shift.normal and not shift.coordinates:
        return _Nothing(), _Nothing()
    removed = _AdditiveLaw(shift, q, 1)
    # Without sampling the mirror image is the same law.
    return removed, removed if q == 1 else _AdditiveLaw(shift, q, -1)


@functools.lru_cache(maxsize=32)
def _lattice(shift: Shift, tilt: float, frequency: float) -> Lattice:
    return lattice(shift, tilt, frequency)


@functools.lru_cache(maxsize=32)
def _compressed(
    shift: Shift, tilt: float, largest: float
) -> tuple[Array, Array]:
    found = _lattice(shift, tilt, 0.0)
    return compressed(found.losses, found.log_masses, found.step, largest)


class _Points(NamedTuple):
    """Points of a lattice: the loss, and logs of `Q` and of `P` there."""

    y: Array
    log_mass: Array
    loss: Array
    log_q: Array
    log_p: Array


class _AdditiveLaw(LossLaw):
    """The loss `sign log(1-q + q e^y)`."""

    __slots__ = ("_probability", "_shift", "_sign")

    def __init__(self, shift: Shift, probability: float, sign: int) -> None:
        self._shift = shift
        self._probability = probability
        self._sign = sign

    @property
    @override
    def support(self) -> tuple[float, float]:
        most = self._shift.largest_loss
        if math.isfinite(most):
            found = self._base(0.0, 0.0)
            if found.spread:
                most = max(most, float(found.losses[-1]))
        ends = _sampled(np.array([-most, most]), self._probability)
        low, high = np.sort(self._sign * ends).tolist()
        return low, high

    @property
    @override
    def is_bound(self) -> bool:
        return bool(self._base(0.0, 0.0).spread)

    def _base(self, tilt: float, frequency: float) -> Lattice:
        found = _lattice(self._shift, _LEAST_TILT, 0.0)
        wanted = _LEAST_TILT
        if tilt + _TILT_MARGIN > found.tilt:
            octaves = math.ceil(math.log2((tilt + _TILT_MARGIN) / found.tilt))
            wanted = found.tilt * 2.0 ** min(octaves, _MOST_OCTAVES)
            found = _lattice(self._shift, wanted, 0.0)
        if not found.spread and _stride(found, frequency) < 1:
            least = 2.0 ** math.ceil(math.log2(frequency + _ANALYTIC))
            most = _MOST_POINTS / found.losses[-1]
            found = _lattice(self._shift, wanted, min(least, most))
        return found

    def _points(self, y: Array, log_mass: Array) -> _Points:
        seen = np.isfinite(log_mass)
        y, log_mass = y[seen], log_mass[seen]
        change = _sampled(y, self._probability)
        log_q = log_mass - y / 2
        log_p = log_q + change
        if self._sign < 0:
            log_q, log_p = log_p, log_q
        return _Points(y, log_mass, self._sign * change, log_q, log_p)

    @override
    def nodes(self, least_tilt: float, tilt: float, frequency: float) -> Nodes:
        found = self._base(tilt, frequency)
        most = max(1.0, _stride(found, frequency))
        if found.spread:
            size = abs(complex(1 + max(abs(tilt), abs(least_tilt)), frequency))
            octave = max(_LEAST_OCTAVE, math.ceil(math.log2(size)))
            y, log_mass = _compressed(self._shift, _LEAST_TILT, 2.0**octave)
        else:
            stride = 2 ** math.floor(math.log2(most))
            # Both halves start at 0.
            part = slice(found.losses.size // 2 % stride, None, stride)
            y = found.losses[part]
            log_mass = found.log_masses[part] + math.log(stride)
        points = self._points(y, log_mass)
        log_error = self._log_error(
            found, points, np.linspace(least_tilt, tilt, _TILTS), frequency
        )
        if not found.spread and _stride(found, frequency) < 1:
            log_error = math.inf
        # |M(s)| is at most M(Re s).
        log_error = min(log_error, math.log(2 + 1e-6))
        is_whole = found.losses[-1] >= self._shift.largest_loss
        if tilt + 1 > found.tilt and not is_whole:
            log_error = math.inf
        terms = [
            points.log_q + _log_size(points.loss, each, frequency)
            for each in (least_tilt, tilt)
        ]
        logs = np.maximum(*(each - each.max() for each in terms))
        seen = np.flatnonzero(logs > _LOG_NEGLIGIBLE)
        kept = slice(int(seen[0]), int(seen[-1]) + 1)
        return Nodes(points.loss[kept], points.log_q[kept], log_error)

    def _log_error(
        self, found: Lattice, points: _Points, tilts: Array, frequency: float
    ) -> float:
        """Returns the log of a bound on the relative error of `M`."""
        share = _second_share(points.y, self._probability)
        errors = []
        for tilt in tilts.tolist():
            grown = points.log_q + (1 + tilt) * points.loss
            sizes = points.log_q + _log_size(points.loss, tilt, frequency)
            log = _log_sum(points.log_mass + (abs(tilt) + 0.5) * points.y)
            precision = found.precision * (1 + max(log, 0.0))
            terms = [math.log(precision) + _log_sum(sizes)]
            if found.spread:
                order = _order(tilt, frequency)
                moved = _log_sum(grown + 2 * share)
                terms.append(math.log(found.spread * order) + moved)
            errors.append(np.logaddexp.reduce(terms) - _log_sum(grown))
        return float(max(errors)) + math.log(_ROUND_UP)

    @override
    def log_masses(self, edges: Array) -> tuple[Array, Array]:
        q = self._probability
        rising = edges if self._sign > 0 else -edges[::-1]
        log_own, log_moved = masses.log_masses(
            self._base(0.0, 0.0), _unsampled(rising, q)
        )
        log_mixture = log_moved
        if q < 1:
            log_mixture = np.logaddexp(
                math.log1p(-q) + log_own, math.log(q) + log_moved
            )
        if self._sign > 0:
            return log_mixture, log_own
        return log_own[::-1], log_mixture[::-1]

    @override
    def layers(self, tilt: float) -> Layers:
        found = self._base(tilt, 0.0)
        y, _, loss, _, log_p = self._points(found.losses, found.log_masses)
        logs = log_p + tilt * loss
        mass = np.exp(logs - _log_sum(logs))
        if found.spread:
            return _layers(*_binned(loss, mass), _CLAIMED)
        rise = np.exp(_second_share(y, self._probability))
        with np.errstate(divide="ignore", invalid="ignore"):
            density = np.where(mass > 0, mass / (found.step * rise), 0.0)
        cells = np.minimum(density[1:], density[:-1])
        return _layers(cells, np.abs(np.diff(loss)), 1.0)


class _Nothing(LossLaw):
    """No loss, as all records contribute nothing."""

    __slots__ = ()

    @property
    @override
    def support(self) -> tuple[float, float]:
        return 0.0, 0.0

    @override
    def nodes(self, least_tilt: float, tilt: float, frequency: float) -> Nodes:
        return Nodes(np.zeros(1), np.zeros(1), -math.inf)

    @override
    def log_masses(self, edges: Array) -> tuple[Array, Array]:
        found = np.full(edges.size + 1, -np.inf)
        found[np.searchsorted(edges, 0.0)] = 0.0
        return found, found.copy()

    @override
    def layers(self, tilt: float) -> Layers:
        return Layers(np.empty(0), np.empty(0))


def _stride(found: Lattice, frequency: float) -> float:
    """Returns how many points of the lattice a sum may go at once."""
    needed = found.band + frequency + _ANALYTIC
    return 2 * math.pi / (needed * found.step)


def _sampled(y: Array, q: float) -> Array:
    """Returns `log(1-q + q e^y)`."""
    if q == 1:
        return y
    change = q * np.expm1(np.minimum(y, _EXPONENT))
    terms = np.logaddexp(math.log1p(-q), math.log(q) + y)
    near = (change > -0.5) & (y < _EXPONENT)
    return np.where(near, np.log1p(np.maximum(change, -0.5)), terms)


def _unsampled(loss: Array, q: float) -> Array:
    """Returns the `y` whose `_sampled` is `loss`, `-inf` if there is none."""
    if q == 1:
        return loss
    change = np.expm1(np.minimum(loss, _EXPONENT)) / q
    far = loss - math.log(q) + np.log1p(-(1 - q) * np.exp(-np.maximum(loss, 0)))
    with np.errstate(divide="ignore"):
        near = np.log1p(np.maximum(change, -1.0))
    return np.where(loss < _EXPONENT, near, far)


def _second_share(y: Array, q: float) -> Array:
    """Returns the log of `q e^y / (1-q + q e^y)`."""
    return math.log(q) + y - _sampled(y, q)


def _order(tilt: float, frequency: float) -> float:
    """Returns `|s (1+s)|`, not quite 0."""
    order = abs(complex(1 + tilt, frequency)) * abs(complex(tilt, frequency))
    return max(order, 1e-300)


def _log_size(loss: Array, tilt: float, frequency: float) -> Array:
    """Returns the log of a bound on `|X^(1+s) - 1 - (1+s) (X-1)|`, `X = e^l`.

    It is `s (1+s)` times the integral of `(X-t) t^(s-1)` from 1 to `X`.
    """
    order = abs(complex(1 + tilt, frequency))
    with np.errstate(divide="ignore"):
        log_change = np.where(
            loss > 1,
            loss + np.log(-np.expm1(-np.abs(loss))),
            np.log(np.abs(np.expm1(np.minimum(loss, 1.0)))),
        )
        near = math.log(_order(tilt, frequency) / 2) + 2 * log_change
        near = near + np.maximum(0, (tilt - 1) * loss)
        far = np.logaddexp(0, (1 + tilt) * loss)
        far = np.logaddexp(far, math.log(order) + log_change)
    return np.asarray(np.minimum(near, far))


def _log_sum(logs: Array) -> float:
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).sum()))


def _binned(loss: Array, mass: Array) -> tuple[Array, Array]:
    """Returns a density below that of bins, without atoms, and their widths."""
    size = max(1, loss.size // _BINS)
    count = loss.size // size
    total = mass[: count * size].reshape(count, size).sum(axis=1)
    width = np.abs(
        loss[size - 1 : count * size : size] - loss[: count * size : size]
    )
    width = np.maximum(width, 1e-300)
    density = ndimage.minimum_filter1d(total / width, 5, mode="constant")
    return density, width


def _layers(density: Array, width: Array, claimed: float) -> Layers:
    """Returns layers of the largest unimodal density below a given one."""
    mode = int(density.argmax())
    right = np.minimum.accumulate(density[mode:])
    left = np.minimum.accumulate(density[mode::-1])
    below = np.concatenate([left[:0:-1], right])
    heights = np.linspace(0, below[mode], _LAYERS + 1)[1:]
    widths = np.array([width[below >= height].sum() for height in heights])
    probabilities = claimed * widths * heights[0]
    seen = probabilities > 0
    return Layers(probabilities[seen], widths[seen])
