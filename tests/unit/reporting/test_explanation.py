"""Sentences about a ledger say what the accountants say, and no more."""

import re

import pytest

from keras_dp import accountants, budgets
from keras_dp.accountants.replay import Replay
from keras_dp.accountants.trade_off_curves import precision_at_recall
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
)
from keras_dp.reporting import explain, make_report
from keras_dp.reporting.document import Picture

DELTA = 1e-5
STEP = [GaussianSum("gradients", 1.0, 4.0)]
# After the claim, the pictures and the attacker.
ATTACK, RECONSTRUCTION, GROUPS = range(3, 6)


def in_memory(*rounds, **header):
    header = {"dataset": "clinic", "unit": "patient", **header}
    ledger = PrivacyLedger.in_memory(**header)
    for sampling, queries, count, *seeded in rounds:
        ledger.record(sampling, queries, count, seeded=bool(seeded))
    return ledger


def some(**header):
    return in_memory((FullDataset(True), STEP, 3), **header)


def sampled(**header):
    return in_memory((PoissonSampling(0.01, True), STEP, 10_000), **header)


def chances(text):
    """Returns the numbers of percent in a text, as shares."""
    return [float(each) / 100 for each in re.findall(r"([\d.]+) %", text)]


class TestTheSentence:
    @pytest.mark.parametrize("group", [1, 3])
    def test_is_the_line_to_publish(self, group) -> None:
        found = explain(some(), delta=DELTA, units=group)

        together = Replay(some()).claim(units=group, delta=DELTA)
        sentence = found.facts["sentence"]
        assert found.facts["epsilon"] == together.epsilon
        assert str(found).startswith(sentence.split(",")[0])
        assert ("group of 3, each one patient" in sentence) == (group == 3)


class TestTheAttack:
    @pytest.mark.parametrize(
        ("make", "rows"),
        [
            (some, 1),
            (some, 2),
            pytest.param(sampled, 1, marks=pytest.mark.standard),
            pytest.param(sampled, 2, marks=pytest.mark.standard),
        ],
    )
    def test_has_the_numbers_of_the_curve(self, make, rows) -> None:
        ledger = make(rows_per_unit=rows)
        curve = accountants.trade_off(ledger, lines=100 if rows == 1 else 30)

        found = explain(ledger, delta=DELTA).parts[ATTACK]

        guess, beliefs, accused = map(chances, found.sentences)
        risk = accountants.bayes_risk(ledger, prior=0.5)
        assert guess[0] == 0.5
        assert 1 - risk <= guess[1] < 1 - risk + 0.002
        for prior, after in (beliefs[:2], beliefs[2:]):
            exact = precision_at_recall(curve, prior=prior, recall=0.01)
            assert exact <= after < exact + 0.002
        exact = float(curve.largest_true_positive_rate(0.001))
        assert exact <= accused[0] < 1.1 * exact
        assert accused[1] == 0.001

    @pytest.mark.parametrize("rows", [1, 2])
    def test_reconstructs_what_the_curve_allows(self, rows) -> None:
        ledger = some(rows_per_unit=rows)
        curve = accountants.trade_off(ledger, lines=100 if rows == 1 else 30)

        found = explain(ledger, delta=DELTA).parts[RECONSTRUCTION]

        whole, attribute = found.sentences
        assert "1 time in 1,000,000 " in whole
        assert "1 time in 1,000," in whole
        assert chances(attribute)[::2] == [0.5, 0.9]
        shown = [*chances(whole), *chances(attribute)[1::2]]
        rates = curve.largest_reconstruction_rate([1e-6, 1e-3, 0.5, 0.9])
        for exact, bound in zip(rates.tolist(), shown, strict=True):
            assert exact <= bound < 1.1 * exact
        more = float(re.search(r"add at most ([\d.]+) perc", attribute)[1])
        assert curve.advantage <= more / 100 < curve.advantage + 0.002

    @pytest.mark.parametrize(
        ("sampling", "queries", "neighbours", "reason"),
        [
            (FullDataset(), [NonPrivateSum("loss")], None, "infinite"),
            (
                FixedSizeWithoutReplacement(5, 50),
                STEP,
                "zero_out",
                "no accountant",
            ),
        ],
    )
    def test_finds_everything_without_a_bound(
        self, sampling, queries, neighbours, reason
    ) -> None:
        found = explain(
            in_memory((sampling, queries, 1)),
            delta=DELTA,
            neighbours=neighbours,
        )

        assert not any(isinstance(each, Picture) for each in found.parts)
        (sentence,) = found.parts[1].sentences
        assert sentence.startswith("Everything")
        assert reason in sentence
        assert "%" not in str(found)

    def test_finds_everything_if_accounts_promise_nothing(self) -> None:
        ledger = in_memory()
        for number, relation in enumerate(("add_or_remove_one", "replace_one")):
            budget = budgets.RenyiFilter(3.0, DELTA, neighbours=relation)
            budgets.open_account(ledger, str(number), budget)

        text = " ".join(str(explain(ledger, delta=DELTA)).split())

        assert "the accounts promise no finite epsilon" in text


class TestGroups:
    def test_have_their_epsilons(self) -> None:
        ledger = some(rows_per_unit=2)

        found = explain(ledger, delta=DELTA).parts[GROUPS]

        for size, sentence in zip((2, 5, 10), found.sentences, strict=True):
            exact = Replay(ledger.rounds).claim(units=2 * size, delta=DELTA)
            exact = exact.epsilon
            shown = float(re.search(r"epsilon <= ([\d.]+)", sentence)[1])
            assert sentence.startswith(f"{size} units together")
            assert exact <= shown < exact + 1.1e-4


class TestThePlainWords:
    @pytest.mark.parametrize("make", [some, sampled])
    @pytest.mark.parametrize("rows", [1, 3])
    def test_are_the_best_bet(self, make, rows) -> None:
        ledger = make(rows_per_unit=rows)
        risk = accountants.bayes_risk(ledger, prior=0.5)

        words = make_report(ledger, delta=DELTA).facts["guarantee"][
            "plain_words"
        ]

        wins, chance = chances(words)
        assert chance == 0.5
        # Rounded up to a tenth of a percent.
        assert 0 <= wins - (1 - risk) <= 0.001
        assert "whether the data of one patient are in the data set" in words
