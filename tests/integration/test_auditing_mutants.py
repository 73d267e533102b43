"""Every fault of the catalogue is found, by the question that docs name."""

from pathlib import Path

import pytest

from keras_dp.auditing import check
from keras_dp.auditing.replay import draw, neighbouring_rounds
from keras_dp.training import rehearsal
from tests.audit_mutants import MUTANTS

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"
TEXT = PAGE.read_text("utf-8")
TABLE = TEXT.split("| Where | Fault | Found by |")[1].split("\n\n")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()[2:]
    if line.startswith("|")
]


def leave_out_other_questions(questions, patch):
    """Has a check ask no more than it must, for time."""
    if "refusal" not in questions:
        patch.setattr(rehearsal, "_SELF_CHECK", 0)
    if questions == ["noise"]:
        patch.setattr(neighbouring_rounds, "_look_at_rounds", lambda *_: None)
    elif "noise" not in questions:
        patch.setattr(neighbouring_rounds, "_look_at_noise", lambda *_: None)


def test_the_page_lists_the_faults():
    assert [(where, name) for where, name, _ in ROWS] == [
        (mutant.where, name) for name, mutant in MUTANTS.items()
    ]
    assert len(ROWS) >= 60


@pytest.mark.full
@pytest.mark.parametrize(("name", "questions"), [row[1:] for row in ROWS])
def test_every_fault_is_found(name, questions, monkeypatch):
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.plant(patch)
        source = mutant.source()
        if questions == "draw":  # No round is needed to see it.
            assert draw.departures(source)
            return

        leave_out_other_questions(questions.split(", "), patch)
        report = check(mutant.train(), source, records=mutant.records)

    found = {finding.question for finding in report.findings}
    assert found & set(questions.split(", "))


@pytest.mark.full
def test_a_check_asks_how_samples_are_drawn(monkeypatch):
    mutant = MUTANTS["records are drawn twice as often"]
    with monkeypatch.context() as patch:
        mutant.plant(patch)

        report = check(mutant.train(), mutant.source())

    assert {finding.question for finding in report.findings} == {"draw"}
