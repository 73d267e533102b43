"""What a ledger counts, in memory and on disk."""

import threading

import pytest

from keras_dp.errors import LedgerError, LedgerIntegrityError, LedgerWriteError
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger, Round
from keras_dp.ledger.rows import codec
from keras_dp.ledger.rows import log as ledger_log
from tests.ledger_faults import run_together

LARGEST = 2**63 - 1
SAMPLING = PoissonSampling(0.01)
QUERIES = [GaussianSum("gradients", 1.0, 4.0)]
OTHER = [GaussianSum("gradients", 1.0, 5.0)]


BODY = codec.text_from_round(Round(SAMPLING, tuple(QUERIES)))


def counts(ledger: PrivacyLedger) -> list[int]:
    return [count for _, count in ledger]


def test_a_new_ledger_is_empty_and_true(ledger) -> None:
    assert (len(ledger), ledger.unsettled, ledger.rounds) == (0, 0, ())
    assert bool(ledger)
    assert ledger.verify().rows == 0


def test_a_million_equal_steps_of_one_writer_are_one_row(ledger) -> None:
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, QUERIES), 10_000)
    for _ in range(99):
        block.cover(Round(SAMPLING, QUERIES), 10_000, most=10_000)

    block.settle()

    assert ledger.verify()[:2] == (2, 1_000_000)
    assert counts(ledger) == [1_000_000]


@pytest.mark.parametrize("used", [-1, 11])
def test_no_more_is_used_than_was_reserved(ledger, used: int) -> None:
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, QUERIES), 10)

    with pytest.raises(ValueError, match="`used` must"):
        block.settle(used=used)
    assert ledger.unsettled == 10
    block.settle(used=10)


@pytest.mark.parametrize("count", [0, -1, LARGEST + 1])
def test_counts_must_be_positive_and_fit_64_bits(ledger, count: int) -> None:
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, QUERIES))

    for act in (
        lambda: ledger.record(SAMPLING, QUERIES, count=count),
        lambda: block.cover(Round(SAMPLING, QUERIES), count),
    ):
        with pytest.raises(ValueError, match=r"`count` must .*Received"):
            act()
    assert ledger.unsettled == len(ledger) == 1


def test_the_total_fits_64_bits_or_nothing_is_written(ledger) -> None:
    ledger.record(SAMPLING, QUERIES, count=LARGEST - 2)
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, OTHER), 2)
    before = ledger.verify()

    for act in (
        lambda: ledger.record(SAMPLING, QUERIES),
        lambda: ledger.record(SAMPLING, OTHER),
        lambda: block.cover(Round(SAMPLING, OTHER)),
    ):
        with pytest.raises(OverflowError, match=r"`count` must .*Received"):
            act()

    assert ledger.verify() == before
    assert len(ledger) == LARGEST
    block.settle(used=1)
    assert len(ledger) == LARGEST - 1


def test_a_settle_that_lost_its_block_writes_nothing(ledger, handle) -> None:
    """Whoever calls the log directly cannot settle what is no block."""
    ledger.record(SAMPLING, QUERIES, count=5)
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, OTHER), 2)
    ledger.record(SAMPLING, QUERIES)
    block.settle(used=1)
    rounds = ledger_log.Rounds(codec.text_from_round(Round(SAMPLING, OTHER)), 2)
    before = ledger.verify()

    for seq, count in ((1, 5), (3, 2), (3, 3), (4, 1), (9, 1)):
        with (
            pytest.raises(LedgerIntegrityError),
            handle.transaction() as connection,
        ):
            ledger_log.settle(connection, seq, rounds, count, 0)
    assert ledger.verify() == before


def test_an_interrupt_never_lets_a_block_be_settled_twice(
    ledger, monkeypatch
) -> None:
    """Afterwards the row may be the block of another writer."""
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, QUERIES), 10)
    settle = ledger_log.settle

    def interrupted(*arguments: object) -> None:
        settle(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(ledger_log, "settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        block.settle(used=1)
    monkeypatch.undo()

    assert len(ledger) == 10
    with pytest.raises(ValueError, match="`used` must"):
        block.settle(used=1)
    assert ledger.verify().rounds == 10


def test_threads_share_a_ledger(ledger) -> None:
    def work() -> None:
        for _ in range(10):
            ledger.record(SAMPLING, QUERIES)
            run = ledger.start_run("a")
            run.cover(Round(SAMPLING, OTHER), 3)
            run.settle(used=1)

    run_together(work)

    assert ledger.verify().rounds == len(ledger) == 80
    assert ledger.unsettled == 0


def test_one_of_many_threads_settles_a_block(ledger) -> None:
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, QUERIES), 10)
    barrier, refused = threading.Barrier(4), []

    def settle() -> None:
        barrier.wait()
        try:
            block.settle(used=1)
        except ValueError as error:
            refused.append(error)

    run_together(settle)

    assert len(refused) == 3
    assert ledger.verify().rounds == 1


def test_a_closed_ledger_neither_reads_nor_writes(ledger) -> None:
    block = ledger.start_run("a")
    block.cover(Round(SAMPLING, QUERIES), 10)
    ledger.close()
    ledger.close()

    for act in (
        lambda: ledger.record(SAMPLING, QUERIES),
        lambda: block.settle(used=1),
        lambda: block.cover(Round(SAMPLING, QUERIES)),
    ):
        with pytest.raises(LedgerWriteError, match="closed"):
            act()
    with pytest.raises(LedgerError, match="closed"):
        len(ledger)
    assert "closed" in repr(ledger)


def test_the_ledger_says_what_it_is(address) -> None:
    with PrivacyLedger.open(address, dataset="d", unit="user") as ledger:
        assert ledger.name == address
        assert repr(address) in repr(ledger)

    with PrivacyLedger.open(address, mode="r") as again:
        header = again.header
    assert (header.dataset, header.unit) == ("d", "user")


def test_a_failed_body_inside_a_transaction_leaves_no_trace(
    ledger, handle
) -> None:
    before = ledger.verify()

    def fail() -> None:
        with handle.transaction() as connection:
            ledger_log.append_record(connection, ledger_log.Rounds(BODY), 1)
            raise handle.errors[0]("disk I/O error")

    with pytest.raises(LedgerWriteError, match="could not be written"):
        fail()

    assert ledger.verify() == before


def test_a_nested_transaction_fails_and_spares_the_outer_one(
    ledger, handle
) -> None:
    """As when a signal handler records while a record is being made."""
    with handle.transaction() as connection:
        ledger_log.append_record(connection, ledger_log.Rounds(BODY), 1)
        with pytest.raises(LedgerWriteError):
            ledger.record(SAMPLING, QUERIES)

    assert ledger.verify().rounds == 1
