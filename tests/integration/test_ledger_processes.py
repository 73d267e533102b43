"""Several processes write to one ledger."""

import os
from collections.abc import Callable

from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
)
from tests.ledger_faults import start_fork

PROCESSES = 4
STEPS = 15


def append(address: str, number: int) -> None:
    """Records rounds that all have in common, and settles its own blocks."""
    own, shared = (
        GaussianSum(str(number), 1.0, 4.0),
        GaussianSum("all", 1.0, 4.0),
    )
    with PrivacyLedger.open(address, dataset="d") as ledger:
        block = ledger.start_run("a")
        block.cover(Round(FullDataset(), [own]), 3)
        for _ in range(STEPS):
            ledger.record(FullDataset(), [shared])
            block.settle(used=2)
            block.cover(Round(FullDataset(), [own]), 3, most=3)
        block.settle(used=0)


def create(address: str, number: int) -> None:
    """Creates ledgers, or finds them, and records a round in each."""
    for step in range(STEPS):
        with PrivacyLedger.open(f"{address}.{step}", dataset="d") as ledger:
            ledger.record(FullDataset(), [GaussianSum(str(number), 1.0, 4.0)])


def _race(act: Callable[[str, int], None], address: str) -> None:
    """Starts the processes at one moment, and waits for them."""
    gate, opener = os.pipe()

    def start_together(number: int) -> bool:
        os.close(opener)
        os.read(gate, 1)
        act(address, number)
        return True

    children = [
        start_fork(lambda number=number: start_together(number))
        for number in range(PROCESSES)
    ]
    os.close(opener)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * PROCESSES
    os.close(gate)


def test_several_processes_append_at_once(address) -> None:
    _race(append, address)

    with PrivacyLedger.open(address, mode="r") as ledger:
        totals: dict[str, int] = {}
        for round_, count in ledger:
            name = round_.queries[0].name
            totals[name] = totals.get(name, 0) + count
        assert ledger.unsettled == 0
        assert ledger.verify().rounds == PROCESSES * STEPS * 3
    assert totals == {
        "all": PROCESSES * STEPS,
        **{str(number): STEPS * 2 for number in range(PROCESSES)},
    }


def test_several_processes_create_one_ledger(address) -> None:
    _race(create, address)

    for step in range(STEPS):
        with PrivacyLedger.open(f"{address}.{step}", mode="r") as ledger:
            names = {part.round.queries[0].name for part in ledger}
            assert names == {str(number) for number in range(PROCESSES)}
            assert len(ledger) == PROCESSES


def test_creating_one_file_leaves_no_other(tmp_path) -> None:
    _race(create, str(tmp_path / "l.db"))

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"l.db.{step}" for step in range(STEPS)
    )
