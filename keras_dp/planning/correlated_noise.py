"""The noise of a correlated mechanism that meets a privacy target."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from keras_dp import _check
from keras_dp._counted import first_of
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.participations import strategy_sensitivity
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.ledger import (
    BandedToeplitz,
    CorrelatedSum,
    CyclicPoissonSampling,
    Round,
    Strategy,
)
from keras_dp.planning.calibration import calibrate_scale
from keras_dp.planning.rounds_left import repeated

# More bands take more memory and time, and remove little more noise.
_BANDS = (1, 2, 4, 8, 16)
_STEPS = 2000
# The first step of L-BFGS has length 1 in its numbers. A strategy whose noise
# grows without end is often nearer than that.
_SCALE = 50.0
# Fewer bands are taken where the noise of the sums is larger by this at most.
_NEARLY_LEAST = 1.03


class CorrelatedNoise(NamedTuple):
    """A strategy, the samples that amplify it, and what it gives.

    Attributes:
        strategy: For a `CorrelatedSumQuery`.
        classes: The number of classes of `CyclicPoissonBatches`.
        sampling_probability: The chance of a record to take part in the round
            of its class.
        noise_multiplier: The least of a query that meets the target.
        sum_noise: The root mean square of the noise of the sums over the first
            rounds, where the bound on one record is 1.
    """

    strategy: Strategy
    classes: int
    sampling_probability: float
    noise_multiplier: float
    sum_noise: float


def plan_correlated_noise(
    rounds: int,
    *,
    sampling_probability: float,
    target_epsilon: float,
    delta: float,
    bands: Iterable[int] = _BANDS,
    ledger: LedgerLike = (),
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
) -> list[CorrelatedNoise]:
    """Returns banded strategies that meet a target, and the best one first.

    Each has the least noise of the sums for its number of bands, has as many
    classes as bands, and draws samples of the same expected size. One band is
    independent noise. First comes the one of fewest bands whose sums have at
    most 3 % more noise than those of the best. The others follow by their
    bands.

    Args:
        rounds: The number of rounds, >= 1.
        sampling_probability: The expected size of a sample over the number of
            records, in (0, 1].
        target_epsilon: > 0.
        delta: In (0, 0.5].
        bands: Which numbers of bands are tried, each >= 1. Left out are those
            above the number of rounds, and those whose classes have fewer
            records than a sample.
        ledger: See `calibrate_noise`.
        accountant: See `calibrate_noise`.
        neighbours: See `calibrate_noise`.

    Raises:
        CalibrationError: See `calibrate_noise`.
        ValueError: A number is out of its range, or no number of bands is
            left.

    >>> best, *others = plan_correlated_noise(
    ...     500, sampling_probability=0.01, target_epsilon=1.0, delta=1e-5)
    >>> best.classes, f"{best.sum_noise:.2f}"
    (4, '15.92')
    >>> [(each.classes, f"{each.sum_noise:.2f}") for each in others]
    [(1, '18.14'), (2, '16.57'), (8, '16.15'), (16, '17.31')]
    """
    _check.integer_at_least(1, rounds=rounds)
    _check.probability(sampling_probability=sampling_probability)
    found = []
    for count in sorted({*bands}):
        _check.integer_at_least(1, bands=count)
        if count > rounds or count * sampling_probability > 1:
            continue
        found.append(
            amplified(
                optimize_strategy(count, rounds),
                rounds,
                sampling_probability,
                target_epsilon=target_epsilon,
                delta=delta,
                ledger=ledger,
                accountant=accountant,
                neighbours=neighbours,
            )
        )
    if not found:
        raise ValueError(
            "`bands` must hold a number of at most `rounds` and of at most "
            f"1 / sampling_probability. Received: bands={bands!r}."
        )
    most = _NEARLY_LEAST * min(each.sum_noise for each in found)
    best = next(each for each in found if each.sum_noise <= most)
    return [best, *(each for each in found if each is not best)]


def amplified(
    strategy: Strategy,
    rounds: int,
    sampling_probability: float,
    **target: Any,
) -> CorrelatedNoise:
    """Returns a strategy with the samples that suit it, and its noise.

    With as many classes as bands it is amplified. Where a class would have
    fewer records than a sample, each class is a sample as a whole.
    """
    classes, probability = strategy.bands, 1.0
    if classes is None or classes * sampling_probability > 1:
        classes = max(1, round(1 / sampling_probability))
    else:
        probability = classes * sampling_probability
    noise = calibrate_correlated_noise(
        strategy,
        rounds,
        classes=classes,
        sampling_probability=probability,
        **target,
    )
    of_sums = noise * sum_error(strategy, rounds)
    return CorrelatedNoise(strategy, classes, probability, noise, of_sums)


def sum_error(strategy: Strategy, rounds: int) -> float:
    """Returns the root mean square of the noise of the sums, in draws."""
    return math.sqrt(strategy.variances_of_sums(rounds).mean())


def prefix_sum_error(
    strategy: Strategy,
    rounds: int,
    *,
    min_separation: int = 1,
    max_participations: int | None = None,
) -> float:
    """Returns the root mean squared error of the prefix sums.

    The noise of the sum over the first `t` rounds has a variance. This is the
    root of its mean over all `t`, where the mechanism costs as much as one
    Gaussian sum of noise multiplier 1 without sampling, and each record moves
    the sum of a round by at most 1.

    Args:
        strategy: C.
        rounds: The number of rounds, >= 1.
        min_separation: See `accountants.strategy_sensitivity`.
        max_participations: See `accountants.strategy_sensitivity`.

    >>> prefix_sum_error(BandedToeplitz((1.0,)), 3, max_participations=1)
    1.4142...
    """
    moved = strategy_sensitivity(
        strategy, rounds, min_separation, max_participations
    )
    return sum_error(strategy, rounds) * moved.upper


def optimize_strategy(bands: int, rounds: int) -> BandedToeplitz:
    """Returns the strategy of some bands with the least error.

    It minimizes `prefix_sum_error` by L-BFGS, for records whose participations
    are at least `bands` rounds apart, as those of as many classes are.

    Args:
        bands: The number of bands, >= 1.
        rounds: The number of rounds, >= 1.

    Source: McKenna (2024), arXiv:2405.15913, whose objective this is.

    >>> optimize_strategy(2, rounds=100)
    BandedToeplitz(coefficients=(1.0, 0.7...))
    """
    _check.integer_at_least(1, rounds=rounds)
    start = BandedToeplitz.square_root(min(bands, rounds))
    if len(start.coefficients) == 1:
        return start
    from scipy import optimize, signal  # Training needs neither.

    weights = np.arange(rounds, 0, -1)

    def loss(numbers: Array) -> tuple[float, Array]:
        """Returns the log of the squared error, and its gradient.

        No two participations meet in a row, so that the squared sensitivity is
        the square of the column, times their number.
        """
        column = np.concatenate([[1.0], numbers / _SCALE])
        one = np.zeros(rounds)
        one[0] = 1.0
        with np.errstate(over="ignore", invalid="ignore"):
            inverse = signal.lfilter([1.0], column, one)
            noise = np.cumsum(inverse)
            error = np.square(noise) @ weights
            of_inverse = np.cumsum((2 * weights * noise)[::-1])[::-1]
            # The slope in c_k is -(1/c)^2, moved by k.
            square = signal.fftconvolve(inverse, inverse)[:rounds]
            slope = [
                -(of_inverse[k:] @ square[: rounds - k]) / error
                + 2 * column[k] / (column @ column)
                for k in range(1, len(column))
            ]
            value = float(np.log(error) + np.log(column @ column))
        if not np.isfinite(value) or not np.isfinite(slope).all():
            return 1e9, np.zeros_like(numbers)
        return value, np.array(slope) / _SCALE

    found = optimize.minimize(
        loss,
        np.array(start.coefficients[1:]) * _SCALE,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (len(start.coefficients) - 1),
        options={"maxiter": _STEPS, "ftol": 1e-13, "gtol": 1e-10},
    )
    return BandedToeplitz((1.0, *(found.x / _SCALE).tolist()))


def calibrate_correlated_noise(
    strategy: Strategy,
    rounds: int,
    *,
    target_epsilon: float,
    delta: float,
    classes: int,
    sampling_probability: float = 1.0,
    ledger: LedgerLike = (),
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
) -> float:
    """Returns the least noise multiplier of a query with correlated noise.

    It is that of a `CorrelatedSumQuery` whose samples are from
    `CyclicPoissonBatches`.

    Guarantee: as for `calibrate_scale`.

    Args:
        strategy: The strategy of the query.
        rounds: The number of rounds of the query, >= 1.
        target_epsilon: > 0.
        delta: In (0, 0.5].
        classes: The number of classes of the sampler, >= 1. At 1, with
            probability 1, every record takes part in every round.
        sampling_probability: Chance of a record to take part in the round of
            its class, in (0, 1].
        ledger: See `calibrate_noise`.
        accountant: See `calibrate_noise`.
        neighbours: See `calibrate_noise`.

    Raises:
        CalibrationError: See `calibrate_noise`.
        ValueError: A number is out of its range.

    >>> from keras_dp.ledger import BandedToeplitz
    >>> calibrate_correlated_noise(
    ...     BandedToeplitz((1, 0.5)), 100, target_epsilon=1, delta=1e-5,
    ...     classes=2, sampling_probability=0.02)
    1.1743...
    """
    first = CyclicPoissonSampling("planned-0", classes, sampling_probability)

    def rounds_for(scale: float) -> list[tuple[Round, int]]:
        event = CorrelatedSum("sum", 1.0, scale, strategy, rounds, "planned")
        cycles = repeated(
            Round(first, (event,)), classes, -(-rounds // classes)
        )
        return first_of(cycles, rounds)

    return calibrate_scale(
        rounds_for,
        target_epsilon=target_epsilon,
        delta=delta,
        ledger=ledger,
        accountant=accountant,
        neighbours=neighbours,
    )
