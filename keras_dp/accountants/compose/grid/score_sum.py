"""An attack on random allocation: it adds up a score of each round.

The score is an integer, the logarithm of `1 - q + q W` in steps, rounded down,
where `W` is the round's likelihood ratio and `q` the chance of a record to be
in it: what a Poisson sample would have for likelihood ratio. Whatever the
batches of the record are, it raises the scores of `k` rounds of `t`. So the sum
of all scores has the distribution

    a^(*t) without the record, and b^(*k) * a^(*(t-k)) with it,

where `a` and `b` are those of one score, and `*` is convolution. It is a
function of the outputs: the ratio of the two is smaller than that of the
outputs in the convex order, and every divergence a lower bound.

All terms of the convolutions are positive and added up directly, so that they
are relatively precise.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.grid import likelihood
from keras_dp.accountants.compose.grid.likelihood import Drawn
from keras_dp.accountants.normalize.mechanisms import RandomAllocationGaussian

# Mass that a convolution may drop; every outcome is given at least this mass in
# return. Deltas of this size cannot be told from 0.
_LEFT_OUT, LEAST_MASS = 1e-150, 1e-120
# Step of the scores, as a share of their stddev; about the largest number of
# sums.
_STEP, _MOST_POINTS = 0.25, 4000
# Width of the window of sums: in stddevs of the sum, and in largest scores.
_STDDEVS, _SCORES = 48, 3


class _Masses(NamedTuple):
    """Masses of integers, the first of which is `first`."""

    first: int
    masses: Array


@functools.lru_cache(maxsize=64)
def drawn(mechanism: RandomAllocationGaussian) -> Drawn:
    """Returns the likelihood ratio of the sum of scores of an epoch.

    Outcomes of less than `LEAST_MASS` are taken to have that. Where one has
    less without the record and not with it, that lowers the divergence from it,
    and adds nothing to that of the other direction; and the other way round.
    """
    t, k = mechanism.batches, mechanism.batches_per_record
    absent, present = _one_score(mechanism)
    rest = likelihood.repeated(absent, t - k, _convolved)
    without, within = (
        _convolved(rest, likelihood.repeated(one, k, _convolved))
        for one in (absent, present)
    )
    first = min(without.first, within.first)
    stop = max(each.first + len(each.masses) for each in (without, within))
    found = np.zeros((2, stop - first))
    for row, each in zip(found, (without, within), strict=True):
        start = each.first - first
        row[start : start + len(each.masses)] = each.masses
    under_q, under_p = np.maximum(
        found[:, (found > LEAST_MASS).any(axis=0)], LEAST_MASS
    )
    return Drawn(under_p / under_q, under_q)


def _one_score(
    mechanism: RandomAllocationGaussian,
) -> tuple[_Masses, _Masses]:
    """Returns the score of a round without the record, and with it."""
    stddev, q = 1 / mechanism.noise_multiplier, mechanism.sampling_probability
    low, high = likelihood.sampled_range(stddev, q)
    absent, present = (
        _spread(stddev, q, sign * stddev**2 / 2) for sign in (-1, 1)
    )
    t, k = mechanism.batches, mechanism.batches_per_record
    spread = math.hypot(math.sqrt(t - k) * absent, math.sqrt(k) * present)
    width = _STDDEVS * spread + _SCORES * high
    step = max(_STEP * absent, width / _MOST_POINTS)
    edges = np.asarray(
        step * np.arange(math.floor(low / step), math.ceil(high / step) + 1)
    )
    cells = likelihood.cells_of_inner(edges, stddev, q)
    return _Masses(0, cells.under_q), _Masses(0, cells.under_p)


def _spread(stddev: float, q: float, mean: float) -> float:
    """Returns the stddev of a score whose ratio has a log of some mean."""
    normal = np.linspace(-likelihood.TAIL, likelihood.TAIL, 2001)
    weights = np.exp(-(normal**2) / 2)
    scores = np.log1p(q * np.expm1(normal * stddev + mean))
    center = np.average(scores, weights=weights)
    return math.sqrt(np.average((scores - center) ** 2, weights=weights))


def _convolved(one: _Masses, two: _Masses) -> _Masses:
    masses = np.convolve(one.masses, two.masses)
    below = int((np.cumsum(masses) <= _LEFT_OUT).sum())
    above = int((np.cumsum(masses[::-1]) <= _LEFT_OUT).sum())
    return _Masses(
        one.first + two.first + below, masses[below : len(masses) - above]
    )
