"""The loss of a mixture of Gaussians against one of its components.

With `u ~ N(0, 1)` the output in units of the noise, `R(u) = sum_k p_k
e^(k m u - k^2 m^2 / 2)` is the likelihood ratio of `sum_k p_k N(k, z^2)` and
`N(0, z^2)`, where `m = 1/z`. One Poisson sample is the case of two
components, a group of records or draws with replacement that of more.
"""

import dataclasses
import math

import numpy as np
from scipy import special
from typing_extensions import override

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.normal_mass import log_normal_masses
from keras_dp.accountants.loss.of_normal_output import (
    PRECISION,
    REACH,
    OutputLaw,
)

# exp() of it is finite.
_EXPONENT = 600.0
_MOST_ITERATIONS = 200


@dataclasses.dataclass(frozen=True, slots=True)
class MixtureLaw(OutputLaw):
    """The law of `log R` under `P = R N` or of `-log R` under `P = N`.

    Attributes:
        noise_multiplier: `z`, > 0.
        probabilities: `p_0, p_1, ...`, each >= 0, sum 1, `p_0 < 1`.
        is_added: Whether `P` is the single component, as when a record is
            added; otherwise `Q` is.
    """

    noise_multiplier: float
    probabilities: tuple[float, ...]
    is_added: bool

    @property
    @override
    def support(self) -> tuple[float, float]:
        with np.errstate(divide="ignore"):
            least = float(np.log(self.probabilities[0]))
        return (-math.inf, -least) if self.is_added else (least, math.inf)

    @property
    @override
    def turn(self) -> float:
        return (len(self.probabilities) - 1) / self.noise_multiplier

    @property
    @override
    def denominator_turn(self) -> float:
        return self.turn if self.is_added else 0.0

    @override
    def losses(self, u: Array) -> Array:
        return -self.log_ratio(u) if self.is_added else self.log_ratio(u)

    @override
    def log_density(self, u: Array) -> Array:
        log_normal = -u * u / 2 - math.log(2 * math.pi) / 2
        if self.is_added:
            return np.asarray(log_normal + self.log_ratio(u))
        return np.asarray(log_normal)

    @override
    def bend(self, tilt: float) -> float:
        # (log R)'' is the variance of numbers between 0 and `turn`.
        return 0.0 if self.is_added else (1 + tilt) * self.turn**2 / 4

    @override
    def slopes(self, u: Array) -> Array:
        return self.slope(u)[1:]

    @override
    def log_masses(self, edges: Array) -> tuple[Array, Array]:
        losses = -edges[::-1] if self.is_added else edges
        u = self.outputs(losses)
        shifts = np.arange(len(self.probabilities)) / self.noise_multiplier
        single = log_normal_masses(u)
        mixed = np.full_like(single, -np.inf)
        for probability, shift in zip(self.probabilities, shifts, strict=True):
            if probability > 0:
                part = log_normal_masses(u - shift) if shift else single
                mixed = np.logaddexp(mixed, part + np.log(probability))
        if self.is_added:
            return single[::-1], mixed[::-1]
        return mixed, single

    @override
    def steepest(self, low: float, high: float) -> float:
        return self._slope_at(high)

    @override
    def log_tail(self, u: float) -> float:
        if self.is_added:
            return float(special.log_ndtr(-u))
        shifts = np.arange(len(self.probabilities)) / self.noise_multiplier
        with np.errstate(divide="ignore"):
            logs = np.log(self.probabilities) + special.log_ndtr(shifts - u)
        return float(special.logsumexp(logs))

    def log_ratio(self, u: Array) -> Array:
        """Returns `log R`, relatively precise also where it is near 0."""
        change = np.zeros_like(u)
        largest = np.zeros_like(u)
        for k, probability in enumerate(self.probabilities[1:], 1):
            w = self._exponent(u, k)
            change += probability * np.expm1(np.minimum(w, _EXPONENT))
            largest = np.maximum(largest, w)
        is_far = (change <= -0.5) | (largest >= _EXPONENT)
        result = np.log1p(np.where(is_far, 0.0, change))
        if is_far.any():
            result[is_far] = self._logs(u[is_far])[1]
        return np.asarray(result)

    def slope(self, u: Array) -> Array:
        """Returns the derivative of `log R`, which rises."""
        terms, total = self._logs(u)
        k = np.arange(len(self.probabilities))[:, None]
        shares = k * np.exp(terms - total)
        return np.asarray(shares.sum(axis=0) / self.noise_multiplier)

    def _exponent(self, u: Array, k: int) -> Array:
        m = 1 / self.noise_multiplier
        return np.asarray(k * m * (u - k * m / 2))

    def _logs(self, u: Array) -> tuple[Array, Array]:
        """Returns logs of the terms of `R`, a row each, and of `R`."""
        with np.errstate(divide="ignore"):
            logs = np.log(self.probabilities)
        terms = np.stack(
            [self._exponent(u, k) + each for k, each in enumerate(logs)]
        )
        peak = terms.max(axis=0)
        return terms, peak + np.log(np.exp(terms - peak).sum(axis=0))

    def outputs(self, log_ratios: Array) -> Array:
        """Returns the `u` where `log R` has the given values."""
        least = math.log(self.probabilities[0] or 5e-324)
        z = self.noise_multiplier
        if len(self.probabilities) == 2:
            q = self.probabilities[1]
            with np.errstate(divide="ignore", invalid="ignore"):
                # log((e^l - 1 + q) / q), without overflow.
                rise = np.log1p(np.expm1(np.minimum(log_ratios, 1)) / q)
                far = (
                    np.log(-np.expm1(np.log1p(-q) - log_ratios))
                    if (q < 1)
                    else np.zeros_like(log_ratios)
                )
                far = log_ratios + far - np.log(q)
                w = np.where(log_ratios < 1, rise, far)
            w = np.where(log_ratios <= least, -np.inf, w)
            return np.asarray(z * w + 0.5 / z)
        return self._solved(log_ratios, least)

    def _solved(self, log_ratios: Array, least: float) -> Array:
        """Returns the same by Newton's method: `log R` is convex, rising."""
        largest = len(self.probabilities) - 1
        z = self.noise_multiplier
        inside = log_ratios > least
        target = np.where(inside, log_ratios, 1.0)
        # log R >= log p_K + K m u - K^2 m^2 / 2: to the right of the root.
        start = (target - math.log(self.probabilities[-1])) * z / largest
        u = start + largest / (2 * z)
        for _ in range(_MOST_ITERATIONS):
            with np.errstate(divide="ignore", invalid="ignore"):
                step = (self.log_ratio(u) - target) / self.slope(u)
            step = np.where(np.isfinite(step), np.maximum(step, 0), 0)
            u = u - step
            if np.all(step <= 1e-13 * (1 + np.abs(u))):
                break
        return np.where(inside, u, -np.inf)

    @override
    def range(self, tilt: float) -> tuple[float, float]:
        # The log of `R^(1 + tilt) N` has a second derivative of at least -1:
        # where its slope is `-r` it has fallen by `r^2 / 2`, and beyond the
        # last such point it falls like `e^(-r u)` or faster. The log of
        # `R^(-tilt) N` is concave with a second derivative of at most -1: it
        # has fallen by `r^2 / 2` at the distance `r` from its peak.
        last = self.turn
        if self.is_added:
            low, high = -tilt * last, 0.0
            while high - low > PRECISION:
                middle = (low + high) / 2
                if middle + tilt * self._slope_at(middle) < 0:
                    low = middle
                else:
                    high = middle
            return low - REACH, last + REACH
        high = (1 + tilt) * last + REACH
        while True:  # From above, to the last u = (1 + tilt) slope + r.
            lower = (1 + tilt) * self._slope_at(high) + REACH
            if high - lower < PRECISION:
                return -REACH, high
            high = lower

    def _slope_at(self, u: float) -> float:
        """Returns `slope` at one point."""
        m = 1 / self.noise_multiplier
        logs = [
            k * m * (u - k * m / 2) + (math.log(p) if p else -math.inf)
            for k, p in enumerate(self.probabilities)
        ]
        peak = max(logs)
        shares = [math.exp(log - peak) for log in logs]
        return m * sum(k * p for k, p in enumerate(shares)) / sum(shares)
