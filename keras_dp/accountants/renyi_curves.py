"""Rényi divergence of mechanisms, and of the rounds of a ledger."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from keras_dp.accountants import _fixed_size, _renyi
from keras_dp.accountants._pairs import Array
from keras_dp.accountants.mechanisms import (
    CountedMechanism,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.errors import UnsupportedEventError

# A hundred times the error measured against 40 digits.
_ROUND_UP = 1 + 1e-12
# Mechanisms priced at once, which bounds the memory.
_BLOCK = 1024


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
            q = np.array([m.sampling_probability for m, _ in block])
            z = np.array([m.noise_multiplier for m, _ in block])
            counts = np.array([float(count) for _, count in block])
            total = total + LOG_MOMENTS[kind](q, z, excess) @ counts
    return np.asarray(total * _ROUND_UP)


def _kind(counted: CountedMechanism) -> type[Mechanism]:
    return type(counted.mechanism)


def _gaussian(q: Array, z: Array, excess: Array) -> Array:
    return np.asarray(excess[:, None] * (1 + excess[:, None]) / (2 * z**2))


def _sampled(q: Array, z: Array, excess: Array) -> Array:
    return _mixtures(q, z, excess, other_mean=0.0)


def _sampled_replace_one(q: Array, z: Array, excess: Array) -> Array:
    return _mixtures(q, z, excess, other_mean=-1.0)


def _mixtures(q: Array, z: Array, excess: Array, *, other_mean: float) -> Array:
    grid = np.broadcast_arrays(q, z, excess[:, None])
    rows = (np.ravel(column) for column in grid)
    moments = _renyi.log_moment(*rows, other_mean=other_mean)
    return moments.reshape(excess.size, z.size)


def _fixed_sizes(q: Array, z: Array, excess: Array) -> Array:
    columns = [
        _fixed_size.log_moment(float(probability), float(noise), excess)
        for probability, noise in zip(q, z, strict=True)
    ]
    return np.stack(columns, axis=1)


# From q and z, `[m]`, and the order minus one, `[n]`, to log moments `[n, m]`.
LOG_MOMENTS: Mapping[
    type[Mechanism], Callable[[Array, Array, Array], Array]
] = {
    Gaussian: _gaussian,
    SampledGaussian: _sampled,
    SampledGaussianReplaceOne: _sampled_replace_one,
    FixedSizeGaussian: _fixed_sizes,
}
