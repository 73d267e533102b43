"""Rényi divergence of mechanisms, and of the rounds of a ledger."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.loss_distribution import conversion
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    FixedSizeGaussian,
    FullOrNot,
    Gaussian,
    Mechanism,
    OneOf,
    SampledGaussian,
    SampledGaussianReplaceOne,
    Selected,
)
from keras_dp.accountants.renyi import (
    encoded,
    mixtures,
)
from keras_dp.accountants.renyi.encoded import check_noise
from keras_dp.accountants.roots import last_true
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import PoissonTrials, TruncatedNegativeBinomial

# Exceeds the error measured against 40 digits a hundred times.
_ROUND_UP = 1 + 1e-12


def check_moments(mechanism: Mechanism) -> None:
    """Raises unless the divergence of a mechanism in `LOG_MOMENTS` is known.

    Raises:
        UnsupportedEventError: The noise of an encoded sum has no moments, or
            the divergence of a trial of a search is not known.
    """
    if isinstance(mechanism, Selected):
        _check_trials(mechanism)
    if isinstance(mechanism, OneOf):
        for alternative in mechanism.alternatives:
            check_moments(alternative)
    if isinstance(mechanism, AdditiveNoise):
        for encoding in mechanism.encodings:
            check_noise(encoding.noise)


def _check_trials(search: Selected) -> None:
    for plan in search.plans:
        for trial, _ in plan:
            if type(trial) not in LOG_MOMENTS or search.records > 1:
                raise UnsupportedEventError(
                    "`ledger` must hold searches whose trials have a known "
                    f"Rényi divergence. Received: {trial!r}, for "
                    f"{search.records} records. `Fourier` may have a bound."
                )
            check_moments(trial)


def rdp(mechanism: Mechanism, orders: Array) -> Array:
    """Returns the Rényi divergence of one round, or a bound on it.

    Args:
        mechanism: With a `noise_multiplier` > 0.
        orders: Shape `[n]`, each > 1.

    Returns:
        Shape `[n]`, in nats, never below the exact value.

    >>> rdp(Gaussian(noise_multiplier=2.0), np.array([8.0])).round(6)
    array([1.])
    """
    excess = np.asarray(orders, dtype=np.float64) - 1
    if not np.all(excess > 0):
        raise ValueError(f"`orders` must be > 1. Received: orders={orders!r}.")
    counted = CountedMechanism(mechanism, 1)
    return composed_log_moment((counted,), excess) / excess


def composed_log_moment(
    rounds: Sequence[CountedMechanism], excess: Array
) -> Array:
    """Returns `b` times the divergence of order `1 + b` of all rounds.

    Args:
        rounds: With noise multipliers > 0.
        excess: `b` > 0, the order minus one, shape `[n]`.
    """
    total = np.zeros_like(excess)
    for mechanism, count in rounds:
        if type(mechanism) not in LOG_MOMENTS:
            raise UnsupportedEventError(
                "`rounds` must be of a kind with a known Rényi divergence. "
                f"Received: {mechanism!r} in rounds."
            )
        total = total + count * _log_moment(mechanism, excess)
    return np.asarray(total * _ROUND_UP)


def _log_moment(mechanism: Mechanism, excess: Array) -> Array:
    return np.asarray(LOG_MOMENTS[type(mechanism)](mechanism, excess))


def _gaussian(mechanism: Gaussian, excess: Array) -> Array:
    return np.asarray(
        excess * (1 + excess) / (2 * mechanism.noise_multiplier**2)
    )


def _sampled(mechanism: SampledGaussian, excess: Array) -> Array:
    return mixtures.sampled(
        mechanism.sampling_probability, mechanism.noise_multiplier, excess
    )


def _sampled_replace_one(
    mechanism: SampledGaussianReplaceOne, excess: Array
) -> Array:
    return mixtures.replaced(
        mechanism.sampling_probability, mechanism.noise_multiplier, excess
    )


def _full_or_not(mechanism: FullOrNot, excess: Array) -> Array:
    whole = _log_moment(mechanism.whole, excess)
    others = [mixtures.sampled(q, z, excess) for _, z, q in mechanism.parts[1:]]
    logs = [
        each + math.log(chance)
        for each, (chance, _, _) in zip(
            [whole, *others], mechanism.parts, strict=True
        )
        if chance > 0
    ]
    return np.asarray(np.logaddexp.reduce(logs))


def _fixed_size(mechanism: FixedSizeGaussian, excess: Array) -> Array:
    return mixtures.of_fixed_size(
        mechanism.sampling_probability, mechanism.noise_multiplier, excess
    )


def _one_of(mechanism: OneOf, excess: Array) -> Array:
    alternatives = [
        _log_moment(each, excess) for each in mechanism.alternatives
    ]
    return np.asarray(np.max(alternatives, axis=0))


def _selected(mechanism: Selected, excess: Array) -> Array:
    return log_moment(mechanism, excess, composed_log_moment)


# From a mechanism of the kind and the orders minus one to log moments.
LOG_MOMENTS: Mapping[type[Mechanism], Callable[[Any, Array], Array]] = {
    Gaussian: _gaussian,
    SampledGaussian: _sampled,
    SampledGaussianReplaceOne: _sampled_replace_one,
    FixedSizeGaussian: _fixed_size,
    FullOrNot: _full_or_not,
    AdditiveNoise: encoded.log_moment,
    OneOf: _one_of,
    Selected: _selected,
}


# From the rounds of one trial and orders minus one to log moments.
LogMomentOf = Callable[[Sequence[CountedMechanism], Array], Array]

# Orders minus one at which a trial is asked.
_EXCESSES = np.geomspace(1e-2, 1e4, 301)


def log_moment(search: Selected, excess: Array, of_plan: LogMomentOf) -> Array:
    """Returns a bound on the log moments of a search.

    Args:
        search: The search, of one record.
        excess: The orders minus one, > 0, shape `[n]`.
        of_plan: Bounds the log moments of a plan.
    """
    trial = _largest(search, excess, of_plan)
    log_mean = math.log(search.law.largest_mean)
    if isinstance(search.law, PoissonTrials):
        mean = search.law.largest_mean
        deltas = _deltas(_trial(search, of_plan), np.log1p(1 / excess))
        whole = trial + mean * excess * deltas + log_mean
        return np.asarray(np.logaddexp(-search.law.mean, whole))
    return np.asarray(trial + excess * _log_ratio(search, of_plan) + log_mean)


def _largest(search: Selected, excess: Array, of_plan: LogMomentOf) -> Array:
    """Returns the largest log moments of all plans."""
    return np.asarray(
        np.max([of_plan(plan, excess) for plan in search.plans], axis=0)
    )


@functools.lru_cache(maxsize=64)
def _trial(search: Selected, of_plan: LogMomentOf) -> Array:
    """Returns the log moments of one trial at `_EXCESSES`."""
    return _largest(search, _EXCESSES, of_plan)


def _deltas(trial: Array, epsilons: Array) -> Array:
    """Returns bounds on delta of one trial at some epsilons."""
    logs = trial + conversion(_EXCESSES) - epsilons[:, None] * _EXCESSES
    return np.asarray(np.exp(np.minimum(logs.min(axis=1), 0.0)) * _ROUND_UP)


@functools.lru_cache(maxsize=64)
def _log_ratio(search: Selected, of_plan: LogMomentOf) -> float:
    """Returns the log of the largest `phi'(1 - x) / phi'(1 - x')`, `c`."""
    law = search.law
    if not isinstance(law, TruncatedNegativeBinomial):
        raise TypeError(
            f"`law` must be a law of this library. Received: law={law!r}."
        )
    trial = _trial(search, of_plan)
    by_moments = (trial - math.log(law.gamma)) / (1 + _EXCESSES)
    most = float(by_moments.min())
    ratio = (1 - law.gamma) / law.gamma

    def is_enough(log_r: float) -> bool:
        delta = float(_deltas(trial, np.array([log_r]))[0])
        return ratio * delta <= math.expm1(log_r)

    if is_enough(most):
        most = last_true(is_enough, most, 0.0, share=1e-9)
    return (law.shape + 1) * most * _ROUND_UP
