"""Epochs of random allocation, and Gaussian rounds beside them, composed.

An epoch's likelihood ratio is the mean of `t` independent log-normal ratios
(`mechanisms.RandomAllocationGaussian`). Its distribution follows by doubling;
no random numbers are involved. Where a record is in several batches, the upper
bound is that of their blocks, and the lower one is what an attack reaches
(`score_sum`). Balls in bins lie between trees of them (`bins`), and below a
chain of them (`chain`).
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias, get_args

import numpy as np

from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.compose.grid import (
    bins,
    chain,
    likelihood,
    score_sum,
    tilted,
)
from keras_dp.accountants.compose.grid.likelihood import Cells, Drawn, Spread
from keras_dp.accountants.normalize.mechanisms import (
    BallsInBinsGaussian,
    CountedMechanism,
    Gaussian,
    Mechanism,
    RandomAllocationGaussian,
    SampledGaussian,
)
from keras_dp.errors import NumericalLimitError, UnsupportedEventError

METHOD = "convolution of likelihood ratios"
# Steps of the grids, as shares of the stddev of what is on them.
_STEP, _DRAWN_STEP, _COMPOSED_STEP = 0.05, 0.3, 0.05
_LARGEST_STEP, _MOST_POINTS, _MOST_DRAWN = 0.01, 12_000, 3_000
# On finer grids neighbouring points round to the same float. An epoch whose
# rounds have more noise together counts as a Gaussian sum without
# amplification.
_LEAST_STEP, _MOST_NOISE = 1e-11, 1e9
# How far losses may be rounded in all rounds together: as a share of the
# epsilon that is asked for, and of their stddev.
_ROUNDED, _ROUNDED_STDDEVS = 2e-4, 2e-2
# The largest number of points within 30 standard deviations.
_MOST_ROUNDED = 2_000_000

# Beyond this epsilon, delta is at least 0 and at most what it is here.
_LARGEST_EPSILON = 1e4
# Smaller lower bounds become 0, as the attacks overrate unlikely outcomes.
_LEAST_DELTA = 1e-100
# Exceeds the rounding of a few products.
_ROUND_UP = 1 + 1e-14
# Rounding of the losses of a lower bound.
_LOSS_ERROR = 1e-10


_OfKind: TypeAlias = (
    Gaussian | SampledGaussian | RandomAllocationGaussian | BallsInBinsGaussian
)


class _Kind(NamedTuple):
    """Rounds that are alike.

    Attributes:
        mechanism: One of them; Gaussian ones are together a single one.
        rounds: How many.
    """

    mechanism: _OfKind
    rounds: int


def upper_epsilon(rounds: tuple[CountedMechanism, ...], delta: float) -> float:
    """Returns an upper bound on epsilon; `inf` where it is out of reach."""
    return max(
        each.upper_epsilon(delta)
        for each in _uppers(rounds, log_delta=math.log(delta))
    )


def upper_delta(rounds: tuple[CountedMechanism, ...], epsilon: float) -> float:
    """Returns an upper bound on delta."""
    return max(
        each.delta(min(epsilon, _LARGEST_EPSILON), is_upper=True)
        for each in _uppers(rounds, epsilon=min(epsilon, _LARGEST_EPSILON))
    )


def lower_epsilon(
    rounds: tuple[CountedMechanism, ...], delta: float, upper: float
) -> float:
    """Returns a lower bound on epsilon, given an upper one."""
    if delta <= _LEAST_DELTA:
        return 0.0
    return max(
        each.lower_epsilon(delta)
        for each in _lowers(rounds, upper, log_delta=math.log(delta))
    )


def lower_delta(rounds: tuple[CountedMechanism, ...], epsilon: float) -> float:
    """Returns a lower bound on delta."""
    if epsilon > _LARGEST_EPSILON:
        return 0.0
    found = max(
        each.delta(epsilon, is_upper=False)
        for each in _lowers(rounds, max(epsilon, 0.1), epsilon=epsilon)
    )
    return found if found > _LEAST_DELTA else 0.0


def without_amplification(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    """Returns rounds that dominate and whose epochs hide no batches.

    Whoever is told the batches of the record has as many sums without sampling
    as the record has batches; by joint convexity these dominate.
    """
    return tuple(_told(mechanism, count) for mechanism, count in rounds)


def _told(mechanism: Mechanism, count: int) -> CountedMechanism:
    if isinstance(mechanism, RandomAllocationGaussian):
        of_one = Gaussian(mechanism.noise_multiplier)
        return CountedMechanism(of_one, count * mechanism.batches_per_record)
    if isinstance(mechanism, BallsInBinsGaussian):
        return CountedMechanism(mechanism.told, count)
    return CountedMechanism(mechanism, count)


def sums_of_rounds(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    """Returns what is seen of rounds if those of each epoch are added up.

    The sum of all rounds of an epoch has the stddev `sqrt(t) z`, and a record
    moves it by `k`, whichever its batches are. Correlated rounds are ignored.
    """
    return tuple(
        CountedMechanism(
            Gaussian(
                math.sqrt(mechanism.batches)
                / mechanism.batches_per_record
                * mechanism.noise_multiplier
                * _ROUND_UP
            ),
            count,
        )
        if isinstance(mechanism, RandomAllocationGaussian)
        else CountedMechanism(mechanism, count)
        for mechanism, count in rounds
        if not isinstance(mechanism, BallsInBinsGaussian)
    )


def _uppers(
    rounds: tuple[CountedMechanism, ...], **target: float
) -> Iterable[tilted.Sum]:
    kinds = _kinds(_in_blocks(rounds))
    step = _composed_step(kinds)
    first, second = [], []
    for mechanism, count in kinds:
        each = _spread(mechanism, step)
        first.append(
            tilted.Losses(
                each.first,
                each.masses * np.exp(each.logs),
                each.infinite,
                count,
            )
        )
        last = each.first + len(each.masses) - 1
        second.append(tilted.Losses(-last, each.masses[::-1], each.zero, count))
    return [tilted.composed(each, step, **target) for each in (first, second)]


def _lowers(
    rounds: tuple[CountedMechanism, ...], scale: float, **target: float
) -> Iterable[tilted.Sum]:
    # An attack that ignores some rounds learns less.
    kinds = [
        each
        for each in _kinds(rounds)
        if each.mechanism.noise_multiplier < _MOST_NOISE
        and not _tells_nothing(each.mechanism)
    ]
    if not kinds:
        raise NumericalLimitError
    total = sum(each.rounds for each in kinds)
    variance = sum(n * math.log1p(_variance(each)) for each, n in kinds)
    stddev = math.sqrt(variance)
    step = min(_ROUNDED * scale, _ROUNDED_STDDEVS * stddev) / total
    step = max(min(step, _LARGEST_STEP), 30 * stddev / _MOST_ROUNDED)
    found = []
    for sign in (1, -1):
        parts = []
        for mechanism, count in kinds:
            each = _drawn(mechanism)
            kept = each.points > 0
            losses = sign * np.log(each.points[kept])
            masses = each.masses[kept]
            if sign > 0:
                masses = masses * each.points[kept]
            places = np.floor((losses - _LOSS_ERROR) / step).astype(np.int64)
            low = int(places.min())
            parts.append(
                tilted.Losses(
                    low,
                    np.asarray(np.bincount(places - low, masses), np.float64),
                    0.0,
                    count,
                )
            )
        found.append(tilted.composed(parts, step, **target))
    return found


def _in_blocks(
    rounds: Iterable[CountedMechanism],
) -> Iterator[CountedMechanism]:
    """Yields rounds that dominate: epochs become those of their blocks."""
    for mechanism, count in rounds:
        if not isinstance(mechanism, RandomAllocationGaussian):
            yield CountedMechanism(mechanism, count)
            continue
        z = mechanism.noise_multiplier
        for size, blocks in mechanism.blocks:
            is_amplified = size > 1 and z * math.sqrt(size) < _MOST_NOISE
            yield CountedMechanism(
                RandomAllocationGaussian(z, size)
                if is_amplified
                else Gaussian(z),
                blocks * count,
            )


def _kinds(rounds: Iterable[CountedMechanism]) -> list[_Kind]:
    gaussian, kinds = 0.0, []
    for mechanism, count in rounds:
        if isinstance(mechanism, Gaussian):
            gaussian += count / mechanism.noise_multiplier**2
        elif isinstance(mechanism, get_args(_OfKind)):
            kinds.append(_Kind(mechanism, count))
        else:
            raise UnsupportedEventError(
                "`rounds` must be Gaussian sums beside epochs of random "
                f"allocation and balls in bins. Received: {mechanism!r}."
            )
    if gaussian:
        kinds.append(_Kind(Gaussian(1 / math.sqrt(gaussian)), 1))
    return kinds


def _tells_nothing(mechanism: _OfKind) -> bool:
    return (
        isinstance(mechanism, BallsInBinsGaussian)
        and bins.below(mechanism) is None
    )


def _variance(mechanism: _OfKind) -> float:
    """Returns the variance of the likelihood ratio of a round."""
    if isinstance(mechanism, BallsInBinsGaussian):
        tree = bins.above(mechanism)
        if tree.products[0] > EXPONENT:
            raise NumericalLimitError
        return tree.variance
    exponent = mechanism.noise_multiplier**-2
    if exponent > EXPONENT:
        raise NumericalLimitError
    variance = math.expm1(exponent)
    if isinstance(mechanism, SampledGaussian):
        return variance * mechanism.sampling_probability**2
    if isinstance(mechanism, RandomAllocationGaussian):
        picks = mechanism.batches_per_record
        # The epoch has less than its blocks, of which this is the variance.
        share = variance * mechanism.sampling_probability
        return math.expm1(min(EXPONENT, picks * math.log1p(share)))
    return variance


def _composed_step(kinds: list[_Kind]) -> float:
    """Returns the step in which the losses of all rounds are composed.

    Spreading adds a variance to each round that grows with the step alone. It
    is small beside the variance of the average round.
    """
    total = sum(each.rounds for each in kinds)
    variance = sum(n * math.log1p(_variance(each)) for each, n in kinds)
    step = min(_COMPOSED_STEP * math.sqrt(variance / total), _LARGEST_STEP)
    if step < _LEAST_STEP:
        raise NumericalLimitError
    return step


@functools.lru_cache(maxsize=256)
def _spread(
    mechanism: _OfKind,
    step: float,
) -> Spread:
    stddev = 1 / mechanism.noise_multiplier
    if isinstance(mechanism, RandomAllocationGaussian):
        whole = _sum_of_spread(mechanism)
        points = np.exp(whole.logs - math.log(mechanism.batches))
        return _regridded(
            points,
            whole.masses,
            step,
            whole.zero,
            whole.infinite / mechanism.batches,
        )
    if isinstance(mechanism, Gaussian):
        return likelihood.spread_log_normal(stddev, step)
    if isinstance(mechanism, BallsInBinsGaussian):
        tree = bins.above(mechanism)
        of_bins = bins.spread_sum_of(tree)
        of_tree = _regridded(
            np.exp(of_bins.logs - math.log(tree.bins)),
            of_bins.masses,
            step,
            of_bins.zero,
            of_bins.infinite / tree.bins,
        )
        linked = bins.chain_above(mechanism)
        return chain.no_more_than(of_tree, linked) if linked else of_tree
    return likelihood.spread_of_cells(step, *_sampled_cells(mechanism, step))


def _sampled_cells(
    mechanism: SampledGaussian, step: float
) -> tuple[int, Cells]:
    """Returns the first edge, in steps, and masses of the ratio `1 - q + q W`.

    The cells between the edges hold nearly all of it.
    """
    stddev, q = 1 / mechanism.noise_multiplier, mechanism.sampling_probability
    low, high = likelihood.sampled_range(stddev, q)
    first, last = math.floor(low / step), math.ceil(high / step) + 1
    edges = np.asarray(step * np.arange(first, last + 1))
    under_q, under_p = likelihood.cells_of_inner(edges, stddev, q)
    return first, Cells(under_q, (1 - q) * under_q + q * under_p)


@functools.lru_cache(maxsize=64)
def _sum_of_spread(mechanism: RandomAllocationGaussian) -> Spread:
    stddev = 1 / mechanism.noise_multiplier
    step = min(_STEP * math.sqrt(_variance(mechanism)), _LARGEST_STEP)
    step = max(step, 2 * likelihood.reach(stddev) / _MOST_POINTS)
    return likelihood.repeated(
        likelihood.spread_log_normal(stddev, step),
        mechanism.batches,
        likelihood.spread_sum,
    )


def _regridded(
    points: Array, masses: Array, step: float, zero: float, infinite: float
) -> Spread:
    """Returns a ratio that is spread onto the points of another grid."""
    cell = np.floor(np.log(points) / step).astype(np.int64)
    # Rounding may have moved a point to the end of the next cell.
    cell -= points < np.exp(step * cell)
    cell += points >= np.exp(step * (cell + 1))
    first = int(cell.min())
    none = [0.0]
    found = likelihood.spread_of_cells(
        step,
        first,
        Cells(
            *(
                np.concatenate([none, np.bincount(cell - first, each), none])
                for each in (masses, masses * points)
            )
        ),
    )
    return found._replace(
        zero=found.zero + zero, infinite=found.infinite + infinite
    )


@functools.lru_cache(maxsize=64)
def _drawn(mechanism: _OfKind) -> Drawn:
    if isinstance(mechanism, BallsInBinsGaussian):
        # `_tells_nothing` has left out what has none.
        tree = bins.below(mechanism) or bins.Tree((0.0, 0.0), 1)
        return bins.drawn_mean_of(tree)
    stddev = 1 / mechanism.noise_multiplier
    step = min(
        _DRAWN_STEP * math.sqrt(math.log1p(_variance(mechanism))),
        _LARGEST_STEP,
    )
    if isinstance(mechanism, RandomAllocationGaussian) and (
        mechanism.batches_per_record > 1
    ):
        return score_sum.drawn(mechanism)
    if isinstance(mechanism, Gaussian):
        return likelihood.drawn_log_normal(stddev, step / 10)
    if isinstance(mechanism, SampledGaussian):
        _, cells = _sampled_cells(mechanism, step / 10)
        return likelihood.drawn_of_cells(cells)
    step = max(step, 2 * likelihood.reach(stddev) / _MOST_DRAWN)
    total = likelihood.repeated(
        likelihood.drawn_log_normal(stddev, step),
        mechanism.batches,
        functools.partial(likelihood.drawn_sum, step=step),
    )
    return Drawn(total.points / mechanism.batches, total.masses)
