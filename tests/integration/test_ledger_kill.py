"""A process that is killed at any moment leaves a ledger that covers it."""

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_dp.errors import LedgerError
from keras_dp.ledger import (
    Account,
    Charge,
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places import storage
from tests.ledger_faults import start_fork
from tests.paying import paying
from tests.waiting import let_others_run, until, wait_until

KILLS = 20
BLOCK = 7
QUERIES = [GaussianSum("gradients", 1.0, 4.0)]
STEP = Round(FullDataset(), QUERIES)


class _UncoveredError(Exception):
    """A release is not in the ledger."""


def cover_first(address: str, releases: int) -> None:
    """Releases rounds, each after the ledger covers it."""
    ledger = PrivacyLedger.open(address, dataset="d")
    block = ledger.start_run("a")
    block.cover(STEP, BLOCK)
    while True:
        for _ in range(BLOCK):
            os.write(releases, b".")
        block.cover(STEP, BLOCK, most=BLOCK)


def cover_and_charge(address: str, releases: int) -> None:
    """Releases rounds of a run, which an account pays before."""
    ledger = PrivacyLedger.open(address)
    price = Charge(ledger.accounts[0].number, ((0, 1), (1, 3)))
    run = paying(ledger, "all", price)
    run.cover(STEP, BLOCK)
    while True:
        for _ in range(BLOCK):
            os.write(releases, b".")
        run.cover(STEP, BLOCK, most=BLOCK)


def release_first(address: str, releases: int) -> None:
    """Releases rounds, each before the ledger covers it."""
    ledger = PrivacyLedger.open(address, dataset="d")
    while True:
        for _ in range(BLOCK):
            os.write(releases, b".")
        ledger.record(FullDataset(), QUERIES, count=BLOCK)


def _run_and_kill(
    act: Callable[[str, int], None],
    address: str,
    side: Path,
    chosen: random.Random,
) -> bool:
    """Kills a process some blocks after it began, at a random moment.

    Returns:
        Whether it lived until then: it may have refused the ledger.
    """
    enough = side.stat().st_size + BLOCK * chosen.randrange(1, 4)
    releases = os.open(side, os.O_WRONLY | os.O_APPEND)
    child = start_fork(lambda: act(address, releases))
    os.close(releases)
    for _ in until(lambda: side.stat().st_size >= enough):
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return False
        let_others_run()
    for _ in range(chosen.randrange(5000)):
        side.stat()
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def _check(address: str, side: Path, kills: int) -> int:
    """Returns by how much the ledger over-counts, if it covers all."""
    released = side.stat().st_size
    with PrivacyLedger.open(address, mode="r") as ledger:
        covered = ledger.verify().rounds
        # A server may end the last commit of a process that is gone.
        assert covered <= len(ledger) <= ledger.verify().rounds
        assert ledger.unsettled <= kills * BLOCK
    if covered < released:
        raise _UncoveredError(
            f"{covered} of {released} releases after {kills}."
        )
    return covered - released


@pytest.fixture
def side(tmp_path) -> Path:
    """A file that grows by a byte with each release."""
    side = tmp_path / "releases"
    side.touch()
    return side


def test_every_release_of_a_killed_process_is_covered(address, side) -> None:
    PrivacyLedger.open(address, dataset="d").close()
    chosen = random.Random(11)

    for kills in range(1, KILLS + 1):
        assert _run_and_kill(cover_first, address, side, chosen)

        assert _check(address, side, kills) <= kills * BLOCK


@pytest.mark.full
def test_accounts_have_paid_for_all_that_was_released(address, side) -> None:
    with PrivacyLedger.open(address, dataset="d") as ledger:
        ledger.open_account(Account("all", (10**9, 10**9), "{}"))
    chosen = random.Random(16)

    for kills in range(1, KILLS + 1):
        assert _run_and_kill(cover_and_charge, address, side, chosen)

        assert _check(address, side, kills) <= kills * BLOCK
        with PrivacyLedger.open(address, mode="r") as ledger:
            assert len(ledger.runs) == kills
        if kills % 10 == 0:
            with PrivacyLedger.open(address) as ledger:
                ledger.seal()

    with PrivacyLedger.open(address, mode="r") as ledger:
        total = len(ledger)
        assert ledger.accounts[0].balance.spent == (total, 3 * total)
        assert {run.state for run in ledger.runs} == {"died"}
        assert sum(len(run) for run in ledger.runs) == total


@pytest.mark.full
def test_names_may_change_from_kill_to_kill(tmp_path, side) -> None:
    """A journal that is left under one name hides no round of the other."""
    path = tmp_path / "l.db"
    PrivacyLedger.open(path, dataset="d").close()
    other = path.with_name("other.db")
    os.link(path, other)
    chosen = random.Random(14)

    for kills in range(1, KILLS + 1):
        name, second = chosen.sample([path, other], 2)
        if not _run_and_kill(cover_first, str(name), side, chosen):
            # Its journal was outlived, or the other one's is needed.
            storage.journal_beside(name).unlink(missing_ok=True)
            name = second
        assert _check(str(name), side, kills) <= kills * BLOCK


def test_the_check_above_can_fail(address, side) -> None:
    """Control: a process that releases before it covers is caught."""
    PrivacyLedger.open(address, dataset="d").close()
    chosen = random.Random(12)

    def kill_often() -> None:
        for kills in range(1, KILLS + 1):
            assert _run_and_kill(release_first, address, side, chosen)
            _check(address, side, kills)

    with pytest.raises(_UncoveredError):
        kill_often()


def test_a_process_killed_while_it_creates_leaves_all_or_nothing(
    tmp_path,
) -> None:
    """Whatever stands under the name is a ledger, and nothing else stays."""

    def create(folder: Path) -> None:
        for number in range(10**6):
            PrivacyLedger.open(folder / f"{number}.db", dataset="d").close()

    chosen = random.Random(13)
    for kill in range(10):
        folder = tmp_path / str(kill)
        folder.mkdir()
        child = start_fork(lambda folder=folder: create(folder))
        wait_until(lambda folder=folder: os.listdir(folder))
        for _ in range(chosen.randrange(2000)):
            os.listdir(folder)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

        last = max(
            int(name.lstrip(".").split(".")[0]) for name in os.listdir(folder)
        )
        for number in range(last + 1):
            try:
                PrivacyLedger.open(folder / f"{number}.db", dataset="d").close()
            except LedgerError as error:
                pytest.fail(f"Kill {kill} left half a ledger: {error}")
        assert sorted(os.listdir(folder)) == sorted(
            f"{number}.db" for number in range(last + 1)
        )
