"""What a privacy target allows: one root finder for everything."""

import math
from collections.abc import Callable

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.normalize.normalize import Neighbours
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.accountants.replay import chosen_accountant
from keras_dp.errors import CalibrationError
from keras_dp.ledger import GaussianSum, PoissonSampling, Round
from keras_dp.planning.solve import (
    Counts,
    Domain,
    Interval,
    Unreachable,
    count,
    least_that_meets,
)

# The ranges that are searched.
_LEAST_NOISE, _MOST_NOISE = 1e-4, 1e12
_LEAST_PROBABILITY = 1e-12
_MOST_ROUNDS = 10**12
# Of bounds, well within the 1e-6 of the target that is promised.
_WIDTH = 3e-7
# Where the search for rounds and for a probability begins.
_FIRST_ROUNDS, _FIRST_PROBABILITY = 1000, 0.01


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
    `target_epsilon` at `delta` by `accountant`, and not less than
    `(1 - 1e-6) target_epsilon` where what it reports is continuous.

    Args:
        target_epsilon: > 0.
        delta: In (0, 1).
        sampling_probability: Of a record in a round, in (0, 1].
        rounds: >= 1.
        accountant: The tightest that can replay such rounds by default.
        neighbours: See `normalization.normalize`.

    Returns:
        Stddev of the noise on the sum over the bound on one record, whatever
        the relation: that a replaced record moves the sum twice as far is
        part of the calculation.

    Raises:
        CalibrationError: No noise meets the target.
        UnsupportedEventError: `accountant` cannot price such rounds.

    >>> from keras_dp.accountants.rdp import RDP
    >>> noise_multiplier = calibrate_noise(
    ...     target_epsilon=1.0, delta=1e-5, sampling_probability=0.01,
    ...     rounds=10_000, accountant=RDP(),
    ... )
    >>> round(noise_multiplier, 4)
    4.1253
    """
    _check.probability(sampling_probability=sampling_probability)
    _check.integer_at_least(1, rounds=rounds)
    return calibrate_scale(
        lambda scale: _training(sampling_probability, scale, rounds),
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
        accountant: The tightest that can replay the ledger by default.
        neighbours: See `normalization.normalize`.

    Returns:
        The scale. 1e-4 if that little meets the target already.

    Raises:
        CalibrationError: No scale up to 1e12 meets the target.
        UnsupportedEventError: `accountant` cannot price the ledger.

    >>> from keras_dp.accountants.rdp import RDP
    >>> def two_layers(scale):  # The second gets twice the noise.
    ...     layers = (GaussianSum("conv", 1.0, scale),
    ...               GaussianSum("head", 1.0, 2 * scale))
    ...     return [(Round(PoissonSampling(0.01), layers), 10_000)]
    >>> scale = calibrate_scale(
    ...     two_layers, target_epsilon=1.0, delta=1e-5, accountant=RDP()
    ... )
    >>> round(scale, 4)
    4.6122
    """
    log_scale = _solved(
        lambda log_scale: ledger_for(math.exp(log_scale)),
        Interval(math.log(_LEAST_NOISE), math.log(_MOST_NOISE)),
        f"{_MOST_NOISE:g} times the noise",
        start=0.0,
        target_epsilon=target_epsilon,
        delta=delta,
        accountant=accountant,
        neighbours=neighbours,
    )
    return math.exp(log_scale)


