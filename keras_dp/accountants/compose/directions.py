"""From mechanisms to the laws of loss whose sum the tight accountant needs."""

import functools
from typing import NamedTuple

import numpy as np
from scipy import stats

from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.loss_distribution import LossDistribution
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.accountants.loss.replace_one import ReplaceOneLoss
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
    WithReplacementGaussian,
)
from keras_dp.errors import UnsupportedEventError


class Order(NamedTuple):
    """One order of the pairs of all rounds.

    Attributes:
        upper: Dominates the rounds.
        lower: Is reached by two data sets; the same where that is known to be
            exact.
        left_out: To be added to the delta of `upper`.
    """

    upper: Composition
    lower: Composition
    left_out: float


def orders(
    rounds: tuple[CountedMechanism, ...], left_out: float
) -> tuple[Order, ...]:
    """Returns what bounds the rounds, one or both orders of the pairs.

    Args:
        rounds: Of the kinds in `Fourier.mechanisms`.
        left_out: Probability of many draws or members in a sample that may be
            left out, in all rounds together.
    """
    gaussian = 0.0
    laws: list[tuple[float, tuple[_Laws, _Laws]]] = []
    for mechanism, count in rounds:
        if isinstance(mechanism, Gaussian):
            gaussian += count / mechanism.noise_multiplier**2
        else:
            each = left_out / (count * len(rounds))
            laws.append((float(count), _laws(mechanism, each)))
    counts = np.array([count for count, _ in laws])
    if not any(
        isinstance(mechanism, SampledGaussianGroup | WithReplacementGaussian)
        for mechanism, _ in rounds
    ):
        left_out = 0.0
    found = []
    for order in (0, 1):
        upper = tuple(both[order].upper for _, both in laws)
        lower = tuple(both[order].lower for _, both in laws)
        same = Composition(upper, counts, gaussian)
        found.append(
            Order(
                same,
                Composition(lower, counts, gaussian)
                if any(a is not b for a, b in zip(upper, lower, strict=True))
                else same,
                left_out,
            )
        )
    is_symmetric = all(both[0] == both[1] for _, both in laws)
    return tuple(found[:1] if is_symmetric else found)


class _Laws(NamedTuple):
    upper: LossDistribution
    lower: LossDistribution


@functools.singledispatch
def _laws(mechanism: Mechanism, left_out: float) -> tuple[_Laws, _Laws]:
    raise UnsupportedEventError(
        "`mechanism` must be of a class whose privacy loss is known. "
        f"Received: mechanism={mechanism!r}."
    )


def _exact(
    first: LossDistribution, second: LossDistribution
) -> tuple[_Laws, _Laws]:
    return _Laws(first, first), _Laws(second, second)


def _mixtures(
    noise_multiplier: float, probabilities: tuple[float, ...]
) -> tuple[MixtureLoss, MixtureLoss]:
    return (
        MixtureLoss(noise_multiplier, probabilities, is_added=False),
        MixtureLoss(noise_multiplier, probabilities, is_added=True),
    )


@_laws.register
def _(mechanism: SampledGaussian, left_out: float) -> tuple[_Laws, _Laws]:
    q = mechanism.sampling_probability
    return _exact(*_mixtures(mechanism.noise_multiplier, (1 - q, q)))


@_laws.register
def _(
    mechanism: SampledGaussianReplaceOne, left_out: float
) -> tuple[_Laws, _Laws]:
    law = ReplaceOneLoss(
        mechanism.noise_multiplier, mechanism.sampling_probability
    )
    return _exact(law, law)


@_laws.register
def _(mechanism: FixedSizeGaussian, left_out: float) -> tuple[_Laws, _Laws]:
    q = mechanism.sampling_probability
    first, second = _mixtures(mechanism.noise_multiplier, (1 - q, q))
    upper = FixedSizeLoss((first,), (1.0,))
    return _Laws(upper, first), _Laws(upper, second)


@_laws.register
def _(
    mechanism: WithReplacementGaussian, left_out: float
) -> tuple[_Laws, _Laws]:
    z = mechanism.noise_multiplier
    draws = _binomial(
        mechanism.sample_size, 1 / mechanism.population_size, left_out
    )
    first, second = _mixtures(z, draws)
    q = mechanism.sampling_probability
    repeated = np.array(draws[1:]) / sum(draws[1:])
    upper = FixedSizeLoss(
        tuple(
            MixtureLoss(z / k, (1 - q, q), is_added=False)
            for k in range(1, len(draws))
        ),
        tuple(repeated.tolist()),
    )
    return _Laws(upper, first), _Laws(upper, second)


@_laws.register
def _(mechanism: SampledGaussianGroup, left_out: float) -> tuple[_Laws, _Laws]:
    members = _binomial(
        mechanism.group_size, mechanism.sampling_probability, left_out
    )
    return _exact(*_mixtures(mechanism.noise_multiplier, members))


def _binomial(
    trials: int, probability: float, left_out: float
) -> tuple[float, ...]:
    """Returns the probabilities of 0, 1, ..., without the last, unlikely ones.

    Of the first two there always are both.
    """
    found = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    tails = np.cumsum(found[::-1])[::-1]
    size = max(2, int((tails > left_out).sum()))
    return tuple(found[:size].tolist())
