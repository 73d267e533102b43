"""Tests the privacy claim of a ledger with the scores of canaries."""

import math

from keras_dp.accountants.attacks.trade_off import TradeOff, trade_off
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.auditing.estimators import curves
from keras_dp.auditing.estimators.guesses import check_guesses, guesses_of
from keras_dp.auditing.lower_bound import largest_refuted
from keras_dp.auditing.scores import Scores


def p_value_of_claim(
    scores: Scores,
    claim: TradeOff | LedgerLike,
    *,
    records: int = 1,
    guesses: int | None = None,
) -> float:
    """Returns a p-value for the claim of a ledger, given scores of canaries.

    The p-value is an upper bound on the probability of at least as many right
    guesses, if the claim is true. The claim of a ledger is its whole trade-off
    curve, which `trade_off` certifies under the relation of the scores. The
    test assumes fair coins and a number of guesses that was fixed before.

    Args:
        scores: The scores of canaries with fair coins.
        claim: A ledger, or its rounds as pairs (Round, count), such as
            `ledger.rounds_of(run)`. Or a trade-off curve for the relation of
            the scores.
        records: The number of records in one canary, >= 1. It is not used if
            `claim` is a curve.
        guesses: As in `OneRun`.

    Returns:
        A number in (0, 1]. If it is at most 0.05, the scores contradict the
        claim with a confidence of 95 %. At most one in twenty trainings that
        keep the claim gives such scores.

    Raises:
        UnsupportedEventError: The ledger has no bound under the relation of
            the scores.
        ValueError: An argument is out of its range.

    Source: Mahloujifar, Melis, Chaudhuri (2024), arXiv:2410.22235v1. Unlike
    them, we test the trade-off curve of the accountant.

    >>> import numpy as np
    >>> from keras_dp.ledger import FullDataset, GaussianSum, Round
    >>> release = Round(FullDataset(), (GaussianSum("all", 1.0, 4.0),))
    >>> scores = Scores(np.linspace(3, 5, 500), np.linspace(0, 3.2, 500))
    >>> p_value_of_claim(scores, [(release, 1)]) < 1e-9
    True
    """
    check_guesses(guesses)
    if not isinstance(claim, TradeOff):
        # A canary has so many records, whatever the unit of the ledger is.
        rounds = tuple(counted_rounds(claim))
        claim = trade_off(rounds, neighbours=scores.neighbours, units=records)
    found, curve = guesses_of(scores, guesses), curves.of_lines(claim)
    exponent = largest_refuted(
        lambda each: curves.refutes(found, curve, math.exp(-each))
    )
    return math.exp(-exponent)