def calibrate_sampling_probability(
    *,
    target_epsilon: float,
    delta: float,
    noise_multiplier: float,
    rounds: int,
    accountant: Accountant | None = None,
    neighbours: Neighbours = "add_or_remove_one",
) -> float:
    """Returns the largest sampling probability that meets a privacy target.

    Guarantee: as `calibrate_noise`.

    Args:
        target_epsilon: > 0.
        delta: In (0, 1).
        noise_multiplier: Stddev over the bound on one record, > 0.
        rounds: >= 1.
        accountant: The tightest that can replay such rounds by default.
        neighbours: See `normalization.normalize`.

    Returns:
        In (0, 1]; 1 if even that meets the target.

    Raises:
        CalibrationError: No probability down to 1e-12 meets the target.
        UnsupportedEventError: `accountant` cannot price such rounds.

    >>> from keras_dp.accountants.rdp import RDP
    >>> sampling_probability = calibrate_sampling_probability(
    ...     target_epsilon=1.0, delta=1e-5, noise_multiplier=4.1253,
    ...     rounds=10_000, accountant=RDP(),
    ... )
    >>> round(sampling_probability, 6)
    0.01
    """
    _check.finite_positive(noise_multiplier=noise_multiplier)
    _check.integer_at_least(1, rounds=rounds)
    log_rarity = _solved(
        lambda at: _training(math.exp(-at), noise_multiplier, rounds),
        Interval(0.0, -math.log(_LEAST_PROBABILITY)),
        f"a sampling probability of {_LEAST_PROBABILITY:g}",
        start=-math.log(_FIRST_PROBABILITY),
        target_epsilon=target_epsilon,
        delta=delta,
        accountant=accountant,
        neighbours=neighbours,
    )
    return math.exp(-log_rarity)


def calibrate_rounds(
    *,
    target_epsilon: float,
    delta: float,
    noise_multiplier: float,
    sampling_probability: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours = "add_or_remove_one",
) -> int:
    """Returns the largest number of rounds that meets a privacy target.

    Guarantee: that many rounds of one Gaussian sum each, drawn by Poisson
    sampling, cost at most `target_epsilon` at `delta` by `accountant`, and one
    round more costs more. Beyond 1e9 rounds: and a share of 1e-9 more.

    Args:
        target_epsilon: > 0.
        delta: In (0, 1).
        noise_multiplier: Stddev over the bound on one record, > 0.
        sampling_probability: Of a record in a round, in (0, 1].
        accountant: The tightest that can replay such rounds by default.
        neighbours: See `normalization.normalize`.

    Returns:
        At least 1. 1e12 if that many meet the target.

    Raises:
        CalibrationError: One round costs more than the target.
        UnsupportedEventError: `accountant` cannot price such rounds.

    >>> from keras_dp.accountants.rdp import RDP
    >>> calibrate_rounds(
    ...     target_epsilon=1.0, delta=1e-5, noise_multiplier=4.1254,
    ...     sampling_probability=0.01, accountant=RDP(),
    ... )
    10000
    """
    _check.finite_positive(noise_multiplier=noise_multiplier)
    _check.probability(sampling_probability=sampling_probability)
    return count(
        _solved(
            lambda at: _training(
                sampling_probability, noise_multiplier, count(at)
            ),
            Counts(_MOST_ROUNDS),
            "one round",
            start=-math.log(_FIRST_ROUNDS),
            target_epsilon=target_epsilon,
            delta=delta,
            accountant=accountant,
            neighbours=neighbours,
        )
    )


def _training(
    sampling_probability: float, noise_multiplier: float, rounds: int
) -> list[tuple[Round, int]]:
    query = GaussianSum("calibrated", 1.0, noise_multiplier)
    return [(Round(PoissonSampling(sampling_probability), (query,)), rounds)]


def _solved(
    ledger_at: Callable[[float], LedgerLike],
    domain: Domain,
    cheapest: str,
    *,
    start: float,
    target_epsilon: float,
    delta: float,
    accountant: Accountant | None,
    neighbours: Neighbours,
) -> float:
    """Returns the parameter at which a ledger barely meets the target."""
    _check.finite_positive(target_epsilon=target_epsilon, delta=delta)
    if delta >= 1:
        raise ValueError(
            f"`delta` must be in (0, 1). Received: delta={delta!r}."
        )
    chosen = chosen_accountant(accountant, ledger_at(start), neighbours)
    if accountant is None and isinstance(chosen, Fourier):
        # Few rounds are solved for in a third of the time.
        chosen = Fourier(relative_width=_WIDTH)

    def epsilon(at: float) -> float:
        return chosen.epsilon(ledger_at(at), delta=delta, neighbours=neighbours)

    found = least_that_meets(epsilon, target_epsilon, domain, start)
    if isinstance(found, Unreachable):
        raise CalibrationError(
            "`target_epsilon` must be one that can be reached. Received: "
            f"target_epsilon={target_epsilon!r}. At {cheapest}, "
            f"`{chosen.name}` still reports epsilon={found.epsilon:.6g}, the "
            "least it can."
        )
    return found
