"""Rényi divergence of mechanisms, and of the rounds of a ledger."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dp.accountants.arrays import Array
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
    searches,
)
from keras_dp.accountants.renyi.encoded import check_noise
from keras_dp.errors import UnsupportedEventError

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
    return searches.log_moment(mechanism, excess, composed_log_moment)


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
