"""The loss of a Gaussian mixture against its mirror image.

With `u ~ N(0, 1)` the output in units of the noise, `R(u) = 1 - q + q e^(m u -
m^2/2)` and `m = 1/z`, the loss is `log R(u) - log R(-u)`: an odd function, so
that both orders of the pair have the same law of the loss.
"""

import dataclasses
import math

import numpy as np
from scipy import special
from typing_extensions import override

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.mixture import MixtureLaw
from keras_dp.accountants.loss.normal_mass import log_normal_masses
from keras_dp.accountants.loss.of_normal_output import (
    PRECISION,
    REACH,
    OutputLaw,
)

# sinh() of it is finite.
_LARGEST_ARGUMENT = 600.0


@dataclasses.dataclass(frozen=True, slots=True)
class ReplaceLaw(OutputLaw):
    """The law of the loss of `SampledGaussianReplaceOne`.

    Attributes:
        noise_multiplier: `z`, > 0.
        sampling_probability: `q`, in (0, 1).
    """

    noise_multiplier: float
    sampling_probability: float

    @property
    @override
    def support(self) -> tuple[float, float]:
        return -math.inf, math.inf

    @property
    @override
    def turn(self) -> float:
        return 2 / self.noise_multiplier

    @property
    @override
    def denominator_turn(self) -> float:
        return 1 / self.noise_multiplier

    @override
    def losses(self, u: Array) -> Array:
        return self._mixture().log_ratio(u) - self._mixture().log_ratio(-u)

    @override
    def log_density(self, u: Array) -> Array:
        log_normal = -u * u / 2 - math.log(2 * math.pi) / 2
        return log_normal + self._mixture().log_ratio(-u)

    @override
    def bend(self, tilt: float) -> float:
        return (1 + tilt) / (4 * self.noise_multiplier**2)

    @override
    def slopes(self, u: Array) -> Array:
        # (log R)' rises.
        return self._slope(u)[1:] + self._slope(-u)[:-1]

    @override
    def log_masses(self, edges: Array) -> tuple[Array, Array]:
        q, z = self.sampling_probability, self.noise_multiplier
        # e^l = R(u) / R(-u) is m u = l/2 + asinh(c sinh(l/2)).
        log_c = math.log1p(-q) - math.log(q) + 0.5 / z**2
        half = np.minimum(np.abs(edges) / 2, _LARGEST_ARGUMENT)
        with np.errstate(divide="ignore"):
            log_sinh = np.log(np.sinh(half))
        log_sinh = log_sinh + np.abs(edges) / 2 - half
        log_argument = log_c + log_sinh
        turned = np.where(
            log_argument < _LARGEST_ARGUMENT,
            np.arcsinh(np.exp(np.minimum(log_argument, _LARGEST_ARGUMENT))),
            log_argument + math.log(2),
        )
        u = z * np.sign(edges) * (np.abs(edges) / 2 + turned)
        none = log_normal_masses(u) + math.log1p(-q)
        own = log_normal_masses(u - 1 / z) + math.log(q)
        other = log_normal_masses(u + 1 / z) + math.log(q)
        return np.logaddexp(none, own), np.logaddexp(none, other)

    @override
    def steepest(self, low: float, high: float) -> float:
        ends = self._slope(np.array([high, -low]))
        return float(ends.sum())

    @override
    def log_tail(self, u: float) -> float:
        return self._mixture().log_tail(u)

    def _mixture(self) -> MixtureLaw:
        q = self.sampling_probability
        return MixtureLaw(self.noise_multiplier, (1 - q, q), is_added=False)

    def _slope(self, u: Array) -> Array:
        """Returns the derivative of `log R`, which rises."""
        q, z = self.sampling_probability, self.noise_multiplier
        odds = math.log(q) - math.log1p(-q) - 0.5 / z**2
        return np.asarray(special.expit(u / z + odds) / z)

    @override
    def range(self, tilt: float) -> tuple[float, float]:
        # To the right of 0 the slope of the log of `N R(u)^(1+c) R(-u)^(-c)`
        # is at most `-u + (1+c) (log R)'(u) + c (log R)'(0)`: see `MixtureLaw`.
        # To the left of 0 it is below `N`, and `Q` below `N R(-u)`.
        rest = tilt * float(self._slope(np.zeros(1))[0]) + REACH
        high = (1 + tilt) / self.noise_multiplier + rest
        while True:
            slope = float(self._slope(np.array([high]))[0])
            lower = (1 + tilt) * slope + rest
            if high - lower < PRECISION:
                return -1 / self.noise_multiplier - REACH, high
            high = lower
