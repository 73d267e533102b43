"""Calculates the noise that meets a privacy target."""

import bisect
import decimal
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from keras_dp import _check
from keras_dp.accountants.accountant import CHOOSE_DELTA, Accountant
from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.accountants.replay import replay_of
from keras_dp.accountants.roots import least_safe
from keras_dp.errors import CalibrationError
from keras_dp.ledger import GaussianSum, PoissonSampling, Round

# The first step would be a little too long if epsilon were inversely
# proportional to the quantity. Each further step is twice the one before.
_OVERSHOOT, _SHORTEST_STEP, _LONGEST_STEP = 1.1, 0.05, math.log(100.0)
# Log epsilon may stay this far below the log of the target.
PRECISION = 1e-7
# The root finder stops when parameters are this near to each other, as a share
# of the precision: epsilon jumps there.
_NEAREST = 1e-4
# The same for the logarithms of counts.
_NEAREST_COUNTS = 1e-9
# Epsilons are clipped to these values before their logarithm is taken.
_HUGE, _TINY = 1e300, 1e-300


class Unreachable(NamedTuple):
    """The epsilon at the most private parameter of a search that found none."""

    epsilon: float


def least_that_meets(
    epsilon: Callable[[float], float],
    target_epsilon: float,
    *,
    least: float,
    most: float,
    start: float,
    precision: float = PRECISION,
) -> float | Unreachable:
    """Returns the least parameter at which epsilon is at most the target.

    Epsilon must not increase with the parameter. `least` itself is returned if
    it meets the target. `start` is a first guess in `[least, most]`, and log
    epsilon may stay below that of the target by `precision`.
    """
    excess = _log_excess(epsilon, target_epsilon)
    bracket = _bracket(excess, least, most, start, precision)
    if not isinstance(bracket, _Bracket):
        return _or_unreachable(bracket, excess, target_epsilon)
    nearest = _NEAREST * precision
    return least_safe(excess, *bracket, nearest=nearest, precision=precision)


def most_that_meet(
    epsilon: Callable[[int], float],
    target_epsilon: float,
    *,
    most: int,
    start: int,
) -> int | Unreachable:
    """Returns the largest count from 1 at which epsilon is at most the target.

    Epsilon must not decrease with the count. Beyond 1e9, a count that is larger
    by a share of 1e-9 may meet it too. `most` is returned if it meets the
    target; `start` is a first guess.
    """
    of_count = _log_excess(epsilon, target_epsilon)

    def excess(at: float) -> float:
        return of_count(_count(at))

    bracket = _bracket(excess, -math.log(most), 0.0, -math.log(start), 0.0)
    if not isinstance(bracket, _Bracket):
        found = _or_unreachable(bracket, excess, target_epsilon)
        return found if isinstance(found, Unreachable) else _count(found)
    too_many = _count(bracket.unsafe)
    nearest = max(_NEAREST_COUNTS, 1 / too_many)
    enough = _count(least_safe(excess, *bracket, nearest=nearest))
    # The root finder leaves a few counts.
    too_many = min(too_many, enough + math.ceil(2 * nearest * enough) + 1)
    while of_count(too_many) <= 0:
        enough, too_many = too_many, 2 * too_many - enough
    counts = range(enough, too_many, max(1, int(_NEAREST_COUNTS * enough)))
    return counts[
        bisect.bisect_left(counts, True, lo=1, key=lambda n: of_count(n) > 0)
        - 1
    ]


class _Bracket(NamedTuple):
    unsafe: float
    safe: float


def _bracket(
    excess: Callable[[float], float],
    least: float,
    most: float,
    start: float,
    precision: float,
) -> _Bracket | float:
    """Returns a bracket around the target, or the parameter of the result.

    The search ends without a bracket at `least` if that meets the target, at
    `most` if that does not, or at a parameter that meets the target to within
    the precision.
    """
    at, value = start, excess(start)
    step = _OVERSHOOT * abs(value)
    step = min(max(step, _SHORTEST_STEP), _LONGEST_STEP)
    direction, end = (1, most) if value > 0 else (-1, least)
    while True:
        if at == end or (-precision <= value <= 0 and direction < 0):
            return at
        before = at
        at = min(max(at + direction * step, least), most)
        value = excess(at)
        if (value <= 0) == (direction > 0):
            return _Bracket(*sorted((before, at)))
        step *= 2


def _or_unreachable(
    at: float, excess: Callable[[float], float], target_epsilon: float
) -> float | Unreachable:
    if excess(at) <= 0:
        return at
    return Unreachable(target_epsilon * math.exp(excess(at)))


def _log_excess(
    epsilon: Callable[[Any], float],
    target_epsilon: float,
) -> Callable[[float], float]:
    """Returns a function: log epsilon minus the log of the target."""

    @functools.cache
    def excess(at: float) -> float:
        value = min(max(epsilon(at), _TINY), _HUGE)
        found = math.log(value) - math.log(target_epsilon)
        if value > target_epsilon:  # The logarithms may be equal.
            return max(found, math.ulp(0.0))
        return min(found, 0.0)

    return excess


