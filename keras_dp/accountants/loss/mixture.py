"""The loss of a mixture of Gaussians, against a component or its mirror image.

With `u ~ N(0, 1)` the output in units of the noise, `R(u) = sum_k p_k
e^(k m u - k^2 m^2 / 2)` is the likelihood ratio of `sum_k p_k N(k, z^2)` and
`N(0, z^2)`, where `m = 1/z`. One Poisson sample is the case of two
components, a group of records that of more.

Also the mixtures of whole losses, and losses of finitely many values.
"""

import dataclasses
import math

import numpy as np
from scipy import special

from keras_dp._override import override
from keras_dp.accountants.arrays import EXPONENT, Points, log1p
from keras_dp.accountants.loss.loss_distribution import (
    NO_DECAY,
    Decay,
    LossDistribution,
    Nodes,
    log_moments,
)
from keras_dp.accountants.loss.of_normal_output import (
    PRECISION,
    REACH,
    OutputLoss,
)
from keras_dp.accountants.roots import last_true

# More than the rounding of a log moment.
_ROUNDING = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class MixtureLoss(OutputLoss):
    """The distribution of `log R` under `P = R N` or of `-log R` under `P = N`.

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
    def largest(self) -> float:
        if not self.is_added:
            return math.inf
        if len(self.probabilities) == 2 and self.probabilities[1] < 1:
            return -math.log1p(-self.probabilities[1])
        # A probability that is below every float says nothing of the loss.
        least = self.probabilities[0]
        return -math.log(least) if least else math.inf

    @property
    @override
    def rises(self) -> bool:
        return not self.is_added

    @property
    @override
    def turn(self) -> float:
        return (len(self.probabilities) - 1) / self.noise_multiplier

    @property
    @override
    def denominator_turn(self) -> float:
        return self.turn if self.is_added else 0.0

    @override
    def losses(self, u: Points) -> Points:
        return -self.log_ratio(u) if self.is_added else self.log_ratio(u)

    @override
    def log_density(self, u: Points) -> Points:
        log_normal = -u * u / 2 - math.log(2 * math.pi) / 2
        if self.is_added:
            return np.asarray(log_normal + self.log_ratio(u))
        return np.asarray(log_normal)

    def log_ratio(self, u: Points) -> Points:
        """Returns `log R`, relatively precise also where it is near 0."""
        change = np.zeros_like(u)
        largest = np.zeros(u.shape)
        for k, probability in enumerate(self.probabilities[1:], 1):
            w = self._exponent(u, k)
            change += probability * np.expm1(np.where(w.real < EXPONENT, w, 0))
            largest = np.maximum(largest, w.real)
        is_far = (change.real <= -0.5) | (largest >= EXPONENT)
        result = log1p(np.where(is_far, 0.0, change))
        if is_far.any():
            result[is_far] = self._far_log_ratio(u[is_far])
        return np.asarray(result)

    def _exponent(self, u: Points, k: int) -> Points:
        m = 1 / self.noise_multiplier
        return np.asarray(k * m * (u - k * m / 2))

    def _far_log_ratio(self, u: Points) -> Points:
        """Returns the log of the sum of the terms of `R`, without overflow."""
        terms = np.stack(
            [
                self._exponent(u, k) + math.log(probability)
                for k, probability in enumerate(self.probabilities)
                if probability > 0
            ]
        )
        peak = terms.real.max(axis=0)
        return np.asarray(peak + np.log(np.exp(terms - peak).sum(axis=0)))

    @property
    def free_output(self) -> float:
        """The output `u` of two components where the loss is 0."""
        return 0.5 / self.noise_multiplier

    @override
    def range(self, tilt: float) -> tuple[float, float]:
        # The log of `R^(1 + tilt) N` has a second derivative of at least -1:
        # where its slope is `-r` it has fallen by `r^2 / 2`, and beyond the
        # last such point it falls like `e^(-r u)` or faster. The log of
        # `R^(-tilt) N` is concave with a second derivative of at most -1: it
        # has fallen by `r^2 / 2` at the distance `r` from its peak.
        last = self.turn
        if self.is_added:
            peak = last_true(
                lambda u: u + tilt * self._slope_at(u) < 0,
                -tilt * last,
                0.0,
                nearest=PRECISION,
            )
            return peak - REACH, last + REACH
        high = (1 + tilt) * last + REACH
        while True:  # From above, to the last u = (1 + tilt) slope + r.
            lower = (1 + tilt) * self._slope_at(high) + REACH
            if high - lower < PRECISION:
                return -REACH, high
            high = lower

    def _slope_at(self, u: float) -> float:
        """Returns the derivative of `log R`, which rises."""
        m = 1 / self.noise_multiplier
        logs = [
            k * m * (u - k * m / 2) + (math.log(p) if p else -math.inf)
            for k, p in enumerate(self.probabilities)
        ]
        peak = max(logs)
        shares = [math.exp(log - peak) for log in logs]
        return m * sum(k * p for k, p in enumerate(shares)) / sum(shares)


@dataclasses.dataclass(frozen=True, slots=True)
class ReplaceOneLoss(OutputLoss):
    """The loss of `SampledGaussianReplaceOne`."""

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


@dataclasses.dataclass(frozen=True, slots=True)
class EitherLoss(LossDistribution):
    """The mixture of some losses: moments are means of their moments.

    The chances, of sum 1, know nothing of the data.
    """

    parts: tuple[OutputLoss, ...]
    chances: tuple[float, ...]

    @property
    @override
    def largest(self) -> float:
        return max(part.largest for part, _ in self._some())

    @override
    def nodes(self, tilt: float, frequency: float = 0.0) -> Nodes:
        found = [
            (part.nodes(tilt, frequency), log) for part, log in self._some()
        ]
        return Nodes(
            np.concatenate([each.losses for each, _ in found]),
            np.concatenate([each.log_weights + log for each, log in found]),
            # Errors are relative to the moments, of which `M` is the mean.
            max(each.log_error for each, _ in found),
        )

    @override
    def decay(self, tilt: float) -> Decay:
        at = np.array([tilt])
        whole = float(log_moments(self, at)[0])
        sizes, turns = [], []
        for part, log in self._some():
            share = log + float(log_moments(part, at)[0]) - whole
            found = part.decay(tilt)
            sizes.append(found.log_sizes + share + _ROUNDING)
            turns.append(found.turns)
        return Decay(np.hstack(sizes), np.hstack(turns))

    def _some(self) -> list[tuple[OutputLoss, float]]:
        """Returns the losses that there are, with the logs of their chances."""
        pairs = zip(self.parts, self.chances, strict=True)
        return [(part, math.log(p)) for part, p in pairs if p > 0]


@dataclasses.dataclass(frozen=True, slots=True)
class FiniteLoss(LossDistribution):
    """Losses with masses: its integrals are sums, and exact.

    Losses are in nats, rising. The masses, > 0 and of sum 1, are those under
    `Q`. Times `e^loss` each they are those under `P`, and their sum is 1 too.
    """

    losses: tuple[float, ...]
    masses: tuple[float, ...]

    @property
    @override
    def largest(self) -> float:
        return self.losses[-1]

    @override
    def nodes(self, tilt: float, frequency: float = 0.0) -> Nodes:
        return Nodes(np.array(self.losses), np.log(self.masses), -math.inf)

    @override
    def decay(self, tilt: float) -> Decay:
        # The size of a sum of waves comes back.
        return NO_DECAY
