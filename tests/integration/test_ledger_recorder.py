"""Blocks of rounds belong to their process, and survive every interrupt."""

import collections
import sys

import pytest

from keras_dp.errors import LedgerError, LedgerWriteError, PrivateTrainingError
from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.ledger.rows import log, run_writer
from keras_dp.ledger.rows.run_writer import RunWriter
from keras_dp.spending.run import new_run

QUERIES = (GaussianSum("gradients", 1.0, 4.0),)
STEP = Round(FullDataset(), QUERIES)


def cover(run: RunWriter) -> None:
    run.cover(STEP)
    run.released(lambda: QUERIES)


def test_blocks_of_an_epoch_are_as_large_as_those_of_the_last(
    monkeypatch,
) -> None:
    """A settled block does not let the next ones grow from one again."""
    monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
    ledger = PrivacyLedger.in_memory(dataset="d")
    asked, append = [], log.append_reservation

    def appends(database, rounds, count):
        asked.append(count)
        return append(database, rounds, count)

    monkeypatch.setattr(log, "append_reservation", appends)
    run = new_run(ledger)

    for _ in range(3):
        for _ in range(20):
            cover(run)
        run.settle()

    assert asked == [1, 4, 16, 64, 256]
    assert (len(ledger), ledger.unsettled) == (60, 0)


def test_what_runs_at_once_is_what_is_left_of_a_block(monkeypatch) -> None:
    monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
    ledger = PrivacyLedger.in_memory(dataset="d")
    run, covered = new_run(ledger, most=100), []

    for most in (50, 50, 3, 50, 7):
        covered.append(run.cover_some(STEP, most, most=50))
        assert len(ledger) >= sum(covered)
        run.released(lambda: QUERIES, covered[-1])
    run.settle()

    assert covered == [1, 4, 3, 13, 7]
    assert (len(ledger), ledger.unsettled) == (28, 0)


@pytest.mark.parametrize("count", [0, -1, 1.5])
def test_no_count_is_refused(count) -> None:
    run = new_run(PrivacyLedger.in_memory(dataset="d"))
    with pytest.raises((TypeError, ValueError), match="`count`"):
        run.cover_some(STEP, count)
    run.cover(STEP)
    with pytest.raises((TypeError, ValueError), match="`count`"):
        run.released(lambda: QUERIES, count)


def test_stops_at_a_release_that_is_not_what_was_planned() -> None:
    """Each of the rounds that ran at once is recorded with both."""
    ledger = PrivacyLedger.in_memory(dataset="d")
    other = (GaussianSum("gradients", 1.0, 2.0),)
    run = new_run(ledger)
    run.cover(STEP, 3)
    with pytest.raises(PrivateTrainingError, match="3 rounds"):
        run.released(lambda: other, 3)
    assert [(each.round.queries, each.count) for each in ledger.rounds] == [
        (QUERIES, 3),
        (other, 3),
    ]


def test_what_follows_the_last_round_is_none_of_its_time(monkeypatch) -> None:
    """Keras validates before an epoch settles its block."""
    clock = [0.0]
    monkeypatch.setattr(run_writer.time, "monotonic", lambda: clock[0])
    ledger = PrivacyLedger.in_memory(dataset="d")
    recorder = new_run(ledger, most=100)
    for _ in range(20):
        recorder.cover(STEP)
        clock[0] += 0.01
        recorder.released(lambda: QUERIES)
    clock[0] += 60.0  # The validation.
    recorder.settle()
    recorder.cover(STEP)

    assert ledger.unsettled == 64  # Four times the last block.


def interrupted_at(
    line: int, ledger: PrivacyLedger
) -> tuple[type[BaseException] | None, int]:
    """Trains, and interrupts the renewal of the first block.

    Args:
        line: Which line of the renewal, counted as they run.
        ledger: Where the training is recorded.

    Returns:
        The class of what came out, and the number of rounds that were released.
    """
    passed = released = 0
    renew = RunWriter._reserve.__code__

    def trace(frame, event, argument):
        nonlocal passed
        inside = frame
        while inside is not None and inside.f_code is not renew:
            inside = inside.f_back
        own = "keras_dp" in frame.f_code.co_filename
        if released and inside is not None and own and event == "line":
            passed += 1
            if passed == line:
                raise KeyboardInterrupt
        return trace

    recorder, before = new_run(ledger, most=4), sys.gettrace()
    sys.settrace(trace)
    try:
        with recorder:
            for _ in range(2):
                recorder.cover(STEP)
                released += 1
                recorder.released(lambda: QUERIES)
    except BaseException as error:  # noqa: BLE001 - the test looks at it.
        return type(error), released
    finally:
        sys.settrace(before)
    return None, released


@pytest.mark.full
def test_an_interrupt_comes_out_and_all_rounds_stay_covered(
    monkeypatch,
) -> None:
    """At every line between two blocks, as Ctrl-C may come."""
    monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
    monkeypatch.setattr(run_writer, "LARGEST_BLOCK", 2)
    line, kept = 0, collections.Counter()
    while True:
        line += 1
        ledger = PrivacyLedger.in_memory(dataset="d")
        error, released = interrupted_at(line, ledger)
        if error is None:
            break
        assert (error, released) == (KeyboardInterrupt, 1)
        try:
            ledger.verify()
            kept[len(ledger), ledger.runs[0].outcome] += 1
        except LedgerError:
            kept["closed"] += 1
    # Some interrupts came before the commit, and some after it.
    assert kept[1, "stopped"] > 5 < kept[3, "stopped"]
    # At the line where a transaction ends, the ledger refuses all that follows.
    assert kept.keys() <= {(1, "stopped"), (3, "stopped"), "closed"}
    assert kept["closed"] <= 1


def test_a_failure_at_the_end_does_not_hide_the_first_one() -> None:
    def train(first: str) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        run = new_run(ledger, most=4)
        with run:
            run.cover(STEP)
            ledger.close()
            if first:
                raise ZeroDivisionError(first)

    with pytest.raises(ZeroDivisionError, match="mine") as found:
        train("mine")
    assert "closed" in found.value.__notes__[0]
    with pytest.raises(LedgerWriteError, match="closed"):
        train("")  # Control: alone, it is raised.


def test_a_failure_that_lasts_is_said_once() -> None:
    def train() -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        with new_run(ledger, most=4) as run:
            run.cover(STEP)
            ledger.close()
            run.cover(STEP)

    with pytest.raises(LedgerWriteError, match="closed") as found:
        train()
    assert not hasattr(found.value, "__notes__")
