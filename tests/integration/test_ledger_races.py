"""Eight processes write to one ledger at once.

They do so `--race-turns` times each, and go on until what a test is about has
happened: a machine that is busy takes longer for it.
"""

import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.ledger.places import connections
from tests.ledger_faults import start_fork
from tests.waiting import HUNG_SECONDS, let_others_run, until

PROCESSES, CREATED = 8, 15
SHARED = [GaussianSum("all", 1.0, 4.0)]
OTHER = (GaussianSum("all", 1.0, 5.0),)


@pytest.fixture(autouse=True)
def _nobody_gives_up(monkeypatch):
    """Writers wait for each other for as long as it takes."""
    monkeypatch.setattr(connections, "BUSY_SECONDS", HUNG_SECONDS)


class Happened:
    """Whether something was seen, by any of the processes."""

    def __init__(self, folder: Path, turns: int) -> None:
        self._file = folder / "happened"
        self._turns = turns

    def note(self) -> None:
        self._file.touch()

    def turns(self) -> Iterator[object]:
        """Yields some times, and then until it has happened."""
        yield from range(self._turns)
        yield from until(self._file.exists)


def race(
    act: Callable[[int], object], watch: Callable[[], object] = lambda: None
) -> list:
    """Starts processes together, and returns what each of them returns.

    Args:
        act: What they do; takes the number of the process.
        watch: Called again and again while they run.
    """
    gate, opener = os.pipe()
    answers, answer = os.pipe()

    def start_together(number: int) -> bool:
        os.close(opener)
        os.read(gate, 1)
        os.write(answer, f"{json.dumps(act(number))}\n".encode())
        return True

    children = [
        start_fork(lambda number=number: start_together(number))
        for number in range(PROCESSES)
    ]
    for end in (opener, gate, answer):
        os.close(end)
    running = set(children)
    while running:
        let_others_run()
        watch()
        for child in [*running]:
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                assert status == 0
                running.discard(child)
    with os.fdopen(answers) as lines:
        return [json.loads(line) for line in lines]


@pytest.mark.full
def test_no_round_is_lost_doubled_or_torn(
    new_address, pytestconfig, tmp_path
) -> None:
    address = new_address()
    PrivacyLedger.open(address, dataset="d").close()
    seen_at_work = Happened(tmp_path, pytestconfig.getoption("--race-turns"))

    def append(number: int) -> tuple[int, int]:
        """Returns the run, and how many rounds are in it."""
        chosen = random.Random(number)
        total = 0
        with (
            PrivacyLedger.open(address) as ledger,
            ledger.start_run(f"run {number}") as run,
        ):
            run.cover(Round(FullDataset(), SHARED), 5)
            for _ in seen_at_work.turns():
                count = chosen.randrange(1, 9)
                run.record(FullDataset(), SHARED, count)
                used = chosen.randrange(6)
                run.settle(used)
                run.cover(Round(FullDataset(), OTHER), 5, most=5)
                total += count + used
            run.settle(0)
        return run.row, total

    totals: list[int] = []

    def watch() -> None:
        with PrivacyLedger.open(address, mode="r") as ledger:
            totals.append(ledger.verify().rounds)
        if len(set(totals)) > 2:
            seen_at_work.note()

    expected = dict(race(append, watch))

    with PrivacyLedger.open(address, mode="r") as ledger:
        found = {run.row: len(run) for run in ledger.runs}
        assert {run.name for run in ledger.runs} == {
            f"run {number}" for number in range(PROCESSES)
        }
        assert ledger.unsettled == 0
        assert len(ledger) == sum(expected.values())
        assert {run.state for run in ledger.runs} == {"finished"}
    assert found == expected
    assert len(set(totals)) > 2


def test_together_they_create_one_ledger(address, tmp_path) -> None:
    """Each creates ledgers, or finds them, and records a round in each."""

    def create(number: int) -> None:
        for step in range(CREATED):
            with PrivacyLedger.open(f"{address}.{step}", dataset="d") as ledger:
                own = GaussianSum(str(number), 1.0, 4.0)
                ledger.record(FullDataset(), [own])

    race(create)

    for step in range(CREATED):
        with PrivacyLedger.open(f"{address}.{step}", mode="r") as ledger:
            names = {part.round.queries[0].name for part in ledger}
            assert names == {str(number) for number in range(PROCESSES)}
            assert len(ledger) == PROCESSES
    # No other file is left.
    found = {str(path) for path in tmp_path.iterdir()}
    assert found <= {f"{address}.{step}" for step in range(CREATED)}
