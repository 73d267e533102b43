"""The exact privacy of Gaussian releases, as an oracle of accountants."""

import dataclasses
import math
from typing import ClassVar

from benchmarks.strong_composition import least_epsilon
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.groups import Profile
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Gaussian,
    Mechanism,
)


@dataclasses.dataclass(frozen=True, slots=True)
class AnalyticGaussian(Accountant):
    """Accounts exactly for Gaussian sums without amplification by sampling.

    These are sums over all records or disjoint batches, and trees.

    Guarantee: rounds with noise multipliers `z_i` compose to one Gaussian
    release whose sensitivity, divided by the stddev of its noise, is
    `mu = sqrt(sum_i 1/z_i^2)`. The least `delta` for `epsilon = e` is
    `Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu)`, with Phi the normal
    distribution function. The result is that value, computed to about 1e-12 and
    rounded up. Other rounds are refused: those with amplification by sampling,
    and those whose noise is not normal.

    Source: Balle and Wang (2018), arXiv:1805.06530v2, Theorem 8; composition
    by Dong, Roth, Su (2019), arXiv:1905.02383v3, Corollary 3.3. We differ in
    computing with logarithms of Mills ratios, which is accurate for every delta
    that a float holds.
    """

    name: ClassVar[str] = "analytic Gaussian"
    mechanisms: ClassVar[frozenset[type[Mechanism]]] = frozenset({Gaussian})

    def _epsilon(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        mu = _sensitivity(rounds)
        return float(least_epsilon(mu, math.log(delta)))

    def _profile(self, rounds: tuple[CountedMechanism, ...]) -> Profile:
        mu = _sensitivity(rounds)
        return lambda epsilon: math.exp(gaussian_profile.log_delta(mu, epsilon))


def _sensitivity(rounds: tuple[CountedMechanism, ...]) -> float:
    """Returns `mu` of all rounds together; see `AnalyticGaussian`."""
    parts = [
        math.sqrt(count) / mechanism.noise_multiplier
        for mechanism, count in rounds
    ]
    return math.hypot(*parts) * (1 + 1e-15)
