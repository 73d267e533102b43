"""How often an attack that finds some records accuses rightly."""

import math

from keras_dp import _check
from keras_dp.accountants.attacks.trade_off import TradeOff

# More than the rounding of a few float64 operations.
_ROUND_UP = 1e-14


def precision_at_recall(
    curve: TradeOff, *, prior: float, recall: float
) -> float:
    """Returns the most precise that an attack with that many hits can be.

    Guarantee: let an attack give one of two neighbours the chance `prior`
    before it sees a release, and decide for it in an event `S`. If that
    neighbour is used, `S` has the chance `P(S) >= recall`; if the other is,
    each line of the curve has `Q(S) >= e^-epsilon (P(S) - delta)`. So the odds
    grow by `e^t = P(S) / Q(S)` at most, which falls in `P(S)`, and the attack
    is right in at most the share of its decisions that is returned.

    It follows that the attack, if it is right, is surer than that afterwards
    with a chance of at most `recall`: such an event has no more.

    Args:
        curve: The trade-off of the releases.
        prior: In (0, 1).
        recall: The rate of true positives, in (0, 1].

    Returns:
        In [prior, 1], rounded up.

    Source: Jayaraman, Wang, Knipmeyer, Gu, Evans (2021), arXiv:2005.10881,
    bound the precision by epsilon and the prior. We differ in taking the whole
    trade-off curve, which depends on the recall.

    >>> from keras_dp.accountants.attacks.trade_off import trade_off
    >>> from keras_dp.ledger import FullDataset, GaussianSum, Round
    >>> release = Round(FullDataset(), (GaussianSum("all", 1.0, 4.0),))
    >>> curve = trade_off([(release, 1)])
    >>> round(precision_at_recall(curve, prior=0.5, recall=0.01), 3)
    0.667
    >>> round(precision_at_recall(curve, prior=0.01, recall=0.01), 3)
    0.02
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
    growth += _ROUND_UP * (1 + growth)
    odds_against = (1 - prior) / prior * math.exp(-growth)
    return min(1.0, (1 + _ROUND_UP) / (1 + odds_against))
