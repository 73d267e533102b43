"""A process that is killed at any moment leaves a ledger that covers it."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_dp.errors import LedgerError
from keras_dp.ledger import PrivacyLedger

KILLS = 40
BLOCK = 7

_CHILD = """
import os, sys
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger

path, side, block_size, order = sys.argv[1:]
count = int(block_size)
queries = [GaussianSum("gradients", 1.0, 4.0)]
assert not {"tensorflow", "keras"} & set(sys.modules), "too heavy a child"
ledger = PrivacyLedger.open(path, dataset="d")
releases = os.open(side, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
if order == "cover-first":
    block = ledger.reserve(FullDataset(), queries, count=count)
    while True:
        for _ in range(count):
            os.write(releases, b".")
        block = block.renew(used=count, count=count)
while True:
    for _ in range(count):
        os.write(releases, b".")
    ledger.record(FullDataset(), queries, count=count)
"""


class _UncoveredError(Exception):
    """A release is not in the ledger."""


def _run_and_kill(path: Path, side: Path, order: str, seconds: float) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, path, side, str(BLOCK), order],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert child.stdout.readline() == b"ready\n", child.stderr.read()
        time.sleep(seconds)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == -signal.SIGKILL


def _check(path: Path, side: Path, kills: int) -> int:
    """Returns by how much the ledger over-counts, if it covers all."""
    released = side.stat().st_size
    with PrivacyLedger.open(path, mode="r") as ledger:
        covered = ledger.verify().rounds
        assert covered == len(ledger)
        assert ledger.unsettled <= kills * BLOCK
    if covered < released:
        raise _UncoveredError(
            f"{covered} of {released} releases after {kills}."
        )
    return covered - released


def test_every_release_of_a_killed_process_is_covered(tmp_path) -> None:
    path, side = tmp_path / "l.db", tmp_path / "releases"
    delays = random.Random(11)
    releases = 0

    for kills in range(1, KILLS + 1):
        seconds = delays.uniform(0.0, 0.06)
        _run_and_kill(path, side, "cover-first", seconds)

        assert _check(path, side, kills) <= kills * BLOCK
        releases = side.stat().st_size

    assert releases > 10 * KILLS * BLOCK, "The kills came too early to tell."


def test_the_check_above_can_fail(tmp_path) -> None:
    """Control: a process that releases before it covers is caught."""
    path, side = tmp_path / "l.db", tmp_path / "releases"
    delays = random.Random(12)

    def kill_often() -> None:
        for kills in range(1, KILLS + 1):
            seconds = delays.uniform(0.0, 0.06)
            _run_and_kill(path, side, "release-first", seconds)
            _check(path, side, kills)

    with pytest.raises(_UncoveredError):
        kill_often()


def test_a_process_killed_while_it_creates_leaves_all_or_nothing(
    tmp_path,
) -> None:
    """Whatever stands under the name is a ledger."""
    script = (
        "import sys\n"
        "from keras_dp.ledger import PrivacyLedger\n"
        "print('ready', flush=True)\n"
        "for number in range(10**6):\n"
        "    path = f'{sys.argv[1]}/{number}.db'\n"
        "    PrivacyLedger.open(path, dataset='d').close()\n"
    )
    delays = random.Random(13)
    for kill in range(5):
        folder = tmp_path / str(kill)
        folder.mkdir()
        child = subprocess.Popen(
            [sys.executable, "-c", script, folder], stdout=subprocess.PIPE
        )
        assert child.stdout.readline() == b"ready\n"
        time.sleep(delays.uniform(0.0, 0.1))
        child.kill()
        child.communicate()

        for path in folder.glob("[0-9]*.db"):
            try:
                PrivacyLedger.open(path, mode="r").close()
            except LedgerError as error:
                pytest.fail(f"Kill {kill} left half a ledger: {error}")
