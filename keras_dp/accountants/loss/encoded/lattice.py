"""The law of the loss of a round without sampling, on a lattice.

A tilted law is recovered from its characteristic function by a Fourier
series, exact to rounding where its density is large. Several tilts, each used
where its law has its mass, make tails relatively precise.
"""

import abc
import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy import fft
from typing_extensions import override

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.encoded.cells import lattice_masses
from keras_dp.accountants.loss.encoded.coordinates import Coordinates, Shift
from keras_dp.accountants.loss.encoded.transform import Complex, Transform
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import GaussianNoise

# Means of neighbouring tilts, in stddevs: densities between are above 1/10 of
# the largest of theirs.
_TILT_STEP = 4.0
_MOST_TILTS = 100
# Tails end where both laws have less than that beyond, e^-115 = 1e-50, or, if
# the law is bounded, where the last tilt has its mass.
_LEAST_LOG_MASS = -115.0
# Mass beyond the period of a Fourier series.
_LOG_ALIAS = -39.0
_ALIAS_TILTS = np.array([1.0, 2.0, 4.0, 8.0, 12.0])
# Log of a share of the largest density that rounding does not reach.
_NOISE = -26.0
# Beyond the band the characteristic function is below that.
_BAND_END = 1e-16
_POINTS_PER_STDDEV = 64
# How many stddevs are in the widest band that is tried, and in the first.
_BANDS = (16.0, 64.0, 256.0)
# Lattice points of a law that is not smooth, per period and per coordinate.
_MOST_POINTS = 2**19
_MOST_COORDINATE_POINTS = 2**17
# At most this much is added to the log of E[e^(s l)], over s (1+s), where a
# law must be moved to a lattice.
_MOST_SPREAD = 1e-4
# What rounding does to it, in units of 1.
_LEAST_SPREAD = 1e-15


class Lattice(NamedTuple):
    """The symmetric measure halfway between two laws of the loss.

    Attributes:
        step: Distance of the points, in nats.
        log_masses: At `-m, ..., m` steps, shape `[2 m + 1]`. Samples of a
            smooth density, times the step, or the masses of a discrete law
            that dominates the true one.
        band: The characteristic function is next to nothing beyond, `inf` for
            a discrete law.
        precision: Relative error of the masses, over 1 plus the log of
            `E[e^(u y)]` where `u` makes their loss the mean. Ten times the
            largest that was measured.
        spread: `M(s)` of the discrete law is at most `s (1+s)` times this
            above the true one, relative to it; 0 for samples.
        tilt: Up to here the masses are enough for `E[e^(tilt y)]`.
    """

    step: float
    log_masses: Array
    band: float
    precision: float
    spread: float
    tilt: float

    @property
    def losses(self) -> Array:
        """The points, shape `[2 m + 1]`."""
        most = self.log_masses.size // 2
        return np.asarray(np.arange(-most, most + 1) * self.step)


class _Tilt(NamedTuple):
    """`e^(u y) dH / E_H[e^(u y)]`, by `u` and its moments."""

    at: float
    log: float
    mean: float
    stddev: float


class _Law(abc.ABC):
    """A symmetric measure of which tilted pieces can be had.

    Attributes:
        transform: Of the law itself, or of one that differs by the spread.
        largest_loss: Of the measure.
    """

    transform: Transform
    largest_loss: float

    @abc.abstractmethod
    def piece(self, tilt: _Tilt, step: float, size: int) -> tuple[Array, float]:
        """Returns the Fourier series of a tilted law, and `log E_H[e^(u y)]`.

        The coefficients 0, ..., `size / 2`.
        """


