"""Model cards: what they say, what it rests on, and what they leave out."""

import dataclasses
import re

import pytest
import yaml

from keras_dp import budgets
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
)
from keras_dp.reporting import make_report
from keras_dp.reporting.cli import main
from keras_dp.reporting.model_card import model_card

pytestmark = pytest.mark.standard  # Explanations take a second.

DELTA = 1e-5
STEP = [GaussianSum("gradients", 1.0, 4.0)]
SAMPLING = PoissonSampling(0.01, drawn_by_library=True)


def filled(ledger):
    with ledger.start_run("training of June") as run:
        run.record(SAMPLING, STEP, 100)


def card_of(ledger, **question):
    question = {"delta": DELTA, **question}
    return model_card(make_report(ledger, details=True, **question))


def front_matter(card):
    _, yaml_text, body = card.split("---\n", 2)
    return yaml.safe_load(yaml_text), body


@pytest.fixture
def ledger():
    with PrivacyLedger.in_memory(
        dataset="clinic", unit="patient", rows_per_unit=2
    ) as opened:
        filled(opened)
        yield opened


class TestACard:
    def test_has_the_numbers_of_the_report_as_numbers(self, ledger) -> None:
        report = make_report(ledger, delta=DELTA, units=3)

        facts, body = front_matter(card_of(ledger, units=3))

        found = facts["differential_privacy"]
        assert found["delta"] == DELTA
        assert 0 <= found["epsilon"] - report.claim.epsilon < 1e-4
        assert found["records_per_unit"] == 2
        assert found["units_together"] == 3
        assert found["ledger_head"] == ledger.verify().head
        assert found["ledger_head"] in body

    def test_names_keras_where_keras_was_loaded(self, ledger) -> None:
        report = make_report(ledger, delta=DELTA, details=True)

        for versions, named in ({"keras": ("3.15.0",)}, "keras"), ({}, None):
            shown = dataclasses.replace(report, versions=versions)
            facts, _ = front_matter(model_card(shown))
            assert facts.get("library_name") == named

    def test_says_of_each_part_what_it_rests_on(self, ledger) -> None:
        _, body = front_matter(card_of(ledger))
        assert "| Privacy unit | patient | declared |" in body
        assert "| Covers | 100 rounds in 1 run, planned or run | record |" in (
            body
        )
        parts = re.split(r"^#+ .*$", body, flags=re.MULTILINE)
        told = [each for each in parts if each.strip()]
        assert told
        for each in told:
            assert re.search(r"From: |\| from \||what it rests on", each), each

    def test_says_that_what_another_library_ran_is_declared(self) -> None:
        with PrivacyLedger.in_memory(dataset="clinic") as ledger:
            with ledger.start_run("a", library="opacus 1.6.0") as run:
                run.record(SAMPLING, STEP, 100)
            facts, body = front_matter(card_of(ledger))
        assert "library_name" not in facts
        assert "*declared* of what ran in opacus 1.6.0" in body

    def test_names_neither_people_nor_machines(self, ledger) -> None:
        author = ledger.runs[0].start.author
        card = card_of(ledger)
        assert "training of June" in card
        for name in (f"{author.user}@", author.host, author.program):
            assert name not in card

    def test_shows_names_as_they_are(self) -> None:
        """So no name of a data set can forge a line, a link or a cell."""
        name = 'a|b\n# <img src="x"> [c](d) `e`\n---\nepsilon: 0'
        with PrivacyLedger.in_memory(dataset=name, unit="*p*: 1") as ledger:
            filled(ledger)
            card = card_of(ledger)
        facts, body = front_matter(card)
        assert facts["differential_privacy"]["unit"] == "*p*: 1"
        assert r"a\|b\\n\# \<img" in body
        assert r"\[c\](d) \`e\`" in body

    def test_of_an_infinite_epsilon_is_a_number_of_yaml(self) -> None:
        with PrivacyLedger.in_memory(dataset="clinic") as ledger:
            ledger.record(FullDataset(), [NonPrivateSum("loss")])
            facts, _ = front_matter(card_of(ledger))
        assert facts["differential_privacy"]["epsilon"] == float("inf")

    def test_asks_what_the_ledger_does_not_hold(self, ledger) -> None:
        _, _, asked = card_of(ledger).partition("## Yours to write")

        assert "may the model be used? From: *yours*." in asked
        assert "belong to one patient" in asked

    def test_needs_the_details(self, ledger) -> None:
        with pytest.raises(ValueError, match="`report` must have its details"):
            model_card(make_report(ledger, delta=DELTA))


def test_the_command_prints_it(tmp_path, capsys) -> None:
    path = tmp_path / "clinic.ledger"
    with PrivacyLedger.open(path, dataset="clinic", unit="patient") as ledger:
        filled(ledger)
        expected = card_of(ledger)

    assert main(["card", str(path), "--delta", "1e-5"]) == 0

    assert capsys.readouterr().out == f"{expected}\n"

    out = tmp_path / "README.md"
    assert main(["card", str(path), "--delta", "1e-5", "--out", str(out)]) == 0

    assert out.read_text("utf-8") == f"{expected}\n"


@pytest.mark.parametrize(
    "command", ["card --out", "report --html", "seal --html"]
)
def test_no_command_replaces_a_ledger(command, tmp_path, capsys) -> None:
    """The record of what was spent would be gone."""
    path = tmp_path / "clinic.ledger"
    with PrivacyLedger.open(path, dataset="clinic", unit="patient") as ledger:
        filled(ledger)
    name, option = command.split()
    others = ["--delta", "1e-5"]
    others += ["--out", str(tmp_path / "new.json")] * (name == "seal")

    code = main([name, str(path), *others, option, str(path)])

    assert code == 1
    assert "was not replaced" in capsys.readouterr().err
    with PrivacyLedger.open(path, mode="r") as ledger:
        assert len(ledger) == 100
        assert not ledger.seals


def test_the_delta_may_be_that_of_an_account(tmp_path, capsys) -> None:
    path = tmp_path / "clinic.ledger"
    with PrivacyLedger.open(path, dataset="clinic", unit="patient") as ledger:
        assert main(["card", str(path)]) == 2
        budgets.open_account(ledger, "all", budgets.RenyiFilter(2.0, 3e-6))

    assert main(["card", str(path)]) == 0

    out, error = capsys.readouterr()
    assert "  epsilon: 2.0000\n  delta: 3.0e-06\n" in out
    assert "no plan and no account of the ledger names one" in error
