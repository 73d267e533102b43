"""A training that was killed goes on, and its ledger covers both parts."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_dp import budgets
from keras_dp.ledger import PrivacyLedger
from tests.imports import ROOT

SCRIPT = Path(__file__).with_name("resumed_training.py")
# As in the script. It dies in the second epoch, two rounds after it saved.
EPOCHS, PER_EPOCH, SAVED, DIED = 2, 10, 12, 14


def run(folder: Path, how: str, rounds: int) -> int:
    """Returns the exit code of a training in a process of its own."""
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, how, str(rounds)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    assert "has released" not in done.stderr  # The ledger misses nothing.
    return done.returncode


def read_states(folder: Path) -> list[dict]:
    text = (folder / "rounds").read_text("utf-8")
    return [json.loads(line) for line in text.splitlines()]


def numbers_in(path: Path) -> set[int]:
    """Returns all integers of an HDF5 file."""
    found: set[int] = set()

    def visit(_: str, part: object) -> None:
        if isinstance(part, h5py.Dataset) and part.dtype.kind in "iu":
            found.update(int(each) for each in np.ravel(part[()]))

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


@pytest.mark.full
@pytest.mark.parametrize("how", ["backup", "users", "weights", "model"])
def test_a_killed_training_goes_on(how, tmp_path) -> None:
    assert run(tmp_path, how, DIED) == -signal.SIGKILL
    before = read_states(tmp_path)
    if how in ("backup", "users"):
        saved = numbers_in(tmp_path / "backup" / "latest.weights.h5")
        assert SAVED in saved
        assert not saved & {
            word for each in before[1:] for word in each["seeds"]
        }
    with PrivacyLedger.open(tmp_path / "l.db") as ledger:
        (dead,) = ledger.runs
        assert dead.state == "died"
        assert len(dead) == len(ledger) >= DIED
        assert sum(count for _, count in dead.plan) == EPOCHS * PER_EPOCH
        covered = len(dead)

    assert run(tmp_path, how, 0) == 0
    restored, *after = read_states(tmp_path)[len(before) :]

    # Weights, the optimizer's slots and the query's clip are those saved.
    for name in ("iterations", "weights", "optimizer"):
        assert restored[name] == before[SAVED][name]
    assert restored["iterations"] == SAVED
    assert [each["iterations"] for each in after] == [
        SAVED + n for n in range(1, PER_EPOCH + 1)
    ]
    # The gradients are zero: equal weights would be equal noise.
    for first, second in zip(before[SAVED + 1 :], after, strict=False):
        assert first["iterations"] == second["iterations"]
        assert first["weights"][0] != second["weights"][0]
        assert first["seeds"] != second["seeds"]
    with PrivacyLedger.open(tmp_path / "l.db") as ledger:
        # Rounds 13 and 14 ran twice, and count twice.
        assert len(ledger) == covered + PER_EPOCH
        dead, own = ledger.runs
        assert (dead.state, len(dead)) == ("died", covered)
        assert (own.outcome, len(own)) == ("finished", PER_EPOCH)
        assert sum(count for _, count in own.plan) == PER_EPOCH
        assert ledger.verify().rounds == len(ledger)
        found = budgets.guarantee(ledger, delta=1e-3)
        assert found.basis == "as if fixed"