class _Smooth(_Law):
    """By characteristic functions, if they fall fast enough."""

    def __init__(self, transform: Transform) -> None:
        self.transform = transform
        self.largest_loss = transform.largest_loss
        self._bands: dict[float, float] = {}

    def band(self, tilt: _Tilt) -> float:
        """Returns where the band ends, `inf` if it does not."""
        if tilt.at not in self._bands:
            self._bands[tilt.at] = self._find_band(tilt)
        return self._bands[tilt.at]

    def _find_band(self, tilt: _Tilt) -> float:
        for widest in _BANDS:
            wave = np.arange(1.0, 2 * widest + 1, dtype=np.float64)
            wave /= 2 * tilt.stddev
            logs = self.transform.log(_line(tilt.at, wave))
            above = logs.real - tilt.log > math.log(_BAND_END)
            last = int(np.flatnonzero(above)[-1]) + 2 if above.any() else 1
            if last < 0.75 * wave.size:
                return float(wave[last])
        return math.inf

    @override
    def piece(self, tilt: _Tilt, step: float, size: int) -> tuple[Array, float]:
        wave = np.arange(size // 2 + 1, dtype=np.float64)
        wave *= 2 * np.pi / (size * step)
        result = np.zeros(wave.size, np.complex128)
        end = int(np.searchsorted(wave, self.band(tilt))) + 1
        logs = self.transform.log(_line(tilt.at, wave[:end]))
        result[:end] = np.exp(logs - tilt.log)
        return fft.irfft(np.conj(result), size), tilt.log


def _line(tilt: float, wave: Array) -> Complex:
    return np.asarray(tilt + 1j * wave, dtype=np.complex128)


class _Discrete(_Law):
    """By the laws of single coordinates, moved to the lattice."""

    def __init__(
        self, transform: Transform, groups: list[tuple[Array, int]], step: float
    ) -> None:
        self.transform = transform
        self._groups = groups
        most = sum(count * (masses.size // 2) for masses, count in groups)
        self.largest_loss = most * step

    @override
    def piece(self, tilt: _Tilt, step: float, size: int) -> tuple[Array, float]:
        series = np.ones(size // 2 + 1, np.complex128)
        log = 0.0
        for masses, count in self._groups:
            most = masses.size // 2
            place = np.arange(-most, most + 1)
            tilted = masses * np.exp(tilt.at * step * place)
            total = float(tilted.sum())
            folded = np.bincount(place % size, tilted / total, size)
            series *= fft.rfft(folded) ** count
            log += count * math.log(total)
        return fft.irfft(series, size), log


def lattice(shift: Shift, tilt: float, frequency: float) -> Lattice:
    """Returns the law of the loss between noise and noise moved by `shift`.

    Args:
        shift: Not 0.
        tilt: Largest `u` of an `E_H[e^(u y)]` that is asked for.
        frequency: Largest frequency of what is integrated.

    Raises:
        UnsupportedEventError: The law is neither smooth nor one of few
            coordinates.
    """
    transform = Transform(shift)
    smooth = _Smooth(transform)
    tilts = _tilts(transform, tilt)
    band = 0.0
    for each in tilts:
        band = max(band, smooth.band(each))
        if math.isinf(band):
            return _discrete(shift, transform, tilts)
    least = min(each.stddev for each in tilts)
    step = min(least / _POINTS_PER_STDDEV, 3.0 / (band + frequency))
    masses = _stitched(smooth, tilts, step)
    error = transform.relative_error
    return Lattice(step, masses, band, error, 0.0, tilts[-1].at)


def _discrete(
    shift: Shift, transform: Transform, tilts: list[_Tilt]
) -> Lattice:
    parts = list(shift.coordinates)
    if shift.normal:
        parts.append(Coordinates(GaussianNoise(1.0), shift.normal, 1))
    sizes = [_reach(part) for part in parts]
    total = math.fsum(
        part.count * size for part, size in zip(parts, sizes, strict=True)
    )
    period = min(2 * total, 24 * max(each.stddev for each in tilts))
    step = max(period / _MOST_POINTS, max(sizes) / _MOST_COORDINATE_POINTS)
    # Atoms at the ends of the largest one are on the lattice.
    step = max(sizes) / math.floor(max(sizes) / step)
    counts = sum(part.count for part in parts)
    # Cells reach over two steps, and few over four.
    if counts * step * step / 2 > _MOST_SPREAD:
        raise UnsupportedEventError(
            "`encodings` must be of few coordinates, or of so many that their "
            f"loss has a smooth density. Received: {counts} coordinates. "
            "Rényi divergences, which `RDP` composes, have a bound."
        )
    groups, spread = [], _LEAST_SPREAD
    for part in parts:
        masses, each = lattice_masses(part, step)
        groups.append((masses, part.count))
        spread += part.count * each
    if counts == 1:
        with np.errstate(divide="ignore"):
            masses = np.log(groups[0][0])
        return Lattice(step, masses, math.inf, 1e-12, spread, math.inf)
    law = _Discrete(transform, groups, step)
    masses = _stitched(law, tilts, step)
    return Lattice(step, masses, math.inf, 1e-12, spread, math.inf)


def _reach(part: Coordinates) -> float:
    if math.isfinite(part.largest_loss):
        return part.largest_loss
    return Transform(Shift(0.0, (part,))).largest_loss


def _tilts(transform: Transform, tilt: float) -> list[_Tilt]:
    """Returns tilts from 0 to where tails end, with means not far apart."""
    found: list[_Tilt] = []
    u, end = 0.0, 0.999 * transform.most_tilt
    while len(found) < _MOST_TILTS:
        log, mean, variance = transform.moments(u)
        each = _Tilt(u, log, mean, math.sqrt(variance))
        if found:
            wide = max(each.stddev, found[-1].stddev)
            if mean - found[-1].mean > 1.5 * _TILT_STEP * wide:
                u = (u + found[-1].at) / 2
                continue
        found.append(each)
        tail = log - (u - 0.5) * mean
        if u >= end or (u >= tilt and tail < _LEAST_LOG_MASS):
            break
        if mean + each.stddev / 2 > transform.largest_loss:
            break
        u = min(u + _TILT_STEP / each.stddev, end)
    return found


def _stitched(law: _Law, tilts: list[_Tilt], step: float) -> Array:
    """Returns log masses from all tilts, each where it has its mass."""
    last = tilts[-1]
    most = last.mean + 2 * _TILT_STEP * last.stddev
    size = math.floor(min(most, law.largest_loss) / step + 0.5)
    bounds = [
        int((a.mean + b.mean) / 2 / step) for a, b in itertools.pairwise(tilts)
    ]
    result = np.full(size + 1, -np.inf)
    for tilt, start, stop in zip(
        tilts, [0, *bounds], [*bounds, size + 1], strict=True
    ):
        points = _period(law, tilt, step)
        first = math.floor(tilt.mean / step) - points // 2
        masses, log = law.piece(tilt, step, points)
        place = np.arange(max(start, first), min(stop, first + points))
        with np.errstate(divide="ignore"):
            logs = np.log(np.maximum(masses[place % points], 0.0))
        result[place] = logs + log - tilt.at * (place * step)
    if isinstance(law, _Smooth):
        # Up to where rounding is no longer small beside the density.
        tilted = result + last.at * step * np.arange(size + 1)
        noise = tilted < tilted[bounds[-1] if bounds else 0 :].max() + _NOISE
        noise[: bounds[-1] if bounds else 1] = False
        if noise.any():
            result = result[: max(int(np.argmax(noise)), 3)]
    return np.concatenate([result[:0:-1], result])


def _period(law: _Law, tilt: _Tilt, step: float) -> int:
    """Returns how many points hold the tilted law, by Chernoff's bound."""
    excess: list[list[tuple[float, float]]] = [[], []]
    for pull in (_ALIAS_TILTS / tilt.stddev).tolist():
        for side, sign in zip(excess, (1, -1), strict=True):
            u = tilt.at + sign * pull
            if abs(u) < law.transform.most_tilt:
                log = law.transform.moments(u)[0] - tilt.log
                side.append((log - sign * pull * tilt.mean, pull))
    reach = 8 * tilt.stddev
    while reach < 2 * law.largest_loss and any(
        all(log - pull * reach > _LOG_ALIAS for log, pull in side)
        for side in excess
    ):
        reach *= 1.25
    reach = min(reach, 2 * law.largest_loss + step)
    return int(fft.next_fast_len(2 * math.ceil(reach / step) + 2, real=True))
