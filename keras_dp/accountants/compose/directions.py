"""From mechanisms to privacy losses, in both adjacency directions."""

import dataclasses
import functools
from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.many_noises import (
    Kind,
    families,
    family_of,
)
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

# A kind of rounds whose moments are not interpolated has so many noises.
_MOST_NOISES = 16
# And so many probabilities: fewer are computed one by one, if it takes long.
_MOST_PROBABILITIES = 256


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
    total = sum(count for _, count in rounds)
    between = _between(rounds)
    of_one = functools.cache(lambda each: _losses(each, left_out / total))
    losses: list[tuple[float, tuple[_Losses, _Losses]]] = []
    sampled: defaultdict[float, list[tuple[float, float]]] = defaultdict(list)
    for mechanism, count in rounds:
        z = mechanism.noise_multiplier
        if isinstance(mechanism, Gaussian):
            gaussian += count / z**2
            continue
        if isinstance(mechanism, SampledGaussian):
            sampled[mechanism.sampling_probability].append((z, float(count)))
            continue
        less, more = between[type(mechanism)].of(mechanism)
        both = of_one(less)
        if less is not more:
            noisier = of_one(more)
            both = (
                _Losses(both[0].upper, noisier[0].lower),
                _Losses(both[1].upper, noisier[1].lower),
            )
        losses.append((float(count), both))
    if not any(
        isinstance(mechanism, SampledGaussianGroup | WithReplacementGaussian)
        for mechanism, _ in rounds
    ):
        left_out = 0.0
    noises = {q: np.array(members).T for q, members in sampled.items()}
    made: dict[tuple[Any, ...], Composition] = {}

    def of(direction: int, side: int) -> Composition:
        """Returns equal compositions as one object."""
        is_added = direction == 1
        key = tuple(both[direction][side] for _, both in losses)
        key_of_all = (is_added and bool(sampled), *key)
        if key_of_all not in made:
            found: defaultdict[LossDistribution, float] = defaultdict(float)
            for loss, (count, _) in zip(key, losses, strict=True):
                found[loss] += count
            counts = np.array(list(found.values()))
            made[key_of_all] = Composition(
                (
                    *(
                        family_of(Kind((1 - q, q), is_added), *both)
                        for q, both in noises.items()
                    ),
                    *families(tuple(found), counts),
                ),
                gaussian,
            )
        return made[key_of_all]

    first, second = (
        Direction(of(direction, 0), of(direction, 1), left_out)
        for direction in (0, 1)
    )
    return (first,) if first == second else (first, second)


class _Between(NamedTuple):
    """Noises and probabilities, rising, between which to round those of a kind.

    Attributes:
        noises: `None` if they are few.
        probabilities: `None` if they are few.
    """

    noises: Array | None
    probabilities: Array | None

    def of(self, mechanism: Any) -> tuple[Any, Any]:
        """Returns a mechanism that dominates it, and one that it dominates.

        More noise is post-processing, and so is to leave some samples out.
        """
        z, q = mechanism.noise_multiplier, mechanism.sampling_probability
        less: dict[str, float] = {}
        more: dict[str, float] = {}
        if self.noises is not None:
            less["noise_multiplier"], more["noise_multiplier"] = _around(
                self.noises, z
            )
        if self.probabilities is not None:
            more["sampling_probability"], less["sampling_probability"] = (
                _around(self.probabilities, q)
            )
        if not less:
            return mechanism, mechanism
        return (
            dataclasses.replace(mechanism, **less),
            dataclasses.replace(mechanism, **more),
        )


def _around(lines: Array, value: float) -> tuple[float, float]:
    return (
        float(lines[np.searchsorted(lines, value, side="right") - 1]),
        float(lines[np.searchsorted(lines, value)]),
    )


def _between(
    rounds: tuple[CountedMechanism, ...],
) -> dict[type[Mechanism], _Between]:
    """Returns between what to round each kind of mechanism.

    The moments of other kinds are interpolated (`many_noises`), or are few.
    """
    every: defaultdict[type[Mechanism], list[Any]] = defaultdict(list)
    for mechanism, _ in rounds:
        if not isinstance(mechanism, Gaussian | SampledGaussian):
            every[type(mechanism)].append(mechanism)
    return {
        kind: _Between(
            _lines({each.noise_multiplier for each in members}, _MOST_NOISES),
            # The probability of the others follows from integers.
            None
            if kind is WithReplacementGaussian
            else _lines(
                {each.sampling_probability for each in members},
                _MOST_PROBABILITIES,
            ),
        )
        for kind, members in every.items()
    }


def _lines(values: set[float], most: int) -> Array | None:
    """Returns lines from the least value to the largest, if they are many."""
    if len(values) <= most:
        return None
    found = np.geomspace(min(values), max(values), _MOST_NOISES)
    found[[0, -1]] = min(values), max(values)
    return np.asarray(found)


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
    # Importing it takes half a second, which other rounds need not wait for.
    from scipy import stats

    found = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    tails = np.cumsum(found[::-1])[::-1]
    size = max(2, int((tails > left_out).sum()))
    return tuple(found[:size].tolist())
