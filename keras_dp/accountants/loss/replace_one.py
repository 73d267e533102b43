"""The loss of a Gaussian mixture against its mirror image.

With `u ~ N(0, 1)` the output in units of the noise, `R(u) = 1 - q + q e^(m u -
m^2/2)` and `m = 1/z`, the loss is `log R(u) - log R(-u)`: an odd function, so
that both directions have the same loss distribution.
"""

import dataclasses
import math

from scipy import special

from keras_dp._override import override
from keras_dp.accountants.arrays import Points
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.accountants.loss.of_normal_output import (
    PRECISION,
    REACH,
    OutputLoss,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ReplaceOneLoss(OutputLoss):
    """The loss of `SampledGaussianReplaceOne`.

    Attributes:
        noise_multiplier: `z`, > 0.
        sampling_probability: `q`, in (0, 1).
    """

    rises = True

    largest = math.inf

    noise_multiplier: float
    sampling_probability: float

    @property
    @override
    def turn(self) -> float:
        return 2 / self.noise_multiplier

    @property
    @override
    def denominator_turn(self) -> float:
        return 1 / self.noise_multiplier

    @override
    def losses(self, u: Points) -> Points:
        return self._mixture().log_ratio(u) - self._mixture().log_ratio(-u)

    @override
    def log_density(self, u: Points) -> Points:
        log_normal = -u * u / 2 - math.log(2 * math.pi) / 2
        return log_normal + self._mixture().log_ratio(-u)

    def _mixture(self) -> MixtureLoss:
        q = self.sampling_probability
        return MixtureLoss(self.noise_multiplier, (1 - q, q), is_added=False)

    def _slope(self, u: float) -> float:
        """Returns the derivative of `log R`, which rises."""
        q, z = self.sampling_probability, self.noise_multiplier
        odds = math.log(q) - math.log1p(-q) - 0.5 / z**2
        return float(special.expit(u / z + odds) / z)

    @override
    def range(self, tilt: float) -> tuple[float, float]:
        # To the right of 0 the slope of the log of `N R(u)^(1+c) R(-u)^(-c)`
        # is at most `-u + (1+c) (log R)'(u) + c (log R)'(0)` (`MixtureLoss`).
        # To the left of 0 it is below `N`, and `Q` below `N R(-u)`.
        rest = tilt * self._slope(0.0) + REACH
        high = (1 + tilt) / self.noise_multiplier + rest
        while True:
            lower = (1 + tilt) * self._slope(high) + rest
            if high - lower < PRECISION:
                return -1 / self.noise_multiplier - REACH, high
            high = lower
