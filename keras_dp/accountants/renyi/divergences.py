"""Rényi divergence of mechanisms, and of the rounds of a ledger."""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from keras_dp.accountants.renyi.many_kinds import cells_of
from keras_dp.accountants.renyi.shifted_noise import check_noise
from keras_dp.errors import UnsupportedEventError

# A hundred times the error measured against 40 digits.
_ROUND_UP = 1 + 1e-12
# Mechanisms at once, which bounds the memory.
_BLOCK = 1024
# Noises of one kind that are not interpolated; others are rounded down to them.
_MOST_NOISES = 512


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
    return composed(rounds)(excess)


def composed(
    rounds: Iterable[CountedMechanism],
) -> Callable[[Array], Array]:
    """Returns `composed_log_moment` as a function of the orders alone.

    Many kinds of rounds are put together once, for all orders (`many_kinds`).
    """
    kinds: defaultdict[type[Mechanism], list[CountedMechanism]]
    kinds = defaultdict(list)
    for each in rounds:
        kinds[type(each.mechanism)].append(each)
    parts = []
    for kind in sorted(kinds, key=lambda each: each.__name__):
        if kind not in LOG_MOMENTS:
            raise UnsupportedEventError(
                "`rounds` must be of a kind with a known Rényi divergence. "
                f"Received: {kind.__name__} in rounds."
            )
        mechanisms = [mechanism for mechanism, _ in kinds[kind]]
        counts = np.array([float(count) for _, count in kinds[kind]])
        together = _TOGETHER.get(kind, _one_by_one)
        parts.append(together(mechanisms, counts))

    def log_moment(excess: Array) -> Array:
        total = np.zeros_like(excess)
        for part in parts:
            total = total + part(excess)
        return np.asarray(total * _ROUND_UP)

    return log_moment


def _one_by_one(
    mechanisms: Sequence[Any], counts: Array
) -> Callable[[Array], Array]:
    log_moments = LOG_MOMENTS[type(mechanisms[0])]

    def total(excess: Array) -> Array:
        return sum(
            (
                log_moments(mechanisms[start : start + _BLOCK], excess)
                @ counts[start : start + _BLOCK]
                for start in range(0, counts.size, _BLOCK)
            ),
            np.zeros_like(excess),
        )

    return total


def _gaussians_together(
    mechanisms: Sequence[Any], counts: Array
) -> Callable[[Array], Array]:
    """Returns the log moment, which is the same as of their sum of `1/z^2`."""
    z = np.array([each.noise_multiplier for each in mechanisms])
    total = float((counts / z**2).sum())
    return lambda excess: np.asarray(excess * (1 + excess) * (total / 2))


def _sampled_together(
    mechanisms: Sequence[Any], counts: Array
) -> Callable[[Array], Array]:
    cells = cells_of(mechanisms, counts)
    corners = [
        SampledGaussian(z, q)
        for z, q in zip(
            cells.noise_multipliers.tolist(),
            cells.probabilities.tolist(),
            strict=True,
        )
    ]
    return lambda excess: cells.total(_sampled(corners, excess))


def _sampled_discrete_together(
    mechanisms: Sequence[Any], counts: Array
) -> Callable[[Array], Array]:
    together = _sampled_together(mechanisms, counts)
    return lambda excess: _between_integers(together, excess)


def _rounded_together(
    mechanisms: Sequence[Any], counts: Array
) -> Callable[[Array], Array]:
    """Returns a bound by less noise, if there are many noises.

    More noise is post-processing.
    """
    z = np.array([each.noise_multiplier for each in mechanisms])
    if z.size <= _MOST_NOISES:
        return _one_by_one(mechanisms, counts)
    noises = np.geomspace(z.min(), z.max(), _MOST_NOISES)
    noises[0] = z.min()
    less = noises[np.searchsorted(noises, z, side="right") - 1].tolist()
    merged: Counter[Any] = Counter()
    for mechanism, noise, count in zip(
        mechanisms, less, counts.tolist(), strict=True
    ):
        merged[dataclasses.replace(mechanism, noise_multiplier=noise)] += count
    return _one_by_one([*merged], np.array([*merged.values()], np.float64))


def _gaussian(mechanisms: Sequence[Any], excess: Array) -> Array:
    z = np.array([each.noise_multiplier for each in mechanisms])
    return np.asarray(excess[:, None] * (1 + excess[:, None]) / (2 * z**2))


def _sampled(mechanisms: Sequence[Any], excess: Array) -> Array:
    return _of_losses(mixtures.sampled_loss, mechanisms, excess)


def _sampled_replace_one(mechanisms: Sequence[Any], excess: Array) -> Array:
    return _of_losses(mixtures.replaced_loss, mechanisms, excess)


def _sampled_discrete(mechanisms: Sequence[Any], excess: Array) -> Array:
    return _between_integers(lambda at: _sampled(mechanisms, at), excess)


def _between_integers(
    log_moments: Callable[[Array], Array], excess: Array
) -> Array:
    """Returns chords between integer orders.

    Args:
        log_moments: From `b`, shape `[n]`, to log moments, shape `[n, ...]`.
        excess: `b` > 0, shape `[n]`.
    """
    floor = np.floor(excess)
    below, above = log_moments(np.maximum(floor, 1)), log_moments(floor + 1)
    axes = (-1, *[1] * (below.ndim - 1))
    weight, floor = (excess - floor).reshape(axes), floor.reshape(axes)
    below = np.where(floor > 0, below, 0.0)
    return np.asarray((1 - weight) * below + weight * above)


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
# How many mechanisms of a kind, with their counts, become the sum of their log
# moments; those of other kinds are added up one by one.
_TOGETHER: Mapping[
    type[Mechanism],
    Callable[[Sequence[Any], Array], Callable[[Array], Array]],
] = {
    Gaussian: _gaussians_together,
    DiscreteGaussian: _gaussians_together,
    SampledGaussian: _sampled_together,
    SampledDiscreteGaussian: _sampled_discrete_together,
    SampledGaussianReplaceOne: _rounded_together,
    FixedSizeGaussian: _rounded_together,
}
