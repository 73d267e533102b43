"""Gaussian differential privacy by the central limit: an approximation."""

import dataclasses
import math
from typing import ClassVar

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Gaussian,
    Mechanism,
    SampledGaussian,
)

# Its square is a float, and epsilon at that mean is not.
_LARGEST = 1e154


@dataclasses.dataclass(frozen=True, slots=True)
class GDP(Accountant):
    """Approximates the composed privacy loss by a normal distribution.

    Guarantee: none for rounds with Poisson sampling. The normal distribution is
    the limit for more and more rounds, each of which reveals less and less. No
    ledger is at the limit: the true epsilon can be above the result, by any
    factor. `is_bound` is false; never report the result as a guarantee. For
    rounds without sampling the approximation is exact, and the result is that
    of `AnalyticGaussian`.

    | q | z | rounds | delta | result | true epsilon |
    | --- | --- | --- | --- | --- | --- |
    | 0.01 | 4 | 10,000 | 1e-5 | 0.9424 | 0.9469 |
    | 1e-4 | 0.6 | 1,000,000 | 1e-8 | 2.065 | 2.868 |
    | 1e-3 | 1 | 2,000 | 1e-9 | 0.307 | 0.468 |
    | 0.01 | 1 | 1 | 1e-5 | 0.037 | 0.199 |
    | 0.1 | 0.3 | 1,000 | 1e-5 | 338,035 | 506 |

    The result in the last row is not too low, but useless: with little noise,
    `e^(1/z^2)` is far from the loss. `benchmarks/accountants.py` prints these
    rows, and more.

    The limit has one parameter `mu`, as in `mu`-GDP. `mu^2` is the sum of
    `q^2 (e^(1/z^2) - 1)` over the rounds with Poisson sampling, and of `1/z^2`
    over the rounds without sampling.

    Source: Dong, Roth, Su (2019), arXiv:1905.02383v3, Corollary 2.13 and
    section 3; Poisson sampling: Bu, Dong, Long, Su (2020),
    arXiv:1911.11607v3, section 3. We differ in allowing rounds of different
    kinds, and every size of `mu`.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(1e-3), (GaussianSum("all", 1.0, 1.0),))
    >>> round(GDP().epsilon([(step, 2000)], delta=1e-9), 3)
    0.307
    """

    is_bound: ClassVar[bool] = False
    name: ClassVar[str] = "GDP (approximate)"
    mechanisms: ClassVar[frozenset[type[Mechanism]]] = frozenset(
        {Gaussian, SampledGaussian}
    )

    def _epsilon(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        mu = _mean(rounds)
        return float(gaussian_profile.least_epsilon(mu, math.log(delta)))

    def _delta(
        self, rounds: tuple[CountedMechanism, ...], epsilon: float
    ) -> float:
        return math.exp(gaussian_profile.log_delta(_mean(rounds), epsilon))


def _mean(rounds: tuple[CountedMechanism, ...]) -> float:
    """Returns the parameter `mu` of the limit; see `GDP`."""
    parts = [
        math.exp(math.log(count) / 2 + _log_mean(mechanism))
        for mechanism, count in rounds
    ]
    return min(max(math.hypot(*parts), 1 / _LARGEST), _LARGEST)


def _log_mean(mechanism: Mechanism) -> float:
    """Returns the log of `1/z`, or of `q sqrt(e^(1/z^2) - 1)` if sampled."""
    log_ratio = -math.log(mechanism.noise_multiplier)
    if not isinstance(mechanism, SampledGaussian):
        return log_ratio
    exponent = math.exp(2 * min(log_ratio, math.log(_LARGEST)))
    growth = exponent + math.log(-math.expm1(-exponent))
    found = math.log(mechanism.sampling_probability) + growth / 2
    return min(found, math.log(_LARGEST))
