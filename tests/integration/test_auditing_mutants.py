"""Every fault of the catalogue is found, by the questions that docs name.

All of them take minutes. Before the night those are planted that are hard to
find and of another kind than the faults of `test_auditing_user_faults.py`.
"""

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

EARLY = {
    "the clip is 1 % above that of the ledger",
    "kernels are summed without their clip",
    "a round that ran is given back",
    "the seed of the noise follows the data",
}


def _cases():
    for _, name, questions in ROWS:
        tier = "full" if name in EARLY else "nightly"
        mark = getattr(pytest.mark, tier)
        yield pytest.param(name, questions, id=name, marks=mark)


def test_the_page_lists_the_faults():
    assert [(where, name) for where, name, _ in ROWS] == [
        (mutant.where, name) for name, mutant in MUTANTS.items()
    ]
    assert len(ROWS) >= 60
    assert MUTANTS.keys() > EARLY


@pytest.mark.parametrize("name", MUTANTS)
def test_every_fault_can_be_planted(name, monkeypatch):
    """What it replaces has the name by which the catalogue knows it."""
    with monkeypatch.context() as patch:
        MUTANTS[name].plant(patch)


@pytest.mark.parametrize(("name", "questions"), [*_cases()])
def test_every_fault_is_found(name, questions, monkeypatch):
    """The first question of the row finds it, and none outside of the row."""
    mutant = MUTANTS[name]
    with monkeypatch.context() as patch:
        mutant.plant(patch)

        report = check(mutant.train(), mutant.source(), records=mutant.records)

    found = {finding.question for finding in report.findings}
    first, *others = questions.split(", ")
    assert {first} <= found <= {first, *others}, str(report)
