"""Moments of the best of a random number of trials.

docs/accounting.md, 8.5, proves the bounds.
"""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.loss.log_moments import conversion
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Selected,
)
from keras_dp.accountants.roots import last_true
from keras_dp.ledger import PoissonTrials, TruncatedNegativeBinomial

# From the rounds of one trial and orders minus one to log moments.
LogMomentOf = Callable[[Sequence[CountedMechanism], Array], Array]

# Orders minus one at which a trial is asked.
_EXCESSES = np.geomspace(1e-2, 1e4, 301)
# Exceeds the rounding of a few products.
_ROUND_UP = 1 + 1e-12


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
