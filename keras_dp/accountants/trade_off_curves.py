"""The best attack on a ledger: the trade-off of its errors, and its risk."""

import dataclasses
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.arrays import EXPONENT, Array
from keras_dp.accountants.groups import UnitGroup
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.accountants.replay import group_of

# Where lines end: at as many false positives, and as many true ones.
_LEAST_RATE = 1e-12
# Lines go where the bound has most room, in units of its power: 0 would serve
# the area alone, and 1 all twelve decades of true positives alike.
_TAIL_WEIGHT = 0.75
# Relative rounding of sums and exponentials.
_ROUND_UP = 4e-16
# More than the rounding of a few float64 operations.
_ROUND_UP_GROWTH = 1e-14


@dataclasses.dataclass(frozen=True, slots=True)
class TradeOff:
    """A bound on every attack that tells two neighbouring data sets apart.

    An attack decides from everything that was released. Its false positive
    rate is the chance to decide for one data set if the other was used, and
    its true positive rate that to decide for it if it was.

    Guarantee: for each pair, and so for all, any attack on any two neighbours,
    in either role, has at most `delta + e^epsilon x` true positives at `x`
    false positives, and at most `1 - e^-epsilon (1 - delta - x)`. What is
    computed from the pairs is rounded in the attack's favour.

    Attributes:
        epsilons: In rising order, the first is 0.
        deltas: One for each epsilon.

    Source: Wasserman and Zhou (2010), Journal of the American Statistical
    Association 105; Dong, Roth, Su (2019), arXiv:1905.02383v3, Propositions
    2.4 and 2.12. We differ in taking finitely many of the lines that support
    the curve, which leaves a bound.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def __post_init__(self) -> None:
        pairs = len(self.epsilons), len(self.deltas)
        if not self.epsilons or pairs[0] != pairs[1]:
            raise ValueError(
                "`epsilons` must be at least one, and as many as `deltas`. "
                f"Received: lengths={pairs!r}."
            )
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            _check.finite_non_negative(epsilons=epsilon)
            _check.share("[0, 1]", deltas=delta)

    def largest_true_positive_rate(
        self, false_positive_rate: npt.ArrayLike
    ) -> Array:
        """Returns what no attack exceeds, relatively precise also near 0.

        Args:
            false_positive_rate: In [0, 1], of any shape.
        """
        x = np.asarray(false_positive_rate, np.float64)
        if not np.all((x >= 0) & (x <= 1)):
            raise ValueError(
                "`false_positive_rate` must be in [0, 1]. Received: "
                f"false_positive_rate={false_positive_rate!r}."
            )
        epsilons, deltas = np.array(self.epsilons), np.array(self.deltas)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            log_x = np.log(x)[..., None]
            slack = 1 + _ROUND_UP * (1 + epsilons + np.abs(log_x))
            steep = np.exp(epsilons + log_x) * slack
        steep = deltas + np.where(x[..., None] > 0, steep, 0.0)
        flat = 1 - np.exp(-epsilons) * (1 - deltas - x[..., None])
        least = np.minimum(steep, flat + _ROUND_UP).min(axis=-1)
        return np.asarray(np.clip(least * (1 + _ROUND_UP), x, 1.0))

    def largest_reconstruction_rate(self, prior: npt.ArrayLike) -> Array:
        """Returns what no attack that reconstructs a unit's data exceeds.

        Guarantee: somebody knows everything but the data of one unit. If a
        guess without the releases meets these data, by any measure of a hit,
        with a chance of at most `prior`, then no guess with the releases meets
        them with more than the returned chance. For an attribute, `prior` is
        the chance of its likeliest value, given everything else.

        Args:
            prior: In [0, 1], of any shape.

        Source: Kaissis, Hayes, Ziller, Rueckert (2023), arXiv:2307.03928v1;
        Hayes, Mahloujifar, Balle (2023), arXiv:2302.07225v3. We differ in
        taking a bound on the curve; docs/guarantees.md has the proof.

        >>> curve = TradeOff((0.0, 1.0), (0.4, 0.01))
        >>> curve.largest_reconstruction_rate([1e-6, 0.5]).round(3)
        array([0.01, 0.82])
        """
        return self.largest_true_positive_rate(prior)

    @property
    def advantage(self) -> float:
        """The most that true positives exceed false ones by, in [0, 1]."""
        # The rate at which false positives and negatives can be equal.
        rate = max(
            (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
            for epsilon, delta in zip(self.epsilons, self.deltas, strict=True)
        )
        return min(1.0, 1 - 2 * rate + _ROUND_UP)


def trade_off(
    ledger: LedgerLike,
    *,
    lines: int = 100,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> TradeOff:
    """Returns a bound on the errors of every attack on a ledger.

    Guarantee: the guarantee of `TradeOff` holds for the releases of the ledger.

    Args:
        ledger: A ledger, a run, or pairs of a Round and its count.
        lines: How often to ask the accountant for delta, >= 2. Epsilons are
            chosen one by one where the bound has most room. What is left
            falls like `1 / lines^2`: with 100 less than 1e-4 of the area, and
            less than 5 % of true positives at 1e-9 false ones.
        accountant: The tightest that can replay the ledger by default.
        neighbours: As in `Accountant.epsilon`.
        units: How many units the attack asks about together; see there.

    Raises:
        UnsupportedEventError: The accountant has no bound for a round.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, Round
    >>> release = Round(FullDataset(), (GaussianSum("all", 1.0, 1.0),))
    >>> curve = trade_off([(release, 1)])
    >>> round(curve.advantage, 4)
    0.3829
    >>> curve.largest_true_positive_rate([0.001, 0.1]).round(3)
    array([0.018, 0.389])
    """
    _check.integer_at_least(2, lines=lines)
    found = _lines(group_of(ledger, accountant, neighbours, units), lines)
    return TradeOff(
        tuple(line.epsilon for line in found),
        tuple(line.delta for line in found),
    )


def bayes_risk(
    ledger: LedgerLike,
    *,
    prior: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> float:
    """Returns the least chance of an attack to be wrong, for a given prior.

    Guarantee: with `p` the smaller of the prior and its complement, the
    attack decides for the less likely data set in an event `S`. It errs with
    chance `p (1 - (P(S) - e^eps Q(S)))`, `eps = log((1-p)/p)`, which is at
    least `p (1 - delta(eps))`. Rounded down.

    The other arguments and errors are those of `trade_off`.

    Args:
        ledger: A ledger, a run, or pairs of a Round and its count.
        prior: Chance of one of the two neighbours, as the attack has it
            before it sees a release, in [0, 1]. Without a release the risk
            would be the smaller of it and its complement.
        accountant: The tightest that can replay the ledger by default.
        neighbours: The adjacency relation.
        units: How many units the attack asks about together.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, Round
    >>> release = Round(FullDataset(), (GaussianSum("all", 1.0, 1.0),))
    >>> risk = bayes_risk(
    ...     [(release, 1)], prior=0.5
    ... )
    >>> round(risk, 4)
    0.3085
    """
    _check.share("[0, 1]", prior=prior)
    group = group_of(ledger, accountant, neighbours, units)
    less = min(prior, 1 - prior)
    if less == 0:
        return 0.0
    epsilon = math.log1p(-less) - math.log(less)
    epsilon = max(0.0, epsilon - _ROUND_UP * (1 + epsilon))
    risk = less * (1 - group.delta(epsilon))
    return max(0.0, risk * (1 - _ROUND_UP))


def precision_at_recall(
    curve: TradeOff, *, prior: float, recall: float
) -> float:
    """Returns the most precise that an attack with that many hits can be.

    Guarantee: let an attack give one of two neighbours the chance `prior`
    before it sees a release, and decide for it in an event `S`. If that
    neighbour is used, `S` has the chance `P(S) >= recall`; if the other is,
    each line of the curve has `Q(S) >= e^-epsilon (P(S) - delta)`. So the odds
    grow by `e^t = P(S) / Q(S)` at most, which falls in `P(S)`, and the attack
    is right in at most the share of its decisions that is returned, which is
    rounded up.

    It follows that the attack, if it is right, is surer than that afterwards
    with a chance of at most `recall`: such an event has no more.

    Source: Jayaraman, Wang, Knipmeyer, Gu, Evans (2021), arXiv:2005.10881,
    bound the precision by epsilon and the prior. We differ in taking the whole
    trade-off curve, which depends on the recall.
    """
    _check.probability(recall=recall)
    _check.share("(0, 1)", prior=prior)
    growth = min(
        (
            epsilon - math.log1p(-delta / recall)
            for epsilon, delta in zip(curve.epsilons, curve.deltas, strict=True)
            if delta < recall
        ),
        default=math.inf,
    )
    growth += _ROUND_UP_GROWTH * (1 + growth)
    odds_against = (1 - prior) / prior * math.exp(-growth)
    return min(1.0, (1 + _ROUND_UP_GROWTH) / (1 + odds_against))


class _Line(NamedTuple):
    """A bound on true positives.

    `epsilon` is the log of its slope, and `delta` the true positive rate
    without false positives.
    """

    epsilon: float
    delta: float


class _Corner(NamedTuple):
    """Where the lowest of some lines changes.

    At larger false positive rates `flat` is the lowest line, and `steep` at
    smaller ones.
    """

    rate: float
    flat: _Line
    steep: _Line

    def height(self, rate: float) -> float:
        """Returns what the lower of the two lines is."""
        line = self.flat if rate >= self.rate else self.steep
        if rate == 0:
            return line.delta
        return line.delta + math.exp(line.epsilon + math.log(rate))


def _corners(lines: Iterable[_Line]) -> list[_Corner]:
    """Returns the corners of the lowest of some lines, from right to left.

    The lines are in rising order of epsilon.
    """
    kept: list[_Line] = []
    found: list[_Corner] = []
    for line in lines:
        if kept and line.delta >= kept[-1].delta:
            continue  # Steeper and not lower.
        while found and _crossing(kept[-1], line) >= found[-1].rate:
            kept.pop()
            found.pop()
        if kept:
            rate = _crossing(kept[-1], line)
            found.append(_Corner(rate, kept[-1], line))
        kept.append(line)
    return found


def _lines(group: UnitGroup, count: int) -> list[_Line]:
    """Returns lines in rising order of epsilon, fewer if these leave no room.

    The curve lies above the chord between two corners, which all but touch
    it, and below the corner between them. Where that leaves most room, in
    units of a power of the height, the next line is made: with the slope of the
    chord, or nearest to it in the middle half between the two lines, which
    covers all scales in few steps.

    Source: the chord rule of sandwich algorithms for convex functions; Rote
    (1992), Computing 48.
    """
    largest = _largest_epsilon(group)
    found = {0.0: _Line(0.0, group.delta(0.0))}
    if 0 < largest < math.inf:
        found[largest] = _Line(largest, group.delta(largest))
    while len(found) < count:
        ordered = [found[epsilon] for epsilon in sorted(found)]
        rooms = [(room, at) for room, at in _rooms(ordered) if at not in found]
        if not rooms:
            break
        _, epsilon = max(rooms)
        found[epsilon] = _Line(epsilon, group.delta(epsilon))
    return [found[epsilon] for epsilon in sorted(found)]


def _largest_epsilon(group: UnitGroup) -> float:
    """Returns the epsilon of the steepest line that helps; `inf` without any.

    Slack leaves an attack some true positives without false ones: then it is
    that of a delta of at most twice as many.
    """
    delta = _LEAST_RATE
    while (epsilon := group.epsilon(delta)) == math.inf and delta < 0.5:
        delta *= 2
    return epsilon


def _rooms(lines: list[_Line]) -> list[tuple[float, float]]:
    """Returns rooms at corners, and the epsilons of lines to fill them."""
    # The curve is its own mirror image: its lowest line there touches it.
    middle, center = max(
        ((1 - line.delta) / (1 + math.exp(line.epsilon)), index)
        for index, line in enumerate(lines)
        if line.epsilon < EXPONENT
    )
    found = [each for each in _corners(lines) if each.rate < middle]
    points = [(middle, 1 - middle)]
    points += [(each.rate, each.height(each.rate)) for each in found]
    points.append((0.0, 0.0))
    rooms = []
    for corner, right, left in zip(found, points, points[2:], strict=False):
        rate = max(corner.rate, _LEAST_RATE)
        if not left[0] < rate < right[0]:
            continue
        slope = (right[1] - left[1]) / (right[0] - left[0])
        height = corner.height(rate)
        room = height - (left[1] + slope * (rate - left[0]))
        first, last = corner.flat.epsilon, corner.steep.epsilon
        margin = (last - first) / 4
        epsilon = math.log(slope) if 0 < slope < math.inf else last
        epsilon = min(max(epsilon, first + margin), last - margin)
        if room > 0 and first < epsilon < last:
            rooms.append((room * math.pow(height, -_TAIL_WEIGHT), epsilon))
    if center > 0:  # The accountant's delta is not tight at small epsilons.
        rate, height = points[1]
        room = 1 - middle - (1 + height - rate) / 2
        flatter = (lines[center - 1].epsilon + lines[center].epsilon) / 2
        rooms.append((room * math.pow(1 - middle, -_TAIL_WEIGHT), flatter))
    return rooms


def _crossing(flat: _Line, steep: _Line) -> float:
    """Returns the false positive rate where two lines are as high."""
    fall = math.exp(-steep.epsilon) / -math.expm1(flat.epsilon - steep.epsilon)
    return (flat.delta - steep.delta) * fall
