"""From mechanisms to privacy losses, in both adjacency directions."""

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


class Direction(NamedTuple):
    """One adjacency direction of all rounds.

    Attributes:
        upper: Dominates the rounds.
        lower: Is reached by two data sets; the same where that is known to be
            exact.
        left_out: To be added to the delta of `upper`.
    """

    upper: Composition
    lower: Composition
    left_out: float


def directions(
    rounds: tuple[CountedMechanism, ...], left_out: float
) -> tuple[Direction, ...]:
    """Returns what bounds the rounds, in one or both directions.

    Args:
        rounds: Rounds of the kinds in `Fourier.mechanisms`.
        left_out: Probability of many draws or members in a sample that may be
            left out, in all rounds together.
    """
    gaussian = 0.0
    losses: list[tuple[float, tuple[_Losses, _Losses]]] = []
    for mechanism, count in rounds:
        if isinstance(mechanism, Gaussian):
            gaussian += count / mechanism.noise_multiplier**2
        else:
            each = left_out / (count * len(rounds))
            losses.append((float(count), _losses(mechanism, each)))
    counts = np.array([count for count, _ in losses])
    if not any(
        isinstance(mechanism, SampledGaussianGroup | WithReplacementGaussian)
        for mechanism, _ in rounds
    ):
        left_out = 0.0
    found = []
    for direction in (0, 1):
        upper = tuple(both[direction].upper for _, both in losses)
        lower = tuple(both[direction].lower for _, both in losses)
        same = Composition(upper, counts, gaussian)
        found.append(
            Direction(
                same,
                Composition(lower, counts, gaussian)
                if any(a is not b for a, b in zip(upper, lower, strict=True))
                else same,
                left_out,
            )
        )
    is_symmetric = all(both[0] == both[1] for _, both in losses)
    return tuple(found[:1] if is_symmetric else found)


class _Losses(NamedTuple):
    upper: LossDistribution
    lower: LossDistribution


@functools.singledispatch
def _losses(mechanism: Mechanism, left_out: float) -> tuple[_Losses, _Losses]:
    raise UnsupportedEventError(
        "`mechanism` must be of a class whose privacy loss is known. "
        f"Received: mechanism={mechanism!r}."
    )


def _exact(
    first: LossDistribution, second: LossDistribution
) -> tuple[_Losses, _Losses]:
    return _Losses(first, first), _Losses(second, second)


def _mixtures(
    noise_multiplier: float, probabilities: tuple[float, ...]
) -> tuple[MixtureLoss, MixtureLoss]:
    return (
        MixtureLoss(noise_multiplier, probabilities, is_added=False),
        MixtureLoss(noise_multiplier, probabilities, is_added=True),
    )


@_losses.register
def _(mechanism: SampledGaussian, left_out: float) -> tuple[_Losses, _Losses]:
    q = mechanism.sampling_probability
    return _exact(*_mixtures(mechanism.noise_multiplier, (1 - q, q)))


@_losses.register
def _(
    mechanism: SampledGaussianReplaceOne, left_out: float
) -> tuple[_Losses, _Losses]:
    loss = ReplaceOneLoss(
        mechanism.noise_multiplier, mechanism.sampling_probability
    )
    return _exact(loss, loss)


@_losses.register
def _(mechanism: FixedSizeGaussian, left_out: float) -> tuple[_Losses, _Losses]:
    q = mechanism.sampling_probability
    first, second = _mixtures(mechanism.noise_multiplier, (1 - q, q))
    upper = FixedSizeLoss((first,), (1.0,))
    return _Losses(upper, first), _Losses(upper, second)


@_losses.register
def _(
    mechanism: WithReplacementGaussian, left_out: float
) -> tuple[_Losses, _Losses]:
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
    return _Losses(upper, first), _Losses(upper, second)


@_losses.register
def _(
    mechanism: SampledGaussianGroup, left_out: float
) -> tuple[_Losses, _Losses]:
    members = _binomial(
        mechanism.group_size, mechanism.sampling_probability, left_out
    )
    return _exact(*_mixtures(mechanism.noise_multiplier, members))


def _binomial(
    trials: int, probability: float, left_out: float
) -> tuple[float, ...]:
    """Returns the probabilities of 0, 1, ..., without the last, unlikely ones.

    The first two are always there.
    """
    found = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    tails = np.cumsum(found[::-1])[::-1]
    size = max(2, int((tails > left_out).sum()))
    return tuple(found[:size].tolist())
