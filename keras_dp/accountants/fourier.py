"""The tightest accountant: certified bounds by privacy loss distributions."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Self, TypeAlias

from keras_dp import _check
from keras_dp._override import override
from keras_dp.accountants import searches
from keras_dp.accountants.accountant import (
    Accountant,
    check_delta,
    has_bare_sum,
)
from keras_dp.accountants.compose import choose, told_rounds
from keras_dp.accountants.compose.directions import Direction, directions
from keras_dp.accountants.groups import Profile, UnitGroup
from keras_dp.accountants.normalize.few_kinds import FewKinds, few_kinds
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
from keras_dp.accountants.normalize.truncation import readings
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
# The precision of the profile of a trial. Delta of a search is first asked for
# near this one, and then near what was found, a few times.
_TRIAL_WIDTH, _FIRST_DELTA, _MOST_PROFILES = 1e-3, 1e-8, 4
# The precision of searches beside other rounds: their pairs are less precise.
_PAIR_WIDTH = 1e-4
# From here on the pair may be better than the profile, which it is made of.
_LARGE_DELTA = 1e-3
# Each of two bounds that are percents apart is computed to this.
_WIDTH_BETWEEN = 1e-5
# Mass that may be left out: a share of delta, or this if it is not known.
_SHARE_LEFT_OUT, _LEAST_DELTA = 1e-10, 1e-60
# More than the rounding of a sum.
_ROUND_UP = 1 + 1e-15


_Rounds: TypeAlias = tuple[CountedMechanism, ...]
_Composes: TypeAlias = Callable[[FewKinds, float], tuple[Direction, ...]]


class _Interval(NamedTuple):
    lower: float
    upper: float


class Bounds(_Interval):
    """A lower and an upper bound on a number: a pair, with a note.

    Attributes:
        lower: The lower bound.
        upper: The upper bound.
        method: The method that gave the upper bound: "closed form", "line
            integral", "convolution of likelihood ratios", or "sum over the
            rounds that drew a record"; or "Rényi divergence" or "bound by
            moments", if the others do not apply or give a larger bound. A
            remark in parentheses may follow.

    >>> bounds = Bounds(1.0, 1.5)
    >>> bounds.upper - bounds.lower
    0.5
    """

    method: str

    def __new__(
        cls, lower: float, upper: float, method: str = choose.CLOSED_FORM
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
    or of the logarithm of delta. The exception are rounds with a tiny sampling
    probability, where a few large losses decide: bounds on a grid are mostly
    1 % apart (docs/accounting.md, section 9). So are those of rounds with a
    noise multiplier up to 0.1 whose epsilon is in the hundreds or more, and
    which tell in which of them the record was. `Bounds.method` says which
    method gave the upper bound.

    In a ledger with slack (see `mechanisms.Slack`), the upper bound includes
    the slack, and the lower bound is for the mechanisms alone.

    Memory and time do not depend on how often a round was repeated. Of more
    than 400 kinds of rounds similar ones are put together, which leaves the
    bounds about 1 % apart (`normalize.few_kinds`). If a noise multiplier of a
    sampled round is below 0.001 or above 1e9, `RDP` gives the upper bound, and
    the lower bound is 0.

    Attributes:
        relative_width: The largest distance of "exact" bounds, divided by the
            upper bound, > 0. `epsilon` and `delta` are then above the least
            value by less than this share.

    Source: Zhu, Dong, Wang (2022), arXiv:2106.08567v4; fixed size: Balle,
    Barthe, Gaboardi (2018), arXiv:1807.01647v2, Theorems 9 and 10. We differ
    in the line of integration and its error bounds (`compose.line.integral`),
    and in the noise that ends the line (`compose.line.smoothing`).

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

        Args:
            ledger: A ledger, a run, or pairs of a Round and its count.
            delta: In [0, 1].
            neighbours: The adjacency relation; by default the strongest that
                all rounds support.
            units: How many units are protected together, >= 1. A unit has
                `rows_per_unit` records if `ledger` says so, else one.

        Raises:
            UnsupportedEventError: A round has no sound bound.
            ValueError: `delta` is not in [0, 1], or `neighbours` is unknown.
        """
        check_delta(delta)
        group = self.group(ledger, neighbours, units)
        if not group.rounds or delta == 1:
            return Bounds(0.0, 0.0)
        if has_bare_sum(group.rounds):
            return Bounds(math.inf, math.inf)
        if delta == 0:  # Infinite but for some noise that is not Gaussian.
            return Bounds(0.0, math.inf)
        question = _EpsilonAt(float(delta), self.relative_width)
        return _of_group(group, question, lambda: group.epsilon(delta))

    def delta_bounds(
        self,
        ledger: LedgerLike,
        *,
        epsilon: float,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> Bounds:
        """Returns bounds on the least delta for `epsilon`.

        Args:
            ledger: A ledger, a run, or pairs of a Round and its count.
            epsilon: Finite and >= 0.
            neighbours: The adjacency relation; by default the strongest that
                all rounds support.
            units: How many units are protected together, >= 1. A unit has
                `rows_per_unit` records if `ledger` says so, else one.

        Raises:
            UnsupportedEventError: A round has no sound bound.
            ValueError: `epsilon` is negative or not finite, or `neighbours` is
                unknown.
        """
        _check.finite_non_negative(epsilon=epsilon)
        group = self.group(ledger, neighbours, units)
        if not group.rounds:
            return Bounds(0.0, 0.0)
        if has_bare_sum(group.rounds):
            return Bounds(1.0, 1.0)
        question = _DeltaAt(float(epsilon), self.relative_width)
        return _of_group(group, question, lambda: group.delta(epsilon))

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
        return _upper(_EpsilonAt(delta, self.relative_width), rounds)

    def _profile(self, rounds: tuple[CountedMechanism, ...]) -> Profile:
        # A line that is integrated along for one epsilon does for most others.
        # Which digits beyond `relative_width` an answer has depends on what was
        # asked of the profile before.
        composes = functools.cache(directions)
        return lambda epsilon: _upper(
            _DeltaAt(epsilon, self.relative_width, composes), rounds
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _EpsilonAt:
    """The question for the least epsilon at a delta in (0, 1).

    Attributes:
        delta: The delta.
        width: The largest relative distance of the bounds.
    """

    delta: float
    width: float

    # Bounds that hold for all rounds.
    least: ClassVar[float] = 0.0
    most: ClassVar[float] = math.inf

    @property
    def left_out(self) -> float:
        """Returns the mass that directions may leave out."""
        return _SHARE_LEFT_OUT * self.delta

    @property
    def near(self) -> float:
        """Returns the delta next to which profiles must be good."""
        return self.delta

    def directions(self, rounds: FewKinds) -> tuple[Direction, ...]:
        """Returns the rounds composed, in one or both directions."""
        return directions(rounds, self.left_out)

    def nearer(self, upper: float) -> float:
        """Returns a better one, given an upper bound."""
        return self.delta

    def of_profile(self, profile: searches.SearchProfile) -> float:
        """Returns the upper bound for one search."""
        return profile.epsilon(self.delta)

    def with_chance(self, chance: float) -> "_EpsilonAt | None":
        """Returns the question for what is released with a chance only.

        Returns:
            The question; `None` if the lower bound is the trivial one.
        """
        if self.delta >= chance:
            return None
        return dataclasses.replace(self, delta=self.delta / chance)

    def by_chance(self, lower: float, chance: float) -> float:
        """Returns the lower bound of a release with a chance, from its own."""
        return lower

    def told(self, rounds: FewKinds) -> tuple[float, float] | None:
        """Returns bounds where there is next to no noise, else `None`."""
        return told_rounds.epsilon_bounds(rounds, self.delta)

    def above(self, direction: Direction, certain: float) -> choose.Found:
        """Returns bounds on the dominating pair of a direction.

        Args:
            direction: One adjacency direction of all rounds.
            certain: A lower bound that is known already.
        """
        return choose.epsilons(
            direction.upper,
            math.log(self.delta - direction.left_out),
            _width(direction, self.width),
            certain,
        )

    def below(
        self, direction: Direction, found: choose.Found, certain: float
    ) -> float:
        """Returns a lower bound, for what two data sets reach."""
        if direction.lower is direction.upper and not direction.left_out:
            return found.lower
        return choose.epsilons(
            direction.lower,
            math.log(self.delta),
            _width(direction, self.width),
            certain,
        ).lower

    def value(self, found: choose.Found, direction: Direction) -> float:
        """Returns the upper bound of a direction."""
        return found.upper

    def lowered(self, lower: float, margin: float) -> float:
        """Returns a lower bound for noises before they were rounded down."""
        # Next to 0, epsilon moves by what delta does.
        return max(0.0, lower * (1 - margin) - 2 * margin * self.delta)

    def by(self, accountant: Accountant, rounds: _Rounds) -> float:
        """Returns the upper bound of another accountant."""
        return accountant.epsilon_of(rounds, self.delta)

    def undrawn(self, chance: float) -> "_EpsilonAt | None":
        """Returns the question for the rounds that are left.

        Args:
            chance: That a sampled round draws the changed record.

        Returns:
            The question; `None` if they bound nothing.
        """
        if chance >= self.delta:
            return None
        left = math.nextafter(self.delta - chance, 0.0)
        return dataclasses.replace(self, delta=left)

    def drawn(self, upper: float, chance: float) -> float:
        """Returns the upper bound for all rounds, from that for the others."""
        return upper


@dataclasses.dataclass(frozen=True, slots=True)
class _DeltaAt:
    """The question for the least delta at an epsilon; see `_EpsilonAt`.

    Attributes:
        epsilon: The epsilon.
        width: The largest relative distance of the logarithms of the bounds.
        composes: Composes the rounds.
    """

    epsilon: float
    width: float
    composes: _Composes = directions

    least: ClassVar[float] = -math.inf  # A bound on the logarithm of delta.
    most: ClassVar[float] = 1.0
    left_out: ClassVar[float] = _LEAST_DELTA
    near: ClassVar[float] = _FIRST_DELTA

    def directions(self, rounds: FewKinds) -> tuple[Direction, ...]:
        return self.composes(rounds, self.left_out)

    def nearer(self, upper: float) -> float:
        return upper

    def of_profile(self, profile: searches.SearchProfile) -> float:
        return profile.delta(self.epsilon)

    def with_chance(self, chance: float) -> "_DeltaAt":
        return self

    def by_chance(self, lower: float, chance: float) -> float:
        return lower * chance

    def told(self, rounds: FewKinds) -> tuple[float, float] | None:
        found = told_rounds.log_delta_bounds(rounds, self.epsilon)
        return found and (math.exp(found[0]), math.exp(found[1]))

    def above(self, direction: Direction, certain: float) -> choose.Found:
        return choose.log_deltas(
            direction.upper,
            self.epsilon,
            _width(direction, self.width),
            certain,
        )

    def below(
        self, direction: Direction, found: choose.Found, certain: float
    ) -> float:
        if direction.lower is direction.upper:
            return found.lower
        return choose.log_deltas(
            direction.lower,
            self.epsilon,
            _width(direction, self.width),
            certain,
        ).lower

    def value(self, found: choose.Found, direction: Direction) -> float:
        delta = math.exp(min(found.upper, 0.0)) + direction.left_out
        # A number below every float is not 0.
        return min(max(delta, math.ulp(0.0)), 1.0)

    def lowered(self, lower: float, margin: float) -> float:
        size = min(abs(lower), 1e6)
        return math.exp(lower - margin * (1 + self.epsilon + size))

    def by(self, accountant: Accountant, rounds: _Rounds) -> float:
        return accountant.profile_of(rounds)(self.epsilon)

    def undrawn(self, chance: float) -> "_DeltaAt":
        return self

    def drawn(self, upper: float, chance: float) -> float:
        return (chance + upper) * _ROUND_UP if upper else chance


_Question: TypeAlias = _EpsilonAt | _DeltaAt


def _of_group(
    group: UnitGroup, question: _Question, upper: Callable[[], float]
) -> Bounds:
    """Returns bounds; the upper bound includes the slack of the rounds.

    Two data sets that differ in one record also differ in a group of them. So
    the lower bound for one record is one for a group.

    Args:
        group: At least one mechanism with its count.
        question: Asks for epsilon or for delta.
        upper: Returns the upper bound for all rounds, with their slack.
    """
    slack, rest = split(group.rounds)
    if slack is None and group.is_pair:
        return _bounds(question, group.rounds)
    found = _bounds(question, rest) if rest else Bounds(0.0, 0.0)
    method = found.method
    if not group.is_pair:
        method += _TEXTBOOK.format(records=group.records)
    if slack is not None:
        method = _WITH_SLACK.format(method=method)
    return Bounds(found.lower, upper(), method)


def _bounds(question: _Question, rounds: _Rounds) -> Bounds:
    """Returns bounds for rounds without slack.

    Where sampled rounds hardly ever draw the changed record, the others with
    the chance that one does may give a smaller upper bound.
    """
    choices = readings(rounds)
    if len(choices) > 1:
        found = [_bounds(question, each) for each in choices]
        best = min(found, key=lambda each: each.upper)
        return Bounds(max(each.lower for each in found), *best[1:], best.method)
    drawn, others = sampled_as_slack(rounds)
    rest = question.undrawn(drawn.delta_p) if drawn else None
    if drawn is None or rest is None:
        return _composed(question, rounds)
    most, method = question.drawn(0.0, drawn.delta_p), choose.CLOSED_FORM
    if not others and not most:
        return Bounds(0.0, 0.0)
    whole = _composed(question, rounds)
    if others and most < whole.upper:
        of_others = _composed(rest, others)
        most = question.drawn(of_others.upper, drawn.delta_p)
        method = of_others.method
    if most >= whole.upper:
        return whole
    return Bounds(min(whole.lower, most), most, method)


def _upper(question: _Question, rounds: _Rounds) -> float:
    """Returns the upper bound for rounds without slack."""
    if _has_search(rounds):
        return _searched_above(question, rounds)[0]
    return _composed(question, rounds).upper


def _composed(question: _Question, rounds: _Rounds) -> Bounds:
    """Returns bounds for all rounds composed."""
    if _has_search(rounds):
        return _searched(question, rounds)
    if (told := question.told(few_kinds(rounds))) is not None:
        return Bounds(*told, told_rounds.METHOD)
    if not _is_in_reach(rounds):
        return Bounds(0.0, question.by(_MOMENTS, rounds), RENYI)
    upper, method = 0.0, choose.CLOSED_FORM
    certain, done = question.least, None
    for direction in question.directions(few_kinds(rounds)):
        if direction.upper is not done:  # Symmetric: once.
            found = question.above(direction, certain)
            done = direction.upper
        value = question.value(found, direction)
        if value > upper:
            upper, method = value, _said(found.method, direction)
        certain = max(certain, question.below(direction, found, certain))
    lower = question.lowered(certain, _margin(rounds))
    is_wide = upper == math.inf or upper - lower > _WIDE * upper
    if is_wide and _MOMENTS.supports(rounds):
        by_moments = question.by(_MOMENTS, rounds)
        if by_moments < upper:
            upper, method = by_moments, RENYI
    return Bounds(float(lower), float(upper), method)


def _has_search(rounds: _Rounds) -> bool:
    return any(isinstance(mechanism, Selected) for mechanism, _ in rounds)


def _searched(question: _Question, rounds: _Rounds) -> Bounds:
    """Returns bounds for searches, and other rounds."""
    upper, method = _searched_above(question, rounds)
    alternatives, chance = searches.one_trial_each(rounds)
    of_trials = question.with_chance(chance)
    if of_trials is None:
        return Bounds(0.0, upper, method)
    lower = max(
        question.by_chance(_bounds(of_trials, each).lower, chance)
        for each in alternatives
    )
    return Bounds(min(lower, upper), upper, method)


def _searched_above(question: _Question, rounds: _Rounds) -> tuple[float, str]:
    """Returns an upper bound, and the method that found it."""
    upper, near = question.most, question.near
    for _ in range(_MOST_PROFILES):
        upper = min(upper, _searched_near(question, rounds, near))
        nearer = question.nearer(upper)
        if searches.decade(nearer) == searches.decade(near):
            break
        near = nearer
    if _MOMENTS.supports(rounds):
        by_moments = question.by(_MOMENTS, rounds)
        if by_moments < upper:
            return by_moments, RENYI
    return upper, _SEARCH


def _searched_near(question: _Question, rounds: _Rounds, near: float) -> float:
    """Returns an upper bound that is good where delta is near a number."""
    trials, alone = Fourier(_TRIAL_WIDTH), question.most
    search, count = rounds[0]
    if isinstance(search, Selected) and len(rounds) == count == 1:
        profile = searches.profile(search, trials, near)
        alone = question.of_profile(profile) if profile else alone
        if near < _LARGE_DELTA:
            return alone
    pairs = searches.in_pairs(rounds, trials, near)
    rest = question.undrawn(pairs[1]) if pairs else None
    if pairs is None or rest is None:
        return alone
    rest = dataclasses.replace(rest, width=max(rest.width, _PAIR_WIDTH))
    found = question.drawn(_bounds(rest, pairs[0]).upper, pairs[1])
    return min(alone, found)


def _said(method: str, direction: Direction) -> str:
    """Returns the method, with a remark if the bounds are for two pairs."""
    if direction.upper is direction.lower:
        return method
    return (
        f"{method} (of a dominating pair; the lower bound is an attack on "
        "these rounds, or on noisier ones)"
    )


def _width(direction: Direction, relative_width: float) -> float:
    """Returns the largest relative distance of numerical bounds."""
    if direction.upper is direction.lower:
        return relative_width
    return max(relative_width, _WIDTH_BETWEEN)


def _is_in_reach(rounds: tuple[CountedMechanism, ...]) -> bool:
    """Returns whether the privacy loss can be computed, within a minute.

    If not, `RDP` is used. With less noise, epsilon is in the hundreds of
    thousands; with more, it is next to 0.
    """
    return not _MOMENTS.supports(rounds) or all(
        _LEAST_NOISE <= mechanism.noise_multiplier <= _MOST_NOISE
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
