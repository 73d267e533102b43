"""Rényi divergence of mechanisms, and of the rounds of a ledger.

Pairs of Gaussian mixtures have it at any real order > 1.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.loss.loss_distribution import (
    Nodes,
    conversion,
    log_moments_of_nodes,
)
from keras_dp.accountants.loss.mixture import MixtureLoss, ReplaceOneLoss
from keras_dp.accountants.loss.of_normal_output import REACH, OutputLoss
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
from keras_dp.accountants.renyi import encoded
from keras_dp.accountants.renyi.encoded import check_noise
from keras_dp.accountants.roots import last_true
from keras_dp.errors import TooSlowError, UnsupportedEventError

# Smaller probabilities are rounded up to this one.
_LEAST_PROBABILITY = 1e-100
# Largest estimated number of nodes; the true number is at most five times as
# large. No order that could be best needs more.
_MOST_NODES = 2.0**17
# The orders of an interval share nodes. Each interval is this many times as
# long as the one before.
_RATIO = 4.0
# This interval, and those beyond, end with the largest order that is asked for.
_FAR = 3
# Largest product of orders and nodes in memory.
_BLOCK = 2**20
# Below it the replaced record also has the bound of one that is removed.
_LITTLE_NOISE = 0.01
# More than the rounding of a few functions.
_NODES_ROUND_UP = 1 + 1e-14


def _sampled(mechanism: SampledGaussian, excess: Array) -> Array:
    """Returns `(a-1) D_a` in the larger direction."""
    q = max(mechanism.sampling_probability, _LEAST_PROBABILITY)
    loss = MixtureLoss(mechanism.noise_multiplier, (1 - q, q), is_added=False)
    return _of_loss(loss, q, excess)


def _replaced(mechanism: SampledGaussianReplaceOne, excess: Array) -> Array:
    """Returns `(a-1) D_a`.

    With next to no noise the two records are hardly ever mistaken for each
    other, but for none of both: `Q >= (1-q) N(0, z^2)` gives the bound of
    `SampledGaussian` and `-log(1-q)` for each unit of `a-1`.
    """
    z = mechanism.noise_multiplier
    q = max(mechanism.sampling_probability, _LEAST_PROBABILITY)
    found = _of_loss(ReplaceOneLoss(z, q), q, excess)
    if z < _LITTLE_NOISE:
        removed = _sampled(SampledGaussian(z, q), excess)
        found = np.minimum(found, removed - excess * math.log1p(-q))
    return found


def _of_loss(loss: OutputLoss, probability: float, excess: Array) -> Array:
    """Returns `(a-1) D_a(P || Q)` > 0 of a dominating pair from its loss.

    The trapezoidal rule of `OutputLoss` converges geometrically, and every
    term of the sum is positive, so that neither overflow nor cancellation
    occurs: 1e-14 relative, measured against 60 digits.

    Where it would take too many nodes (`z` near 0) the value is a bound. The
    function `x^a y^(1-a)` is convex in both together, and a round is, with the
    chance `q`, the one without sampling and else tells nothing, so that
    `E_P[(P/Q)^(a-1)] <= 1 - q + q e^(a (a-1) turn^2 / 2)`.

    Source: Mironov, Talwar, Zhang (2019), arXiv:1908.10530v1, section 3. They
    give a finite sum for integer and a series for other orders; this is one
    integral for both. `D(P || Q)` is the larger direction (Theorem 5).
    """
    turn = loss.turn
    result = _told(probability, excess * (1 + excess) * turn**2 / 2)
    steps = np.maximum(1.0, np.sqrt(excess) * loss.denominator_turn)
    nodes = ((1 + excess) * turn + 2 * REACH) * np.maximum(steps, turn)
    # Up to the first end, most nodes are around 0.
    first = 2 * REACH / turn
    ends = np.maximum(np.ceil(np.log(excess / first) / math.log(_RATIO)), 0.0)
    ends[nodes > _MOST_NODES] = -1.0
    for end in sorted({*ends.tolist()} - {-1.0}):
        rows = np.flatnonzero(ends == end)
        most = first * _RATIO**end
        if end >= _FAR:
            most = min(most, float(excess[rows].max()))
        try:
            found = _nodes(loss, most)
        except TooSlowError:
            continue
        for part in np.array_split(
            rows, math.ceil(rows.size * found.losses.size / _BLOCK)
        ):
            moments = log_moments_of_nodes(found, excess[part, None])
            result[part] = np.minimum(result[part], moments)
    return np.asarray(result)


def _told(probability: float, without: Array) -> Array:
    """Returns `log(1 - q + q e^without)`, rounded up, for `without` > 0."""
    small = np.log1p(probability * np.expm1(np.minimum(without, EXPONENT)))
    large = without + math.log(probability) + math.exp(-EXPONENT) / probability
    result = np.where(without < EXPONENT, small, np.minimum(large, without))
    return np.asarray(result * _NODES_ROUND_UP)


@functools.lru_cache(maxsize=4096)
def _nodes(loss: OutputLoss, excess: float) -> Nodes:
    return loss.nodes(excess, most_nodes=int(5 * _MOST_NODES))


# Beyond this order the bound without sampling is used.
_LARGEST_ORDER = 2**14
# Moments are integrated up to this order `j`, and while `j / z^2` is at most
# this. Beyond, their closed form is tight.
_LARGEST_MOMENT = 64
_LARGEST_EXPONENT = 24.0
_STEP = 0.25
# The tail of the standard normal distribution that is kept, in stddevs.
_TAIL = 13.0
# Exceeds the rounding of log-gamma at a large order.
_FIXED_SIZE_ROUND_UP = 1 + 1e-10


def _fixed_size(mechanism: FixedSizeGaussian, excess: Array) -> Array:
    """Returns a bound on `(a-1) D_a` for two data sets that replace a record.

    Guarantee: let `r`, `p`, `p'` be the output when the sample holds another
    record in the place of the one that differs, that one, or its
    replacement: three Gaussians of variance `z^2` whose means are pairwise at
    most 1 apart. By the proof of Theorem 9 of Wang et al., for integer `a`,

        e^((a-1) D_a) <= 1 + sum_(j=2..a) C(a,j) q^j T_j,

    where `T_j` is the largest `E_r |p/r - p'/r|^j` over all three. They bound
    `T_2` by `4 (e^(1/z^2) - 1)` and `T_j` by `2 e^(j(j-1)/(2 z^2))`. Here
    `T_j` is computed (see `_log_ternary_moments`), which at `z = 1`, `q = 0.01`
    lowers epsilon by a third. Between integers the log moment is convex, and
    its chord bounds it (their Corollary 10). The bound is never above the
    one without sampling.

    The bound grows with `q`. It falls with `z`: more noise is post-processing
    of all three outputs, and `T_j` the largest mean of a convex function of
    their ratios.

    Source: Wang, Balle, Kasiviswanathan (2018), arXiv:1808.00087v2.
    """
    q, z = mechanism.sampling_probability, mechanism.noise_multiplier
    bound = excess * (1 + excess) / (2 * z**2)
    floor = np.minimum(np.floor(excess), _LARGEST_ORDER)
    weight = excess - floor
    log_ratios = _log_ternary_moments(z)
    needed = np.unique(np.concatenate([floor, floor + 1]))
    values = [_at_integer(q, z, int(order) + 1, log_ratios) for order in needed]
    below = np.interp(floor, needed, values)
    above = np.interp(floor + 1, needed, values)
    chord = np.where(weight < 1, (1 - weight) * below + weight * above, np.inf)
    return np.asarray(np.minimum(chord * _FIXED_SIZE_ROUND_UP, bound))


def _at_integer(q: float, z: float, order: int, log_ratios: Array) -> float:
    if order == 1:
        return 0.0
    j, log_binomials = _log_binomials(order)
    terms = np.log(2) + j * (j - 1) / (2 * z**2)
    exact = min(terms.size, log_ratios.size)
    terms[:exact] = log_ratios[:exact]
    terms += j * np.log(q) + log_binomials
    return float(np.logaddexp(0, np.logaddexp.reduce(terms)))


@functools.lru_cache(maxsize=256)
def _log_binomials(order: int) -> tuple[Array, Array]:
    """Returns `j = 2, ..., order` and the logs of `C(order, j)`."""
    j = np.arange(2, order + 1, dtype=np.float64)
    total = special.gammaln(order + 1)
    rest = special.gammaln(j + 1) + special.gammaln(order - j + 1)
    return j, np.asarray(total - rest)


@functools.lru_cache(maxsize=1024)
def _log_ternary_moments(z: float) -> Array:
    """Returns `log T_j` for `j = 2, 3, ...`, as far as it is worth it.

    Let `X = p/r`, `Y = p'/r`, `D = 1/z^2`: log-normal martingales with
    variances `A, B` and `d = |mean difference|^2`, all at most `D`. With
    `f = |x - y|^j`, Price's theorem gives `df/dd > 0`; and `df/dA` at fixed
    `B, d` is a positive multiple of the mean of `(1-W)|1-W|^(j-2)`, where
    `W = Y/X` is log-normal with a log-mean that falls in `A`: its sign changes
    at most once, from - to +, so the largest value is at an end of the range
    of `A`, and likewise of `B`. What remains is `A = B = d = D`, or means on
    a line, where `f` is convex in the place of `r`, which therefore is at
    `p'`: `A = d = D`, `B = 0`. `T_j` is the larger of the two.
    """
    largest = int(min(_LARGEST_MOMENT, max(2, _LARGEST_EXPONENT * z * z)))
    j = np.arange(2, largest + 1, dtype=np.float64)[:, None]
    # Both integrands have a kink at x = 0. Points leave it on either side, at
    # first exponentially and then in equal steps.
    reach = largest / z + np.sqrt(2 * largest) + _TAIL
    s = np.arange(-_TAIL, reach, _STEP)
    x = np.log1p(np.exp(-np.abs(s))) + np.maximum(s, 0)
    log_weight = np.log(special.expit(s) * _STEP) - np.log(2 * np.pi) / 2
    rise = x / z
    grow = rise + np.log(-np.expm1(-rise))  # log(e^rise - 1)
    fall = np.log(-np.expm1(-rise))
    line = np.logaddexp(
        special.logsumexp(
            j * grow - (x + 0.5 / z) ** 2 / 2 + log_weight, axis=1
        ),
        special.logsumexp(
            j * fall - (x - 0.5 / z) ** 2 / 2 + log_weight, axis=1
        ),
    )
    j_flat = j[:, 0]
    # X, Y = e^(m + n) and e^(m - n) with m, n independent.
    common = (3 * (j_flat - 1) - 1) * j_flat / (8 * z * z)
    triangle = common + special.logsumexp(
        np.log(2) + j * (grow - rise / 2) - x * x / 2 + log_weight, axis=1
    )
    return np.asarray(np.maximum(line, triangle))


# Exceeds the error measured against 40 digits a hundred times.
_ROUND_UP = 1 + 1e-12


def check_moments(mechanism: Mechanism) -> None:
    """Raises unless the divergence of a mechanism in `LOG_MOMENTS` is known."""
    if isinstance(mechanism, Selected):
        for trial, _ in itertools.chain(*mechanism.plans):
            if type(trial) not in LOG_MOMENTS or mechanism.records > 1:
                raise UnsupportedEventError(
                    "`ledger` must hold searches whose trials have a known "
                    f"Rényi divergence. Received: {trial!r}, for "
                    f"{mechanism.records} records. `Fourier` may have a bound."
                )
            check_moments(trial)
    if isinstance(mechanism, OneOf):
        for alternative in mechanism.alternatives:
            check_moments(alternative)
    if isinstance(mechanism, AdditiveNoise):
        for encoding in mechanism.encodings:
            check_noise(encoding.noise)


def rdp(mechanism: Mechanism, orders: Array) -> Array:
    """Returns the Rényi divergence of one round, or an upper bound on it.

    It is in nats. Orders are > 1, of shape `[n]`. The noise multiplier is > 0.
    """
    excess = np.asarray(orders, dtype=np.float64) - 1
    if not np.all(excess > 0):
        raise ValueError(f"`orders` must be > 1. Received: orders={orders!r}.")
    counted = CountedMechanism(mechanism, 1)
    return composed_log_moment((counted,), excess) / excess


def composed_log_moment(
    rounds: Sequence[CountedMechanism], excess: Array
) -> Array:
    """Returns `b` times the divergence of order `1 + b` of all rounds."""
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


def _full_or_not(mechanism: FullOrNot, excess: Array) -> Array:
    whole = _log_moment(mechanism.whole, excess)
    others = [
        _sampled(SampledGaussian(z, q), excess)
        for _, z, q in mechanism.parts[1:]
    ]
    chances = np.array([chance for chance, _, _ in mechanism.parts])[:, None]
    logs = np.stack([whole, *others])
    # The sum of the chances is 1: next to 0 nothing cancels.
    grown = np.expm1(np.minimum(logs, EXPONENT))
    near = np.log1p((chances * grown).sum(axis=0))
    far = special.logsumexp(logs, b=chances, axis=0)
    found = np.where(logs.max(axis=0) < EXPONENT, near, far)
    return np.asarray(found * _NODES_ROUND_UP)


def _one_of(mechanism: OneOf, excess: Array) -> Array:
    alternatives = [
        _log_moment(each, excess) for each in mechanism.alternatives
    ]
    return np.asarray(np.max(alternatives, axis=0))


# Orders minus one at which a trial is asked.
_EXCESSES = np.geomspace(1e-2, 1e4, 301)


def _selected(search: Selected, excess: Array) -> Array:
    """Returns a bound on the log moments of a search, of one record."""
    log_mean = math.log(search.law.largest_mean)
    return np.asarray(
        _trial(search, excess) + excess * _log_ratio(search) + log_mean
    )


def _trial(search: Selected, excess: Array) -> Array:
    """Returns the largest log moments of all plans."""
    found = [composed_log_moment(plan, excess) for plan in search.plans]
    return np.asarray(np.max(found, axis=0))


@functools.lru_cache(maxsize=64)
def _log_ratio(search: Selected) -> float:
    """Returns the log of the largest `phi'(1 - x) / phi'(1 - x')`, `c`."""
    law, trial = search.law, _trial(search, _EXCESSES)
    by_moments = (trial - math.log(law.gamma)) / (1 + _EXCESSES)
    most = float(by_moments.min())
    ratio = (1 - law.gamma) / law.gamma

    def is_enough(log_r: float) -> bool:
        logs = trial + conversion(_EXCESSES) - log_r * _EXCESSES
        delta = float(np.exp(min(logs.min(), 0.0))) * _ROUND_UP
        return ratio * delta <= math.expm1(log_r)

    if is_enough(most):
        most = last_true(is_enough, most, 0.0, share=1e-9)
    return (law.shape + 1) * most * _ROUND_UP


# From a mechanism of the kind and the orders minus one to log moments.
LOG_MOMENTS: Mapping[type[Mechanism], Callable[[Any, Array], Array]] = {
    Gaussian: _gaussian,
    SampledGaussian: _sampled,
    SampledGaussianReplaceOne: _replaced,
    FixedSizeGaussian: _fixed_size,
    FullOrNot: _full_or_not,
    AdditiveNoise: encoded.log_moment,
    OneOf: _one_of,
    Selected: _selected,
}
