"""The slack of a ledger: a part of delta that some rounds take."""

import math
from collections.abc import Sequence

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


def split(
    rounds: Sequence[CountedMechanism],
) -> tuple[float, tuple[CountedMechanism, ...]]:
    """Returns the slack of rounds, rounded up, and the other rounds."""
    chances = [
        count * mechanism.chance
        for mechanism, count in rounds
        if isinstance(mechanism, SLACK)
    ]
    rest = (each for each in rounds if not isinstance(each.mechanism, SLACK))
    return math.fsum(chances) * _ROUND_UP, tuple(rest)


def with_slack(delta: float, slack: float) -> float:
    """Returns the delta of rounds with slack, from that without."""
    return min(1.0, (delta + slack) * _ROUND_UP)


def without_slack(delta: float, slack: float) -> float:
    """Returns what slack leaves of delta, rounded down; not > 0 if nothing."""
    return math.nextafter(delta - slack, 0.0)


def sampled_as_slack(
    rounds: Sequence[CountedMechanism],
) -> tuple[float, tuple[CountedMechanism, ...]]:
    """Returns all sampled rounds as slack, and the other rounds.

    The slack is the chance that at least one sampled round draws the changed
    record. The rounds have no slack of their own.

    Guarantee: rounds without slack of their own are as private as the other
    rounds with this slack. So if there are no other rounds, they are
    `(0, c)`-private, whatever their noise is. This holds for both orders
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
    where `P` and `Q` are as far apart as the other rounds: this is slack as
    `mechanisms.Slack` has it, with the chance `c`.

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
    total = -math.expm1(math.fsum(logs)) * _CHANCE_ROUND_UP
    return min(1.0, total), tuple(rest)


def _chance_of(mechanism: Mechanism) -> float:
    """Returns the chance that a round depends on the changed records."""
    q = mechanism.sampling_probability
    if isinstance(mechanism, SampledGaussianGroup) and q < 1:
        return -math.expm1(mechanism.records * math.log1p(-q))
    return q
