"""The tightest accountant: certified bounds by privacy loss distributions."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import ClassVar, NamedTuple, Self, TypeAlias

from keras_dp import _check
from keras_dp._override import override
from keras_dp.accountants import searches
from keras_dp.accountants.accountant import (
    Accountant,
    check_delta,
    has_bare_sum,
)
from keras_dp.accountants.compose.curve import CLOSED_FORM, DeltaBounds, Side
from keras_dp.accountants.compose.directions import directions
from keras_dp.accountants.compose.root import (
    NOTHING,
    UNKNOWN,
    Largest,
    Least,
    epsilon_bounds,
)
from keras_dp.accountants.groups import Profile, UnitGroup
from keras_dp.accountants.normalize.few_kinds import are_reached, few_kinds
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    FixedSizeGaussian,
    FullOrNot,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
    Selected,
)
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.accountants.normalize.truncation import with_and_without_slack
from keras_dp.accountants.rdp import RDP
from keras_dp.accountants.slack import sampled_as_slack, split
from keras_dp.errors import UnsupportedEventError

# Normalization rounds noise multipliers down to 12 digits. A lower bound takes
# that back: so much more, and more by that over the square of the least one.
_NORMALIZATION_ERROR = 1e-10
# Bounds that are this far apart may be above those of moments.
_WIDE = 1e-4
_MOMENTS = RDP()
RENYI = "Rényi divergence"
_WITH_SLACK = (
    "{method} (with what thresholds or truncated samples add to delta; the "
    "lower bound is without it)"
)
_TEXTBOOK = (
    " for one record (the upper bound is the textbook bound for {records} "
    "records; the lower bound is for one of them)"
)
_SEARCH = "profile of one trial"
_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e9
# With less, some counts of rounds have a line, and smaller ones may have only
# moments, which cost more.
_LEAST_OF: Mapping[type[Mechanism], float] = {
    SampledGaussian: 0.02,
    SampledGaussianReplaceOne: 0.04,
}
# The precision of the profile of a trial. Delta of a search is first asked for
# near this one, and then near what was found, a few times.
_TRIAL_WIDTH, _FIRST_DELTA, _MOST_PROFILES = 1e-3, 1e-8, 4
# The precision of searches beside other rounds: their pairs are less precise.
_PAIR_WIDTH = 1e-4
# From here on the pair may be better than the profile, which it is made of.
_LARGE_DELTA = 1e-3
# Each of two bounds is computed to this: those of different pairs, and those of
# kinds that were put together, which are percents apart.
_WIDTH_BETWEEN, _WIDTH_OF_KINDS = 4e-7, 1e-5
# Mass that may be left out: a share of delta, or this if it is not known.
_SHARE_LEFT_OUT, _LEAST_DELTA = 1e-10, 1e-60
# A larger log of delta counts like this one.
_MOST_LOG = 1e6
_OF_PAIR = (
    " (of a dominating pair; the lower bound is an attack on these rounds, or "
    "on noisier ones)"
)


_Rounds: TypeAlias = tuple[CountedMechanism, ...]


class _Interval(NamedTuple):
    lower: float
    upper: float


class Bounds(_Interval):
    """A lower and an upper bound on a number: a pair, with a note.

    Attributes:
        lower: The lower bound.
        upper: The upper bound.
        method: The method that gave the upper bound: "closed form", "line
            integral", or "convolution of likelihood ratios"; or "Rényi
            divergence", "bound by moments" or "closed form without sampling",
            if the others do not apply or give a larger bound. A remark in
            parentheses may follow.

    >>> bounds = Bounds(1.0, 1.5)
    >>> bounds.upper - bounds.lower
    0.5
    """

    method: str

    def __new__(
        cls, lower: float, upper: float, method: str = CLOSED_FORM
    ) -> Self:
        """Returns the pair of bounds."""
        found = super().__new__(cls, lower, upper)
        found.method = method
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Fourier(Accountant):
    """Composes privacy loss distributions (PLD), with certified bounds.

    Guarantee: `epsilon_bounds` contains the least epsilon for which the ledger
    is `(epsilon, delta)`-private, and `delta_bounds` the least delta. The
    functions of float64 that compute them are not exact; a margin for their
    error is added. `epsilon` and `delta` return the upper bounds.

    The table says how far apart the bounds are. "Exact" bounds are both for the
    same dominating pair of distributions.

    | Rounds | Lower and upper bound |
    | --- | --- |
    | not sampled | exact |
    | Poisson, one record more or less, or zero | exact, both directions |
    | Poisson, one record replaced | exact (see `mechanisms`) |
    | Poisson, several records of a unit | exact, both directions |
    | other sampled rounds, several records | an attack, and a bound |
    | correlated noise, not sampled | an attack by signs, and a bound |
    | fixed size, one record replaced | an attack, and a bound |
    | a search | one trial, and a bound (see docs/accounting.md, section 8) |
    | encoded, noise that is not Gaussian | none: use `RDP` |

    "Exact" bounds are apart by at most the share `relative_width` of epsilon,
    or of the logarithm of delta. There are exceptions. Where the sampling
    probability is tiny, a few large losses decide: bounds on a grid are mostly
    1e-6 apart (docs/accounting.md, section 9), up to 1e-4 for tens of
    thousands of rounds, and further where one loss in one round decides alone,
    as at a delta below 1e-180. With little noise their epsilon is in the
    thousands, and they are far apart:

    | Noise multiplier of a sampled round | Lower bound | Upper bound |
    | --- | --- | --- |
    | Poisson, below 0.02, or 0.04 if replaced | 0 | `RDP` |
    | fixed size, below about 0.04 | 0 | by moments, or `RDP` |
    | k records at once, below about k/60 | 0 | by moments, or unsampled |
    | any, above 1e9 | 0 | `RDP` |

    `Bounds.method` says which method gave the upper bound.

    In a ledger with slack (see `mechanisms.Slack`), the upper bound includes
    the slack, and the lower bound is for the mechanisms alone.

    Memory and time do not depend on how often a round was repeated. Of more
    than 400 kinds of rounds similar ones are put together, which leaves the
    bounds about 1 % apart (`normalize.few_kinds`).

    Attributes:
        relative_width: The largest distance of "exact" bounds, divided by the
            upper bound, > 0. `epsilon` and `delta` are then above the least
            value by less than this share.

    Source: Zhu, Dong, Wang (2022), arXiv:2106.08567v4; fixed size: Balle,
    Barthe, Gaboardi (2018), arXiv:1807.01647v2, Theorems 9 and 10. We differ
    in the line of integration, its error bounds, and the noise that ends it
    (`compose.integral`).

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> bounds = Fourier().epsilon_bounds([(step, 10_000)], delta=1e-5)
    >>> [round(bound, 8) for bound in bounds]
    [0.9468668, 0.9468668]
    """

    relative_width: float = 1e-8

    name: ClassVar[str] = "Fourier"
    mechanisms: ClassVar[frozenset[type[Mechanism]]] = frozenset(
        {
            FixedSizeGaussian,
            FullOrNot,
            Gaussian,
            SampledGaussian,
            SampledGaussianGroup,
            SampledGaussianReplaceOne,
            Selected,
        }
    )

    def __post_init__(self) -> None:
        _check.finite_positive(relative_width=self.relative_width)

    def epsilon_bounds(
        self,
        ledger: LedgerLike,
        *,
        delta: float,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> Bounds:
        """Returns bounds on the least epsilon for `delta`.

        Arguments and errors are those of `Accountant.epsilon`.
        """
        check_delta(delta)
        group = self.group(ledger, neighbours, units)
        if not group.rounds or delta == 1:
            return Bounds(0.0, 0.0)
        if has_bare_sum(group.rounds):
            return Bounds(math.inf, math.inf)
        if delta == 0:  # Infinite but for some noise that is not Gaussian.
            return Bounds(0.0, math.inf)
        return _with_slack(
            group,
            lambda rounds: _epsilon_bounds(
                rounds, _sides(rounds, delta), float(delta), self.relative_width
            ),
            lambda: group.epsilon(delta),
        )

    def delta_bounds(
        self,
        ledger: LedgerLike,
        *,
        epsilon: float,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> Bounds:
        """Returns bounds on the least delta for `epsilon`.

        Arguments and errors are those of `Accountant.delta`.
        """
        _check.finite_non_negative(epsilon=epsilon)
        group = self.group(ledger, neighbours, units)
        if not group.rounds:
            return Bounds(0.0, 0.0)
        if has_bare_sum(group.rounds):
            return Bounds(1.0, 1.0)
        return _with_slack(
            group,
            lambda rounds: _delta_bounds(
                rounds,
                _sides(rounds, None),
                float(epsilon),
                self.relative_width,
            ),
            lambda: group.delta(epsilon),
        )

    @override
    def check_supported(self, rounds: tuple[CountedMechanism, ...]) -> None:
        for mechanism, _ in rounds:
            if isinstance(mechanism, AdditiveNoise):
                raise UnsupportedEventError(
                    "`ledger` must hold no encoded sum whose noise is not "
                    f"Gaussian for `Fourier`. Received: {mechanism!r}. "
                    "Use `RDP`, which has a bound for it."
                )
            if isinstance(mechanism, Selected):
                for plan in mechanism.plans:
                    self.check_supported(plan)
        # `super()` does not find the class that `slots` made anew.
        Accountant.check_supported(self, rounds)

    def _epsilon(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        sides = _composed(rounds, delta).only_upper
        return _epsilon_bounds(rounds, sides, delta, self.relative_width).upper

    def _profile(self, rounds: tuple[CountedMechanism, ...]) -> Profile:
        # Which digits beyond `relative_width` an answer has depends on what was
        # asked before.
        sides = _composed(rounds, None).only_upper
        return lambda epsilon: (
            _delta_bounds(rounds, sides, epsilon, self.relative_width).upper
        )


class _Sides(NamedTuple):
    """Delta of rounds without slack.

    Attributes:
        upper: Bounds on the delta of what dominates the rounds.
        lower: Bounds on the delta of an attack; the same object if the rounds
            are no more private.
        margin: The error from rounding noise multipliers: see `_margin`.
        width: Bounds of one side need not be nearer than that.
        is_tight: Whether moments are of the same pairs as `upper`.
    """

    upper: Side
    lower: Side
    margin: float = 0.0
    width: float = 0.0
    is_tight: bool = False

    @property
    def only_upper(self) -> "_Sides":
        return self._replace(lower=self.upper)


def _epsilon_bounds(
    rounds: _Rounds, sides: _Sides, delta: float, relative_width: float
) -> Bounds:
    log_delta, width = math.log(delta), max(sides.width, relative_width)
    lower, upper, method = epsilon_bounds(sides.upper, log_delta, width)
    may_be_less = _may_be_less(rounds, sides, lower, upper)
    if sides.lower is not sides.upper:
        lower, _, _ = epsilon_bounds(sides.lower, log_delta, width)
    # Next to 0, epsilon moves by what delta does.
    lower -= sides.margin * (lower + 2 * delta)
    if may_be_less:
        by_moments = _MOMENTS.epsilon_of(rounds, delta)
        if by_moments < upper:
            upper, method = by_moments, RENYI
    return Bounds(max(0.0, min(lower, upper)), upper, method)


def _delta_bounds(
    rounds: _Rounds, sides: _Sides, epsilon: float, relative_width: float
) -> Bounds:
    width = max(sides.width, relative_width)
    sides.upper.prepare(epsilon, width)
    found = sides.upper.log_delta(epsilon)
    lower, upper, method = found.lower, _exp(found.upper), found.method
    may_be_less = _may_be_less(rounds, sides, _exp(lower), upper)
    if sides.lower is not sides.upper:
        sides.lower.prepare(epsilon, width)
        lower = sides.lower.log_delta(epsilon).lower
    size = min(abs(lower), _MOST_LOG)
    lower = _exp(lower - sides.margin * (1 + epsilon + size))
    if may_be_less:
        by_moments = _MOMENTS.profile_of(rounds)(epsilon)
        if by_moments < upper:
            upper, method = by_moments, RENYI
    return Bounds(min(lower, upper), upper, method)


def _may_be_less(
    rounds: _Rounds, sides: _Sides, lower: float, upper: float
) -> bool:
    """Returns whether moments may have a smaller upper bound.

    Moments of the same pairs give no bound below its lower one.
    """
    is_wide = not sides.is_tight or upper == math.inf
    is_wide |= upper - lower > _WIDE * upper or _has_search(rounds)
    return is_wide and _MOMENTS.supports(rounds)


def _exp(log_delta: float) -> float:
    """Returns a delta. A number that is below every float is not 0."""
    if log_delta == -math.inf:
        return 0.0
    return min(max(math.exp(min(log_delta, 0.0)), math.ulp(0.0)), 1.0)


def _with_slack(
    group: UnitGroup,
    bounds_of: Callable[[_Rounds], Bounds],
    upper: Callable[[], float],
) -> Bounds:
    """Adds the slack of the rounds to the upper one of some bounds.

    Two data sets that differ in one record also differ in a group of them. So
    the lower bound for one record is one for a group. `upper` returns the bound
    for all rounds, with their slack.
    """
    slack, rest = split(group.rounds)
    found = bounds_of(rest) if rest else Bounds(0.0, 0.0)
    if not slack and group.is_pair:
        return found
    method = found.method
    if not group.is_pair:
        method += _TEXTBOOK.format(records=group.records)
    if slack:
        method = _WITH_SLACK.format(method=method)
    return Bounds(found.lower, upper(), method)


def _sides(rounds: _Rounds, near: float | None) -> _Sides:
    """Returns delta of rounds without slack, if known near the one in question.

    Where sampled rounds hardly ever draw the changed record, the others with
    the chance that one does may give a smaller upper bound.
    """
    choices = with_and_without_slack(rounds)
    if len(choices) > 1:
        each = [_sides(choice, near) for choice in choices]
        return _Sides(
            Least(tuple(one.upper for one in each)),
            Largest(tuple(one.lower for one in each)),
            max(one.margin for one in each),
            max(one.width for one in each),
            all(one.is_tight for one in each),
        )
    whole = _composed(rounds, near)
    chance, others = sampled_as_slack(rounds)
    if not 0 < chance < (near or 1.0):
        return whole
    rest = _composed(others, near).upper if others else NOTHING
    upper = Least((whole.upper, Largest((rest,), chance)))
    return whole._replace(upper=upper)


def _composed(rounds: _Rounds, near: float | None) -> _Sides:
    if _has_search(rounds):
        lower, margin = _trials(rounds, near)
        return _Sides(_Searched(rounds, near), lower, margin)
    if not _is_in_reach(rounds):
        return _Sides(UNKNOWN, UNKNOWN)
    few = few_kinds(rounds)
    left_out = _SHARE_LEFT_OUT * near if near else _LEAST_DELTA
    both = directions(few, left_out)
    is_tight = are_reached(rounds) and not any(
        isinstance(each, FixedSizeGaussian) for each, _ in rounds
    )
    is_exact = is_tight and few.lower is few.upper

    upper = Largest(
        tuple(dict.fromkeys(each.upper for each in both)),
        both[0].left_out,
        "" if is_exact else _OF_PAIR,
    )
    if is_exact:
        return _Sides(upper, upper, _margin(rounds), is_tight=is_tight)
    lower = Largest(tuple(dict.fromkeys(each.lower for each in both)))
    width = _WIDTH_OF_KINDS if is_tight else _WIDTH_BETWEEN
    return _Sides(upper, lower, _margin(rounds), width, is_tight)


def _has_search(rounds: _Rounds) -> bool:
    return any(isinstance(mechanism, Selected) for mechanism, _ in rounds)


class _Searched:
    """Upper bounds on delta of searches, and other rounds."""

    def __init__(self, rounds: _Rounds, near: float | None) -> None:
        self._rounds, self._near = rounds, near
        self._pairs: dict[_Rounds, Side] = {}

    def log_delta(
        self, epsilon: float, floor: float = -math.inf
    ) -> DeltaBounds:
        """See `Side`."""
        return DeltaBounds(-math.inf, self._upper(epsilon, None), _SEARCH)

    def prepare(
        self, epsilon: float, width: float, log_delta: float | None = None
    ) -> None:
        """See `Side`."""
        self._upper(epsilon, (max(width, _PAIR_WIDTH), log_delta))

    def _upper(
        self, epsilon: float, prepared: tuple[float, float | None] | None
    ) -> float:
        found, near = 0.0, self._near or _FIRST_DELTA
        for _ in range(_MOST_PROFILES):
            found = min(found, self._upper_near(epsilon, near, prepared))
            nearer = self._near or math.exp(found)
            if searches.decade(nearer) == searches.decade(near):
                break
            near = nearer
        return found

    def _upper_near(
        self,
        epsilon: float,
        near: float,
        prepared: tuple[float, float | None] | None,
    ) -> float:
        """Returns an upper bound that is good where delta is near a number."""
        trials, alone = Fourier(_TRIAL_WIDTH), 0.0
        search, count = self._rounds[0]
        if isinstance(search, Selected) and len(self._rounds) == count == 1:
            profile = searches.profile(search, trials, searches.decade(near))
            delta = profile.delta(epsilon) if profile else 1.0
            alone = math.log(delta) if delta else -math.inf
            if near < _LARGE_DELTA:
                return alone
        found = searches.in_pairs(self._rounds, trials, near)
        if found is None:
            return alone
        pairs, chance = found
        if pairs not in self._pairs:
            of_pairs = _sides(pairs, self._near).upper
            self._pairs[pairs] = Largest((of_pairs,), chance)
        if prepared is not None:
            self._pairs[pairs].prepare(epsilon, *prepared)
        return min(alone, self._pairs[pairs].log_delta(epsilon).upper)


def _trials(rounds: _Rounds, near: float | None) -> tuple[Side, float]:
    """Returns the delta of one trial each, for searches and other rounds.

    And its margin.
    """
    some = [_sides(each, near) for each in searches.one_trial_each(rounds)]
    lower = Largest(tuple(each.lower for each in some))
    return lower, max(each.margin for each in some)


def _is_in_reach(rounds: tuple[CountedMechanism, ...]) -> bool:
    """Returns whether the privacy loss can be computed, within a minute.

    If not, `RDP` is used. With less noise, epsilon is in the thousands; with
    more, it is next to 0.
    """
    return not _MOMENTS.supports(rounds) or all(
        _LEAST_OF.get(type(mechanism), _LEAST_NOISE)
        <= mechanism.noise_multiplier
        <= _MOST_NOISE
        for mechanism, _ in rounds
        if not isinstance(mechanism, Gaussian)
    )


def _margin(rounds: tuple[CountedMechanism, ...]) -> float:
    """Returns the error from rounding noise multipliers to 12 digits.

    The error is relative to epsilon, and to the logarithm of delta. Rounds
    without sampling need no margin: their own bounds contain the error.
    """
    multipliers = [
        mechanism.noise_multiplier
        for mechanism, _ in rounds
        if not isinstance(mechanism, Gaussian)
    ]
    if not multipliers:
        return 0.0
    return min(1.0, _NORMALIZATION_ERROR * (1 + 1 / min(multipliers) ** 2))