def _count(at: float) -> int:
    """Returns the `n` of `-log(n)`."""
    return round(math.exp(-at))


_Parameter = TypeVar("_Parameter", int, float)
Rounds: TypeAlias = Iterable[tuple[Round, int]]

# The ranges that are searched.
_LEAST_NOISE, _MOST_NOISE = 1e-4, 1e12
MOST_ROUNDS = 10**12
# With more kinds of rounds, a search with a few kinds comes first.
_MANY_KINDS, _FEW_KINDS = 48, 16
# The relative width of the first search, in units of the precision.
_QUICK_WIDTH = 3.0
# From here on a target, or a delta, protects hardly anyone. Bounds take longer
# there, and noise that is right to four digits will do.
_LARGE_TARGET, _LARGE_DELTA = 100.0, 0.1
_ROUGH, _MOST_DELTA = 1e-4, 0.5
# A ledger holds noise and bound; their quotient is a scale of so many digits.
_DIGITS = decimal.Context(prec=12, rounding=decimal.ROUND_CEILING)


def calibrate_noise(
    *,
    target_epsilon: float,
    delta: float,
    sampling_probability: float,
    rounds: int,
    ledger: LedgerLike = (),
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> float:
    """Returns the least noise multiplier that meets a privacy target.

    Guarantee: each round releases one Gaussian sum over a Poisson sample. For
    `ledger` followed by `rounds` such rounds with the returned noise
    multiplier, `accountant` reports at most `target_epsilon` at `delta`. It
    reports at least `(1 - 1e-6) target_epsilon`, or `1 - 1e-3` of it by
    `Fourier` for a target above 100 or a delta above 0.1, unless its epsilon
    jumps there or the returned value is 1e-4, the least that is searched.

    Args:
        target_epsilon: > 0.
        delta: In (0, 0.5].
        sampling_probability: The probability that a round samples a record,
            in (0, 1].
        rounds: >= 1.
        ledger: Rounds that are already spent. They count towards the target.
        accountant: By default, the tightest that can replay these rounds.
        neighbours: The adjacency relation. By default, the strongest that
            all rounds support.
        units: The number of units that the target protects together, >= 1. A
            unit has `rows_per_unit` records if `ledger` says so, else one.

    Returns:
        The standard deviation of the noise on the sum, divided by the bound
        on one record. This definition holds for every adjacency relation. The
        calculation accounts for a replaced record, which moves the sum by up
        to twice the bound.

    Raises:
        CalibrationError: No noise multiplier up to 1e12 meets the target.
        UnsupportedEventError: `accountant` has no bound for such rounds.

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
        lambda scale: poisson_training(sampling_probability, scale, rounds),
        target_epsilon=target_epsilon,
        delta=delta,
        ledger=ledger,
        accountant=accountant,
        neighbours=neighbours,
        units=units,
    )


def calibrate_scale(
    rounds_for: Callable[[float], Rounds],
    *,
    target_epsilon: float,
    delta: float,
    ledger: LedgerLike = (),
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
    precision: float | None = None,
) -> float:
    """Returns the least noise scale for which a ledger meets a target.

    Guarantee: `accountant` reports at most `target_epsilon` at `delta` for
    `ledger` followed by `rounds_for` of the returned scale. The lower limit is
    as in `calibrate_noise`, unless `precision` says something else.

    Args:
        rounds_for: Maps a scale > 0 to the rounds that it leads to, as pairs of
            a Round and its count. A larger scale must never give a larger
            epsilon.
        target_epsilon: > 0.
        delta: In (0, 0.5].
        ledger: See `calibrate_noise`.
        accountant: By default, the tightest that can replay the ledger.
        neighbours: See `calibrate_noise`.
        units: See `calibrate_noise`.
        precision: Which share of the target epsilon may be left, > 0. Where an
            epsilon takes seconds, a larger share saves most of them. `None`
            stands for that of `calibrate_noise`.

    Returns:
        The scale, at least 1e-4. It is 1e-4 if that meets the target.

    Raises:
        CalibrationError: No scale up to 1e12 meets the target.
        UnsupportedEventError: `accountant` has no bound for the ledger.

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
    # One body: both searches below share the relation and the accountant.
    target_epsilon, delta = checked_target(target_epsilon, delta)
    _check.integer_at_least(1, units=units)
    if precision is not None:
        _check.finite_positive(precision=precision)
    held = replay_of(ledger)
    # The rounds at scale 1 decide on the accountant and the adjacency relation.
    first = held.plus(rounds_for(1.0))
    relation = first.relation(neighbours)
    accountant = accountant or first.accountant(relation)
    if precision is None:
        is_large = target_epsilon > _LARGE_TARGET or delta > _LARGE_DELTA
        is_rough = is_large and isinstance(accountant, Fourier)
        precision = _ROUGH if is_rough else PRECISION

    def epsilon(by: Accountant, log_scale: float) -> float:
        return held.plus(rounds_for(_scale(log_scale))).epsilon(
            by, delta=delta, neighbours=relation, units=units
        )

    def search(
        of: Callable[[float], float], start: float
    ) -> float | Unreachable:
        return least_that_meets(
            of,
            target_epsilon,
            least=math.log(_LEAST_NOISE),
            most=math.log(_MOST_NOISE),
            start=start,
            precision=precision,
        )

    start: float | Unreachable = 0.0
    if len(first.normalized(relation).mechanisms) > _MANY_KINDS:
        # Each kind takes its time. Of few kinds, the rounds cost a little more.
        start = search(
            lambda log_scale: accountant.epsilon(
                held.plus(rounds_for(_scale(log_scale)))
                .normalized(relation)
                .of_kinds(_FEW_KINDS),
                delta=delta,
                neighbours=relation,
                units=units,
            ),
            0.0,
        )
    if isinstance(start, Unreachable):
        start = 0.0
    found = searched(
        epsilon,
        functools.partial(search, start=start),
        accountant,
        target_epsilon,
        precision,
    )
    if isinstance(found, Unreachable):
        raise CalibrationError(
            "`target_epsilon` must be reachable. Received: target_epsilon="
            f"{target_epsilon!r}. At a noise scale of {_MOST_NOISE:g}, the "
            "most private value of the search, "
            f"`{accountant.name}` reports epsilon={found.epsilon:.6g}. "
            "Choose a larger target, a larger delta, fewer rounds or another "
            "accountant."
        )
    return _scale(found)


def checked_target(target_epsilon: float, delta: float) -> tuple[float, float]:
    """Returns epsilon > 0 and delta in (0, 0.5], as numbers of Python.

    With a larger delta a mechanism may publish a record more often than not.
    A float32 of NumPy would round what is compared with it.
    """
    _check.finite_positive(target_epsilon=target_epsilon)
    check_target_delta(delta)
    if delta > _MOST_DELTA:
        raise ValueError(
            "`delta` of a target must be at most 0.5. Received: "
            f"delta={delta!r}.{CHOOSE_DELTA}"
        )
    return float(target_epsilon), float(delta)


def check_target_delta(delta: float) -> None:
    """Raises unless delta is in (0, 1)."""
    _check.share("(0, 1)", CHOOSE_DELTA, delta=delta)


def default_delta(population_size: int | None) -> float:
    """Returns `N^-1.1` for N >= 1 records, rounded down to two digits.

    A mechanism that publishes a record chosen at random is `(0, 1/N)`-private:
    delta must be well below that. For `None` the result is 1e-5, and for at
    most 8 records it is 0.1.
    """
    if population_size is None:
        return 1e-5
    delta = min(0.1, population_size**-1.1)
    unit = 10.0 ** (math.floor(math.log10(delta)) - 1)
    return float(f"{math.floor(delta / unit) * unit:.1e}")


def check_below_share_of(units: int, delta: float) -> None:
    """Raises unless delta is less than 1 over the number of units."""
    if delta * units >= 1:
        raise ValueError(
            f"`delta` must be less than 1/N for N = {units:,} records or units:"
            " a larger one allows a mechanism that publishes one of them. "
            f"Received: delta={delta!r}. Leave it out, or take N^-1.1."
        )


def _scale(log_scale: float) -> float:
    """Returns a scale, rounded up to 12 digits."""
    return float(_DIGITS.create_decimal_from_float(math.exp(log_scale)))


def poisson_training(
    sampling_probability: float, noise_multiplier: float, rounds: int
) -> list[tuple[Round, int]]:
    """Returns rounds of one Gaussian sum over a Poisson sample."""
    query = GaussianSum("gradients", 1.0, noise_multiplier)
    return [(Round(PoissonSampling(sampling_probability), (query,)), rounds)]


def searched(
    epsilon: Callable[[Accountant, _Parameter], float],
    search: Callable[[Callable[[_Parameter], float]], _Parameter | Unreachable],
    accountant: Accountant,
    target_epsilon: float,
    precision: float = PRECISION,
) -> _Parameter | Unreachable:
    """Returns a parameter at which an accountant reports at most the target.

    A search with wider bounds comes first, because it takes a third of the
    time. Where bounds cannot be narrow, the narrow bound may be the larger one.
    """
    if accountant == Fourier():
        quick = Fourier(relative_width=_QUICK_WIDTH * precision)
        found = search(functools.partial(epsilon, quick))
        if isinstance(found, Unreachable) or (
            epsilon(accountant, found) <= target_epsilon
        ):
            return found
    return search(functools.partial(epsilon, accountant))
