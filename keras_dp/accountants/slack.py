"""The slack of a ledger: a part of delta that some rounds take."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import scipy

from keras_dp.accountants.normalize.mechanisms import (
    SLACK,
    CountedMechanism,
    Mechanism,
    SampledGaussianGroup,
)

# Exceeds the rounding of a sum of a few products.
_ROUND_UP = 1 + 1e-15
# Exceeds the rounding of a probability that is computed from a few logarithms.
_CHANCE_ROUND_UP = 1 + 1e-14
# The first step beyond a guess, as a share of it; each further step is twice as
# long.
_STEP = 1e-9
_MOST_GUESSES = 60
# Precision of the epsilon at which delta is least.
_NEAREST = 1e-3
# exp() of it is finite.
_LARGEST_EXPONENT = 700.0


@dataclasses.dataclass(frozen=True, slots=True)
class TotalSlack:
    """The slack of all rounds together, rounded up; see `mechanisms.Slack`."""

    delta_p: float
    delta_q: float

    def at(self, epsilon: float) -> float:
        """Returns the part of delta that is taken at an epsilon, rounded up."""
        if not self.delta_q:
            return self.delta_p
        if epsilon > _LARGEST_EXPONENT:
            return math.inf
        grown = math.exp(epsilon) * self.delta_q
        return (self.delta_p + grown) * _ROUND_UP

    def epsilon(
        self, delta: float, epsilon_of: Callable[[float], float]
    ) -> float:
        """Returns a bound on epsilon, from that of the rounds without slack."""
        return least_epsilon(delta, self.at, epsilon_of)

    def delta(
        self, epsilon: float, delta_of: Callable[[float], float]
    ) -> float:
        """Returns a bound on delta, from that of the rounds without slack."""

        def total(at: float) -> float:
            return (delta_of(at) + self.at(at)) * _ROUND_UP

        least = total(epsilon)
        if self.delta_q and epsilon > 0:
            # A delta at a smaller epsilon holds at this one too. The total is
            # a convex function of e^epsilon: it has one minimum.
            found = scipy.optimize.minimize_scalar(
                total,
                bounds=(0.0, epsilon),
                method="bounded",
                options={"xatol": _NEAREST},
            )
            least = min(least, float(found.fun))
        return min(1.0, least)


def split(
    rounds: Sequence[CountedMechanism],
) -> tuple[TotalSlack | None, tuple[CountedMechanism, ...]]:
    """Returns the slack of rounds, `None` without any, and the other rounds."""
    parts = [
        (count, mechanism)
        for mechanism, count in rounds
        if isinstance(mechanism, SLACK)
    ]
    if not parts:
        return None, tuple(rounds)
    total = TotalSlack(
        math.fsum(count * part.delta_p for count, part in parts) * _ROUND_UP,
        math.fsum(count * part.delta_q for count, part in parts) * _ROUND_UP,
    )
    rest = (each for each in rounds if not isinstance(each.mechanism, SLACK))
    return total, tuple(rest)


def sampled_as_slack(
    rounds: Sequence[CountedMechanism],
) -> tuple[TotalSlack | None, tuple[CountedMechanism, ...]]:
    """Returns all sampled rounds as slack, and the other rounds.

    The slack is `None` without a sampled round. Its `delta_p` is the chance
    that at least one sampled round draws the changed record. The rounds have no
    slack of their own.

    Guarantee: rounds without slack of their own are as private as the other
    rounds with this slack. So if there are no other rounds, they are
    `(0, delta_p)`-private, whatever their noise is. This holds for both orders
    of the data sets. *Proof:* couple the rounds on two neighbouring data sets,
    so that they draw by the same coins.

    | Neighbours | Sampling | What one coin decides in both data sets |
    | --- | --- | --- |
    | add or remove, zero out | Poisson | whether the record is in the sample |
    | the same, `k` records | Poisson | whether any of them is |
    | replace | Poisson | whether the record, or the other one, is |
    | replace | fixed size | which positions are in the sample |

    The coins do not depend on the data or on earlier outputs. So with
    `q_i` the chance that round `i` draws the changed record, no round does with
    the chance `1 - c = prod_i (1 - q_i)`, on both data sets. If that happens,
    each sampled round has the same distribution on both data sets, given all
    outputs before it. It is then post-processing of them, and what is left are
    the other rounds. So the outputs are `(1-c) P + c E` and `(1-c) Q + c F`,
    where `P` and `Q` are as far apart as the other rounds: this is the exposure
    that `mechanisms.Slack` speaks of, with the chance `c`.

    A truncated Poisson sample does not differ unless its record is drawn
    either.
    """
    logs, rest = [], []
    for each in rounds:
        chance = _chance_of(each.mechanism)
        if chance < 1:
            logs.append(each.rounds * math.log1p(-chance))
        else:
            rest.append(each)
    if not logs:
        return None, tuple(rest)
    total = -math.expm1(math.fsum(logs)) * _CHANCE_ROUND_UP
    return TotalSlack(min(1.0, total), 0.0), tuple(rest)


def _chance_of(mechanism: Mechanism) -> float:
    """Returns the chance that a round depends on the changed records."""
    q = mechanism.sampling_probability
    if isinstance(mechanism, SampledGaussianGroup) and q < 1:
        return -math.expm1(mechanism.records * math.log1p(-q))
    return q


def least_epsilon(
    delta: float,
    added: Callable[[float], float],
    epsilon_of: Callable[[float], float],
) -> float:
    """Returns the epsilon of a ledger from which slack takes a part of delta.

    Guarantee: the result `e` satisfies `epsilon_of(delta - added(e)) <= e`,
    unless it is infinite. `epsilon_of` is that of the rounds without slack, and
    `added`, which does not fall, the part of delta that is taken.
    """
    guess, paid = 0.0, added(0.0)
    step = _STEP
    for _ in range(_MOST_GUESSES):
        left = math.nextafter(delta - paid, 0.0)
        if not left > 0:
            return math.inf
        found = epsilon_of(left)
        if found <= guess or added(found) <= paid:
            return found
        # A little further, so that the next one can be enough.
        guess = found * (1 + step)
        paid, step = added(guess), 2 * step
    return math.inf
