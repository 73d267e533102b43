"""Measures how far a record moves a sum, relative to the bound."""

from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from keras_dp import ledger
from keras_dp.dp_queries import Mechanism
from keras_dp.dp_queries.summing_query import SumParams

Sum = list[npt.NDArray[np.float64]]

# A sum of float32 is rounded with each record; its clip to a relative 1e-6.
_ROUNDING = 1e-4
# Sums that are compared come from four physical batches at most, and each batch
# is rounded by half a step of the grid.
_STEPS = 2.0


def sum_of(mechanism: Mechanism) -> Sum:
    """Returns the leaves of the sum before noise, as float64."""
    leaves = keras.tree.flatten(mechanism.sample_state)
    return [
        np.asarray(leaf, np.float64) * unit
        for leaf, unit in zip(leaves, units_of(mechanism), strict=True)
    ]


def units_of(mechanism: Mechanism) -> list[float]:
    """Returns the unit of each leaf of the sum: a step of the grid, or 1."""
    return [step or 1.0 for step in _steps_of(mechanism)]


def rounding_of(mechanism: Mechanism) -> float:
    """Returns how far the grid may move sums that are compared, in L2 norm."""
    leaves = keras.tree.flatten(mechanism.sample_state)
    return _STEPS * norm(
        [
            np.full(leaf.shape, step or 0.0)
            for leaf, step in zip(leaves, _steps_of(mechanism), strict=True)
        ]
    )


def _steps_of(mechanism: Mechanism) -> list[float | None]:
    """Returns the step of each leaf that holds steps of a grid."""
    query, sample, state = mechanism
    params = query.derive_sample_params(state)
    step = float(params.spacing) if isinstance(params, SumParams) else None
    return [
        step if leaf.dtype == tf.int64 else None
        for leaf in keras.tree.flatten(sample)
    ]


def distance(one: Sum, two: Sum) -> float:
    """Returns the L2 norm of the difference. It is NaN if either is NaN."""
    return norm([a - b for a, b in zip(one, two, strict=True)])


def norm(of: Sum) -> float:
    """Returns the joint L2 norm of all leaves."""
    return float(np.linalg.norm([np.linalg.norm(leaf) for leaf in of]))


def share_of_bound(
    event: ledger.SumQueryEvent, one: Sum, two: Sum, rounding: float
) -> float | None:
    """Returns the distance between two sums, relative to the event's bound.

    `rounding` is what the grid may have added. The share is at most 1, up to
    that of float32, if the bound holds, and `None` if the event has no bound.
    """
    if isinstance(event, ledger.EncodedSum):
        return _share_of_vectors(event.bounds, one, two)
    bound = getattr(event, "l2_norm_bound", None)
    if bound is None:
        return None
    apart = distance(one, two)
    if not apart:
        return 0.0
    size = rounding
    size += _ROUNDING * (norm(two) / 100 if np.isfinite(norm(two)) else 0)
    return max(0.0, apart - size) / bound if bound else np.inf


def is_kept(share: float) -> bool:
    """Returns whether a share of a bound is at most 1, up to rounding."""
    return bool(share <= 1 + _ROUNDING)  # Not so for NaN.


def _share_of_vectors(bounds: Any, one: Sum, two: Sum) -> float:
    """Returns by how much the nearest vector would have to grow."""
    moved = np.concatenate(
        [np.abs(a - b).ravel() for a, b in zip(one, two, strict=True)]
    )
    falling = -np.sort(-moved)
    counts = bounds.count_array()
    largest = np.array(
        [part[0] for part in np.split(falling, np.cumsum(counts)[:-1])]
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.where(largest > 0, largest / bounds.level_array(), 0.0)
    return float(shares.max(axis=1).min())
