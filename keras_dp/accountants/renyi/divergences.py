"""Rényi divergence of mechanisms, and of the rounds of a ledger."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.of_normal_output import OutputLoss
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    DiscreteGaussian,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    OneOf,
    SampledDiscreteGaussian,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.renyi import encoded, fixed_size, mixtures
from keras_dp.accountants.renyi.shifted_noise import check_noise
from keras_dp.errors import UnsupportedEventError

# A hundred times the error measured against 40 digits.
_ROUND_UP = 1 + 1e-12
# Mechanisms at once, which bounds the memory.
_BLOCK = 1024


def check_moments(mechanism: Mechanism) -> None:
    """Raises unless the divergence of a mechanism in `LOG_MOMENTS` is known.

    Raises:
        UnsupportedEventError: The noise of an encoded sum has no moments.
    """
    if isinstance(mechanism, OneOf):
        for alternative in mechanism.alternatives:
            check_moments(alternative)
    if isinstance(mechanism, AdditiveNoise):
        for encoding in mechanism.encodings:
            check_noise(encoding.noise)


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
    ordered = sorted(rounds, key=lambda counted: _kind(counted).__name__)
    for kind, group in itertools.groupby(ordered, key=_kind):
        if kind not in LOG_MOMENTS:
            raise UnsupportedEventError(
                "`rounds` must be of a kind with a known Rényi divergence. "
                f"Received: {kind.__name__} in rounds."
            )
        members = list(group)
        for start in range(0, len(members), _BLOCK):
            block = members[start : start + _BLOCK]
            counts = np.array([float(count) for _, count in block])
            moments = LOG_MOMENTS[kind]([m for m, _ in block], excess)
            total = total + moments @ counts
    return np.asarray(total * _ROUND_UP)


def _kind(counted: CountedMechanism) -> type[Mechanism]:
    return type(counted.mechanism)


def _gaussian(mechanisms: Sequence[Any], excess: Array) -> Array:
    z = np.array([each.noise_multiplier for each in mechanisms])
    return np.asarray(excess[:, None] * (1 + excess[:, None]) / (2 * z**2))


def _sampled(mechanisms: Sequence[Any], excess: Array) -> Array:
    return _of_losses(mixtures.sampled_loss, mechanisms, excess)


def _sampled_replace_one(mechanisms: Sequence[Any], excess: Array) -> Array:
    return _of_losses(mixtures.replaced_loss, mechanisms, excess)


def _sampled_discrete(mechanisms: Sequence[Any], excess: Array) -> Array:
    floor = np.floor(excess)
    weight = (excess - floor)[:, None]
    below = _sampled(mechanisms, np.maximum(floor, 1))
    below = np.where(floor[:, None] > 0, below, 0.0)
    return (1 - weight) * below + weight * _sampled(mechanisms, floor + 1)


def _of_losses(
    loss_of: Callable[[float, float], OutputLoss],
    mechanisms: Sequence[Any],
    excess: Array,
) -> Array:
    columns = [
        mixtures.log_moment(
            loss_of(each.sampling_probability, each.noise_multiplier), excess
        )
        for each in mechanisms
    ]
    return np.stack(columns, axis=1)


def _fixed_sizes(mechanisms: Sequence[Any], excess: Array) -> Array:
    columns = [
        fixed_size.log_moment(
            each.sampling_probability, each.noise_multiplier, excess
        )
        for each in mechanisms
    ]
    return np.stack(columns, axis=1)


def _additives(mechanisms: Sequence[Any], excess: Array) -> Array:
    columns = [encoded.log_moment(each, excess) for each in mechanisms]
    return np.stack(columns, axis=1)


def _one_of(mechanisms: Sequence[Any], excess: Array) -> Array:
    columns = [
        np.max(
            [
                LOG_MOMENTS[type(alternative)]([alternative], excess)[:, 0]
                for alternative in each.alternatives
            ],
            axis=0,
        )
        for each in mechanisms
    ]
    return np.stack(columns, axis=1)


# From `m` mechanisms of the kind and the order minus one, `[n]`, to log
# moments `[n, m]`.
LOG_MOMENTS: Mapping[
    type[Mechanism], Callable[[Sequence[Any], Array], Array]
] = {
    Gaussian: _gaussian,
    SampledGaussian: _sampled,
    SampledGaussianReplaceOne: _sampled_replace_one,
    FixedSizeGaussian: _fixed_sizes,
    DiscreteGaussian: _gaussian,
    SampledDiscreteGaussian: _sampled_discrete,
    AdditiveNoise: _additives,
    OneOf: _one_of,
}
