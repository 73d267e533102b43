"""The moments accountant of Abadi et al. (2016), for comparison."""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    Gaussian,
    Mechanism,
    OneOf,
    SampledGaussian,
)
from keras_dp.accountants.renyi.divergences import (
    check_moments,
    composed_log_moment,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Moments(Accountant):
    """Adds integer moments of the privacy loss and applies a tail bound.

    Guarantee: let `alpha(l)` be the sum over the rounds of
    `log E[exp(l L)]`, with L the privacy loss of a round. For every integer
    `l >= 1`, the ledger is `(epsilon, delta)`-private with
    `epsilon = (alpha(l) - log(delta)) / l`. The result is the least of these
    for `l` up to `max_moment`. It is there for comparison with published
    numbers: the result of `RDP` is never larger, because it has a better
    conversion and all real orders.

    It accounts for rounds without sampling, and for Poisson sampling under
    `add_or_remove_one` and `zero_out`. The noise is symmetric, so that only
    the direction of the loss with the larger moments is computed.

    Attributes:
        max_moment: The largest `l`, >= 1. The paper has 32.

    Source: Abadi et al. (2016), arXiv:1607.00133v2, Theorem 2 and section 3.2.
    We differ in the quadrature of the moments (`renyi.mixtures`).

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> round(Moments().epsilon([(step, 10_000)], delta=1e-5), 2)
    1.26
    """

    max_moment: int = 32

    name: ClassVar[str] = "moments"
    mechanisms: ClassVar[frozenset[type[Mechanism]]] = frozenset(
        {
            Gaussian,
            SampledGaussian,
            AdditiveNoise,
            OneOf,
        }
    )

    def __post_init__(self) -> None:
        _check.integer_at_least(1, max_moment=self.max_moment)

    @override
    def check_supported(self, rounds: tuple[CountedMechanism, ...]) -> None:
        # `super()` does not work in dataclasses with slots.
        Accountant.check_supported(self, rounds)
        for mechanism, _ in rounds:
            check_moments(mechanism)

    def _epsilon(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        moments, log_moments = self._log_moments(rounds)
        return float(np.min((log_moments - math.log(delta)) / moments))

    def _delta(
        self, rounds: tuple[CountedMechanism, ...], epsilon: float
    ) -> float:
        moments, log_moments = self._log_moments(rounds)
        return math.exp(min(0.0, np.min(log_moments - moments * epsilon)))

    def _log_moments(
        self, rounds: tuple[CountedMechanism, ...]
    ) -> tuple[Array, Array]:
        """Returns `l = 1, 2, ...` and `alpha(l)` of all rounds, rounded up."""
        moments = np.arange(1, self.max_moment + 1, dtype=np.float64)
        return moments, composed_log_moment(rounds, moments)
