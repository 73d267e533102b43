"""The moments accountant of Abadi et al. (2016), for comparison."""

import dataclasses
import functools
import math
from typing import ClassVar

import numpy as np
from scipy import special
from typing_extensions import override

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    DiscreteGaussian,
    Gaussian,
    Mechanism,
    OneOf,
    SampledDiscreteGaussian,
    SampledGaussian,
)
from keras_dp.accountants.renyi.divergences import (
    LOG_MOMENTS,
    check_moments,
)
from keras_dp.accountants.renyi.many_kinds import cells_of
from keras_dp.errors import UnsupportedEventError

# A hundred times the error measured against 40 digits.
_ROUND_UP = 1 + 1e-11


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
    `add_or_remove_one` and `zero_out`. The noise is symmetric, so that
    `log_moments` computes the direction of the loss with the larger moments.
    Similar kinds of sampled rounds are taken together if there are many, as in
    `RDP`.

    Attributes:
        max_moment: The largest `l`, >= 1. The paper has 32.

    Source: Abadi et al. (2016), arXiv:1607.00133v2, Theorem 2 and section 3.2.
    We differ in computing moments by a closed form (Mironov, Talwar, Zhang
    2019, arXiv:1908.10530v1, section 3.3), from which we split off the 1 with
    which it begins, against rounding.

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
            DiscreteGaussian,
            SampledDiscreteGaussian,
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
        total = np.zeros_like(moments)
        sampled = []
        for mechanism, count in rounds:
            if isinstance(mechanism, SampledGaussian | SampledDiscreteGaussian):
                sampled.append((mechanism, float(count)))
            else:
                total += count * log_moments(mechanism, moments)
        if sampled:
            mechanisms, counts = zip(*sampled, strict=True)
            cells = cells_of(mechanisms, np.array(counts))
            corners = [
                log_moments(SampledGaussian(z, q), moments)
                for z, q in zip(
                    cells.noise_multipliers.tolist(),
                    cells.probabilities.tolist(),
                    strict=True,
                )
            ]
            total += cells.total(np.stack(corners, axis=1))
        return moments, total * _ROUND_UP


@functools.singledispatch
def log_moments(mechanism: Mechanism, moments: Array) -> Array:
    """Returns `alpha(l) = log E_P[(P/Q)^l]` of one round.

    Args:
        mechanism: The mechanism of the round, with a `noise_multiplier` > 0.
        moments: Integers `l` >= 1, shape `[n]`.

    Returns:
        Shape `[n]`, in nats.

    >>> log_moments(Gaussian(noise_multiplier=2.0), np.array([7.0]))
    array([7.])
    """
    raise UnsupportedEventError(
        "`mechanism` must not replace a record of a sample. "
        f"Received: mechanism={mechanism!r}. Use `RDP` or `Fourier`."
    )


@log_moments.register(Gaussian)
@log_moments.register(DiscreteGaussian)
def _(mechanism: Gaussian | DiscreteGaussian, moments: Array) -> Array:
    return np.asarray(
        moments * (moments + 1) / (2 * mechanism.noise_multiplier**2)
    )


@log_moments.register(AdditiveNoise)
@log_moments.register(OneOf)
def _(mechanism: AdditiveNoise | OneOf, moments: Array) -> Array:
    # `l` is the order minus one; these are known at integers.
    return LOG_MOMENTS[type(mechanism)]([mechanism], moments)[:, 0]


@log_moments.register(SampledGaussian)
@log_moments.register(SampledDiscreteGaussian)
def _(
    mechanism: SampledGaussian | SampledDiscreteGaussian, moments: Array
) -> Array:
    # E_Q[(P/Q)^a] - 1 = sum_(k=2..a) C(a,k) q^k (1-q)^(a-k) (r_k - 1) with
    # r_k = e^(k(k-1)/(2z^2)) and a = l + 1: every term is positive.
    q, z = mechanism.sampling_probability, mechanism.noise_multiplier
    order = moments[:, None] + 1
    k = np.arange(2.0, moments.max() + 2)
    inside = k <= order
    missing = np.where(inside, order - k, 0)
    log_binomial = (
        special.gammaln(order + 1)
        - special.gammaln(k + 1)
        - special.gammaln(missing + 1)
    )
    growth = k * (k - 1) / (2 * z**2)
    terms = log_binomial + k * np.log(q) + missing * np.log1p(-q)
    terms = terms + growth + np.log(-np.expm1(-growth))
    terms = np.where(inside, terms, -np.inf)
    return np.asarray(np.logaddexp(0, special.logsumexp(terms, axis=1)))
