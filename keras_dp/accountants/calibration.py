"""The noise that a privacy target needs: one root finder for everything."""

import math
from collections.abc import Callable

from scipy import optimize

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.normalization import (
    LedgerLike,
    Neighbours,
    check_neighbours,
)
from keras_dp.accountants.rdp import RDP
from keras_dp.errors import CalibrationError
from keras_dp.ledger import GaussianSum, PoissonSampling, Round

# The range that is searched, and the first step in it.
_LEAST_NOISE, _MOST_NOISE = 1e-4, 1e12
_FACTOR = 4.0
# Relative, of the noise. The result is this much above the root, at most.
_PRECISION = 1e-9
# log() of it stands for an infinite epsilon, or the log of a zero one.
_HUGE, _TINY = 1e300, 1e-300


def calibrate_noise(
    *,
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    rounds: int,
    accountant: Accountant | None = None,
    neighbours: Neighbours = "add_or_remove_one",
) -> float:
    """Returns the least noise multiplier that meets a privacy target.

    Guarantee: `rounds` rounds of one Gaussian sum each, drawn by Poisson
    sampling, with the noise multiplier that is returned, cost at most
    `target_epsilon` at `delta` by `accountant`; the result is checked. A
    noise smaller by a factor 1 - 1e-8 would cost more.

    Args:
        target_epsilon: > 0.
        delta: In (0, 1).
        sampling_probability: Of a record in a round, in (0, 1].
        rounds: >= 1.
        accountant: `RDP()` by default.
        neighbours: See `normalization.normalize`.

    Returns:
        Stddev of the noise on the sum over the bound on one record, whatever
        the relation: that a replaced record moves the sum twice as far is
        part of the calculation.

    Raises:
        CalibrationError: No noise meets the target.
        UnsupportedEventError: `accountant` cannot price such rounds.

    >>> noise_multiplier = calibrate_noise(
    ...     target_epsilon=1.0, delta=1e-5, sampling_probability=0.01,
    ...     rounds=10_000,
    ... )
    >>> round(noise_multiplier, 4)
    4.1253
    """
    _check.probability(sampling_probability=sampling_probability)
    _check.integer_at_least(1, rounds=rounds)
    sampling = PoissonSampling(sampling_probability)

    def ledger_for(noise_multiplier: float) -> LedgerLike:
        query = GaussianSum("calibrated", 1.0, noise_multiplier)
        return [(Round(sampling, (query,)), rounds)]

    return calibrate_scale(
        ledger_for,
        target_epsilon=target_epsilon,
        delta=delta,
        accountant=accountant,
        neighbours=neighbours,
    )


def calibrate_scale(
    ledger_for: Callable[[float], LedgerLike],
    *,
    target_epsilon: float,
    delta: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours = "add_or_remove_one",
) -> float:
    """Returns the least noise scale for which a ledger meets a target.

    Guarantee: as `calibrate_noise`.

    Args:
        ledger_for: From a scale > 0 to the ledger that it would lead to. A
            larger scale must never cost more.
        target_epsilon: > 0.
        delta: In (0, 1).
        accountant: `RDP()` by default.
        neighbours: See `normalization.normalize`.

    Returns:
        The scale. 1e-4 if that little meets the target already.

    Raises:
        CalibrationError: No scale up to 1e12 meets the target.
        UnsupportedEventError: `accountant` cannot price the ledger.

    >>> def two_layers(scale):  # The second gets twice the noise.
    ...     layers = (GaussianSum("conv", 1.0, scale),
    ...               GaussianSum("head", 1.0, 2 * scale))
    ...     return [(Round(PoissonSampling(0.01), layers), 10_000)]
    >>> scale = calibrate_scale(two_layers, target_epsilon=1.0, delta=1e-5)
    >>> round(scale, 4)
    4.6122
    """
    _check.finite_positive(target_epsilon=target_epsilon, delta=delta)
    if delta >= 1:
        raise ValueError(
            f"`delta` must be in (0, 1). Received: delta={delta!r}."
        )
    check_neighbours(neighbours)
    chosen = RDP() if accountant is None else accountant

    def excess(log_scale: float) -> float:
        epsilon = chosen.epsilon(
            ledger_for(math.exp(log_scale)), delta=delta, neighbours=neighbours
        )
        epsilon = min(max(epsilon, _TINY), _HUGE)
        return math.log(epsilon) - math.log(target_epsilon)

    low, high = _bracket(excess, target_epsilon, chosen.name)
    if low == high:
        return math.exp(low)
    log_scale = optimize.brentq(excess, low, high, xtol=_PRECISION / 2)
    while excess(log_scale) > 0:
        log_scale += _PRECISION
    return math.exp(log_scale)


def _bracket(
    excess: Callable[[float], float], target_epsilon: float, name: str
) -> tuple[float, float]:
    """Returns logs of scales that miss and meet the target."""
    step = math.log(_FACTOR)
    low = high = 0.0
    while excess(high) > 0:
        if high >= math.log(_MOST_NOISE):
            nearest = target_epsilon * math.exp(excess(high))
            raise CalibrationError(
                "`target_epsilon` must be one that noise can reach. "
                f"Received: target_epsilon={target_epsilon!r}. At "
                f"{math.exp(high):.0e} times the noise, `{name}` still "
                f"reports epsilon={nearest:.6g}, the least it can."
            )
        low, high = high, min(high + step, math.log(_MOST_NOISE))
    if low < high:
        return low, high
    while excess(low) <= 0:
        if low <= math.log(_LEAST_NOISE):
            return low, low
        low, high = max(low - step, math.log(_LEAST_NOISE)), low
    return low, high
