"""A test of the claim that a ledger makes of a training."""

import math

from keras_dp.accountants.attacks.trade_off import TradeOff, trade_off
from keras_dp.accountants.normalize.rounds import LedgerLike
from keras_dp.auditing.estimators import curves
from keras_dp.auditing.estimators.guesses import check_guesses, guesses_of
from keras_dp.auditing.lower_bound import largest_refuted
from keras_dp.auditing.scores import Scores


def p_value_of_claim(
    scores: Scores,
    claim: TradeOff | LedgerLike,
    *,
    group_size: int = 1,
    guesses: int | None = None,
) -> float:
    """Returns how likely such scores are, at most, if a claim is true.

    The claim of a ledger is its whole trade-off curve, as `trade_off`
    certifies it under the relation of the scores. Fair coins and a number of
    guesses that was fixed before are all that is assumed.

    Args:
        scores: One for each canary with a fair coin.
        claim: A ledger, or its rounds as pairs (Round, count), such as
            `ledger.rounds_of(run)`. Or a curve, which the caller must have
            made for the relation of the scores.
        group_size: How many records one canary is, >= 1. A curve says it
            already.
        guesses: As in `OneRun`.

    Returns:
        In (0, 1]. At 0.05 or below, the scores contradict the claim with a
        confidence of 95 %: of trainings that keep it, one of twenty does that.

    Raises:
        UnsupportedEventError: The ledger has no bound under the relation of
            the scores, and so claims nothing.

    Source: Mahloujifar, Melis, Chaudhuri (2024), arXiv:2410.22235v1. We differ
    in testing the curve of the accountant.

    >>> import numpy as np
    >>> from keras_dp.ledger import FullDataset, GaussianSum, Round
    >>> release = Round(FullDataset(), (GaussianSum("all", 1.0, 4.0),))
    >>> scores = Scores(np.linspace(3, 5, 500), np.linspace(0, 3.2, 500))
    >>> p_value_of_claim(scores, [(release, 1)]) < 1e-9
    True
    """
    check_guesses(guesses)
    if not isinstance(claim, TradeOff):
        claim = trade_off(
            claim, neighbours=scores.neighbours, group_size=group_size
        )
    found, curve = guesses_of(scores, guesses), curves.of_lines(claim)
    exponent = largest_refuted(
        lambda each: curves.refutes(found, curve, math.exp(-each))
    )
    return math.exp(-exponent)
