"""Several processes write to one ledger."""

import subprocess
import sys
from pathlib import Path

from keras_dp.ledger import PrivacyLedger

PROCESSES = 4
STEPS = 25

_START = """
import sys
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
path, number, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
"""

_APPEND = f"""{_START}
with PrivacyLedger.open(path, dataset="d") as ledger:
    own, shared = GaussianSum(number, 1.0, 4.0), GaussianSum("all", 1.0, 4.0)
    block = ledger.reserve(FullDataset(), [own], count=3)
    for _ in range(steps):
        ledger.record(FullDataset(), [shared])
        block = block.renew(used=2, count=3)
    block.settle(used=0)
"""

_CREATE = f"""{_START}
for step in range(steps):
    with PrivacyLedger.open(f"{{path}}.{{step}}", dataset="d") as ledger:
        ledger.record(FullDataset(), [GaussianSum(number, 1.0, 4.0)])
"""


def _race(script: str, path: Path) -> None:
    """Starts the processes at one moment, and waits for them."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", script, path, str(number), str(STEPS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for number in range(PROCESSES)
    ]
    for child in children:
        assert child.stdout.readline() == b"ready\n"
    for child in children:
        child.stdin.write(b"\n")
        child.stdin.flush()
    for child in children:
        _, errors = child.communicate()
        assert child.returncode == 0, errors.decode()


def test_several_processes_append_at_once(tmp_path) -> None:
    _race(_APPEND, tmp_path / "l.db")

    with PrivacyLedger.open(tmp_path / "l.db", mode="r") as ledger:
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


def test_several_processes_create_one_ledger(tmp_path) -> None:
    _race(_CREATE, tmp_path / "l.db")

    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"l.db.{step}" for step in range(STEPS)
    )
    for path in tmp_path.iterdir():
        with PrivacyLedger.open(path, mode="r") as ledger:
            names = {part.round.queries[0].name for part in ledger}
            assert names == {str(number) for number in range(PROCESSES)}
            assert len(ledger) == PROCESSES
