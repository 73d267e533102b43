"""The precision of an attack, against that of the best one on a Gaussian."""

import math

import pytest
from scipy.stats import norm

from keras_dp.accountants import trade_off
from keras_dp.accountants.trade_off_curves import TradeOff, precision_at_recall
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    Round,
)
from tests.analytic_gaussian import AnalyticGaussian


def gaussian(noise):
    return [(Round(FullDataset(), (GaussianSum("sum", 1.0, noise),)), 1)]


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("prior", [0.01, 0.5])
@pytest.mark.parametrize("recall", [1e-6, 0.01, 0.5, 0.9])
def test_is_that_of_the_best_attack_on_a_gaussian(noise, prior, recall) -> None:
    """`x = Phi(Phi^-1(recall) - 1 / z)` false positives are the fewest."""
    curve = trade_off(gaussian(noise), accountant=AnalyticGaussian())
    wrong = norm.sf(norm.isf(recall) + 1 / noise)
    exact = prior * recall / (prior * recall + (1 - prior) * wrong)

    found = precision_at_recall(curve, prior=prior, recall=recall)

    assert found >= exact
    # Of 100 lines; below slope 1 there are none.
    assert 1 - found >= (1 - exact) * (0.95 if recall < 0.6 else 0.6)


def test_of_nothing_is_the_prior() -> None:
    found = precision_at_recall(trade_off([]), prior=0.2, recall=0.01)

    assert found == pytest.approx(0.2, rel=1e-9)


def test_of_a_bare_sum_is_1() -> None:
    bare = [(Round(FullDataset(), (NonPrivateSum("loss"),)), 1)]

    assert precision_at_recall(trade_off(bare), prior=0.2, recall=0.01) == 1


def test_of_a_pure_guarantee_grows_the_odds_by_it() -> None:
    curve = TradeOff((1.0,), (0.0,))

    for recall in (1e-9, 0.5, 1.0):
        found = precision_at_recall(curve, prior=0.5, recall=recall)
        assert found == pytest.approx(math.e / (1 + math.e), rel=1e-12)


def test_fewer_hits_than_delta_may_all_be_right() -> None:
    curve = TradeOff((1.0,), (0.1,))

    assert precision_at_recall(curve, prior=0.5, recall=0.1) == 1
    assert precision_at_recall(curve, prior=0.5, recall=0.2) < 0.9


@pytest.mark.parametrize(
    "arguments",
    [
        {"prior": 0.0},
        {"prior": 1.0},
        {"prior": math.nan},
        {"recall": 0.0},
        {"recall": 1.5},
    ],
    ids=repr,
)
def test_refuses_what_is_no_chance(arguments) -> None:
    (name,) = arguments
    arguments = {"prior": 0.5, "recall": 0.5, **arguments}

    with pytest.raises(ValueError, match=f"`{name}`"):
        precision_at_recall(TradeOff((0.0,), (0.0,)), **arguments)
