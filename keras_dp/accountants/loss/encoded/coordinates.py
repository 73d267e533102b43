"""The coordinates of a round whose noise is not all normal."""

import dataclasses
import functools
import math

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.mechanisms import AdditiveNoise, Encoding
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import GaussianNoise, NoiseDistribution
from keras_dp.ledger.noise_families import (
    CauchyNoise,
    HyperbolicSecantNoise,
    LaplaceNoise,
    LogisticNoise,
    StudentTNoise,
)
from keras_dp.ledger.variance_gamma_noise import VarianceGammaNoise

# Families whose slope of the log-density goes to 1 scale from below.
_EXPONENTIAL_TAILS = (
    LaplaceNoise,
    LogisticNoise,
    HyperbolicSecantNoise,
    VarianceGammaNoise,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Coordinates:
    """Equal coordinates: noise of scale 1, and the noise moved by `shift`.

    Attributes:
        noise: Of scale 1, not normal.
        shift: In scales, > 0.
        count: How many there are, >= 1.
    """

    noise: NoiseDistribution
    shift: float
    count: int

    @property
    def largest_loss(self) -> float:
        """A bound on `|log z(x - v) / z(x)|` of one; `inf` if none is known.

        For Student's t with `n` degrees of freedom it is
        `(n + 1) asinh(v / (2 sqrt(n)))`, where `x - v/2` is the root of
        `n + v^2/4`; log-convex tails of slope 1 have `v`.
        """
        match self.noise:
            case StudentTNoise(df=df):
                unit = math.sqrt(df)
                return (df + 1) * math.asinh(self.shift / 2 / unit)
            case CauchyNoise():
                return 2 * math.asinh(self.shift / 2)
        if isinstance(self.noise, _EXPONENTIAL_TAILS):
            return self.shift
        return math.inf


@dataclasses.dataclass(frozen=True, slots=True)
class Shift:
    """A product of noise laws, and the same moved.

    Attributes:
        normal: Distance of the normal part, in its stddevs, >= 0.
        coordinates: All others.
    """

    normal: float
    coordinates: tuple[Coordinates, ...]

    @property
    def largest_loss(self) -> float:
        """A bound on the size of the loss, `inf` if there is none."""
        if self.normal:
            return math.inf
        return math.fsum(
            each.count * each.largest_loss for each in self.coordinates
        )


@functools.lru_cache(maxsize=1024)
def worst_shift(mechanism: AdditiveNoise) -> Shift:
    """Returns the shift that a record of the round costs most with.

    Guarantee: with `Z` the product of the noise laws, for every `a >= 0`

        int max(Z(x-v) - a Z(x), 0) dx = 1 - int min(Z(x-v), a Z(x)) dx

    does not fall in any `|v_t|`. Hold the other coordinates: `min(b z(x-v),
    c z(x))` integrates to `int_0^inf |(A_h + v) cap B_h| dh` with `A_h`, `B_h`
    the sets where `b z > h` and `c z > h`. As the density is symmetric and
    unimodal they are intervals around 0, and what two such intervals share
    does not grow when one moves away. Every f-divergence of `Z(.-v)` and `Z`,
    in both orders and after sampling, which only changes the `f`, is an
    integral of these. So one vector of the bounds counts for all whose sorted
    magnitudes are below its own.

    Raises:
        UnsupportedEventError: The vectors of an encoding cross, so that no one
            of them counts for all; or noise has no density that is smooth but
            at 0 and a finite Fisher information.
    """
    square = mechanism.noise_multiplier**-2
    found: dict[tuple[NoiseDistribution, float], int] = {}
    for encoding in mechanism.encodings:
        noise = encoding.noise
        levels, counts = _largest_vector(encoding)
        shifts = levels / noise.scale
        if isinstance(noise, GaussianNoise):
            square += float(counts @ np.square(shifts))
            continue
        standard = noise.scaled(1 / noise.scale)
        for shift, count in zip(shifts.tolist(), counts.tolist(), strict=True):
            if shift > 0:
                key = standard, shift
                found[key] = found.get(key, 0) + count
    return Shift(
        math.sqrt(square),
        tuple(
            Coordinates(noise, shift, count)
            for (noise, shift), count in found.items()
        ),
    )


def has_worst_shift(mechanism: AdditiveNoise) -> bool:
    """Returns whether `worst_shift` finds one."""
    try:
        worst_shift(mechanism)
    except UnsupportedEventError:
        return False
    return True


def _largest_vector(encoding: Encoding) -> tuple[Array, Array]:
    """Returns levels and counts of the vector that is above all others."""
    levels = encoding.bounds.level_array().astype(np.float64)
    counts = encoding.bounds.count_array()
    orders = np.argsort(-levels, axis=1, kind="stable")
    falling = np.take_along_axis(levels, orders, axis=1)
    ends = np.cumsum(counts[orders], axis=1)
    # The sorted vectors change at these coordinates only.
    last = np.unique(ends)
    sorted_levels = np.stack(
        [
            row[np.searchsorted(end, last)]
            for row, end in zip(falling, ends, strict=True)
        ]
    )
    top = sorted_levels.max(axis=0)
    if not (sorted_levels == top).all(axis=1).any():
        raise UnsupportedEventError(
            "`bounds` must hold a vector that is above all others once each is "
            f"sorted. Received: bounds={encoding.bounds!r}, whose vectors "
            "cross. Rényi divergences, which `RDP` composes, have a bound."
        )
    return top, np.diff(last, prepend=0)
