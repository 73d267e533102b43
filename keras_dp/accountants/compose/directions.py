"""From mechanisms to privacy losses, in both adjacency directions."""

import functools
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.curve import Curve
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.loss_distribution import LossDistribution
from keras_dp.accountants.loss.mixture import (
    EitherLoss,
    FiniteLoss,
    MixtureLoss,
    ReplaceOneLoss,
)
from keras_dp.accountants.normalize.few_kinds import FewKinds
from keras_dp.accountants.normalize.mechanisms import (
    FixedSizeGaussian,
    FullOrNot,
    Gaussian,
    Mechanism,
    ProfilePair,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
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

    upper: Curve
    lower: Curve
    left_out: float


def directions(rounds: FewKinds, left_out: float) -> tuple[Direction, ...]:
    """Returns what bounds the rounds, in one or both directions.

    Many members in a sample may be left out, with the probability `left_out` in
    all rounds together.
    """
    total = sum(count for _, count in rounds.upper)
    of_one = functools.cache(lambda each: _losses(each, left_out / total))
    if not any(
        isinstance(mechanism, SampledGaussianGroup)
        for mechanism, _ in rounds.upper
    ):
        left_out = 0.0
    made: dict[tuple[Any, float], Curve] = {}

    def curve(direction: int, side: int) -> Curve:
        gaussian = 0.0
        counts: defaultdict[LossDistribution, float] = defaultdict(float)
        for mechanism, count in rounds[side]:
            if isinstance(mechanism, Gaussian):
                gaussian += count / mechanism.noise_multiplier**2
            else:
                counts[of_one(mechanism)[direction][side]] += count
        key = tuple(counts.items()), gaussian
        if key not in made:
            each = np.array(list(counts.values()))
            whole = Composition(tuple(counts), each, gaussian)
            made[key] = Curve(whole)
        return made[key]

    first, second = (
        Direction(curve(which, 0), curve(which, 1), left_out)
        for which in (0, 1)
    )
    return (first,) if first == second else (first, second)


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
    upper = FixedSizeLoss(first)
    return _Losses(upper, first), _Losses(upper, second)


@_losses.register
def _(
    mechanism: SampledGaussianGroup, left_out: float
) -> tuple[_Losses, _Losses]:
    members = binomial(
        mechanism.records, mechanism.sampling_probability, left_out
    )
    return _exact(*_mixtures(mechanism.noise_multiplier, members))


@_losses.register
def _(mechanism: FullOrNot, left_out: float) -> tuple[_Losses, _Losses]:
    chances = tuple(chance for chance, _, _ in mechanism.parts)
    mixtures = [_mixtures(z, (1 - q, q)) for _, z, q in mechanism.parts]
    first, second = zip(*mixtures, strict=True)
    if isinstance(mechanism.whole, SampledGaussianReplaceOne):
        _, z, q = mechanism.parts[0]
        first = second = (ReplaceOneLoss(z, q), *first[1:])
    return _exact(EitherLoss(first, chances), EitherLoss(second, chances))


@_losses.register
def _(mechanism: ProfilePair, left_out: float) -> tuple[_Losses, _Losses]:
    loss = FiniteLoss(mechanism.losses, mechanism.masses)
    return _exact(loss, loss)


def binomial(
    trials: int, probability: float, left_out: float
) -> tuple[float, ...]:
    """Returns the probabilities of 0, 1, ..., without the last, unlikely ones.

    The first two are always there.
    """
    # This import takes half a second. Other rounds do not need it.
    from scipy import stats

    found = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    tails = np.cumsum(found[::-1])[::-1]
    size = max(2, int((tails > left_out).sum()))
    return tuple(found[:size].tolist())
