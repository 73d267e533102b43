"""Every fault of the catalogue is found, by the questions that docs name."""

from pathlib import Path

import pytest

from keras_dp.auditing import check
from tests.audit_mutants import MUTANTS

PAGE = Path(__file__).parents[2] / "docs" / "auditing.md"
TEXT = PAGE.read_text("utf-8")
TABLE = TEXT.split("| Where | Fault | Found by |")[1].split("\n\n")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TABLE.splitlines()[2:]
    if line.startswith("|")
]


def test_the_page_lists_the_faults():
    assert [(where, name) for where, name, _ in ROWS] == [
        (mutant.where, name) for name, mutant in MUTANTS.items()
    ]
    assert len(ROWS) >= 60


@pytest.mark.full
@pytest.mark.parametrize(("name", "questions"), [row[1:] for row in ROWS])
def test_every_fault_is_found(name, questions, monkeypatch):
    """The first question of the row finds it, and none outside of the row."""
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.plant(patch)

        report = check(mutant.train(), mutant.source(), records=mutant.records)

    found = {finding.question for finding in report.findings}
    first, *others = questions.split(", ")
    assert {first} <= found <= {first, *others}, str(report)
