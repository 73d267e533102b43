"""Runs, plans, accounts and seals in a ledger."""

import contextlib
import os
import sqlite3

import pytest

from keras_dp import budgets
from keras_dp.errors import (
    BudgetExceededError,
    LedgerFormatError,
    LedgerIntegrityError,
    LedgerWriteError,
)
from keras_dp.ledger import (
    Account,
    Charge,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.rows import chain, log, statements
from tests.ledger_faults import in_a_fork
from tests.paying import Priced, paying

SAMPLING = PoissonSampling(0.01)
QUERIES = (GaussianSum("gradients", 1.0, 4.0),)
OTHERS = (GaussianSum("counts", 1.0, 8.0),)


def account(name="all", *capacities: int, **more) -> Account:
    return Account(name, capacities or (10,), "{}", **more)


class TestRuns:
    def test_have_the_delta_of_their_plan(self, ledger) -> None:
        ledger.start_run("a").plan([(Round(SAMPLING, QUERIES), 2)])
        with ledger.start_run("b") as run:
            run.plan([(Round(SAMPLING, QUERIES), 2)], delta=1e-6)
            with pytest.raises(ValueError, match="`delta` must be in"):
                run.plan([], delta=1.0)

        assert [run.delta for run in ledger.runs] == [None, 1e-6]
        again = ledger.until(ledger.verify().rows)
        assert [run.delta for run in again.runs] == [None, 1e-6]

    def test_rounds_without_a_run_are_run_0(self, ledger) -> None:
        ledger.record(SAMPLING, QUERIES, 3)
        ledger.start_run("later")

        none, later = ledger.runs
        assert (none.number, none.row, later.number, later.row) == (0, 0, 1, 2)
        assert none.start is None
        assert none.state == "finished"

    def test_rounds_of_interleaved_runs_belong_to_each(self, ledger) -> None:
        runs = [ledger.start_run(name) for name in "ab"]
        for run in runs:
            run.record(SAMPLING, QUERIES, 2)
        for run in runs:
            run.cover(Round(SAMPLING, QUERIES), 10)
        for step in range(5):
            for run in runs:
                run.settle(step)
                run.cover(Round(SAMPLING, OTHERS), 10, most=10)
        for run in runs:
            run.settle(7)

        for run in ledger.runs:
            assert len(run) == 2 + 0 + 1 + 2 + 3 + 4 + 7
            assert run.unsettled == 0
        ledger.verify()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"name": ""}, "`name`"),
            ({"name": "a", "purpose": "fun"}, "`purpose`"),
            ({"name": "a", "description": 3}, "`description`"),
            ({"name": "a", "library": None}, "`library`"),
            ({"name": "a", "limits": Priced("b", None)}, "`account`"),
        ],
    )
    def test_bad_arguments_are_named(self, ledger, arguments, message) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            ledger.start_run(**arguments)
        assert ledger.runs == ()

    def test_a_clock_set_back_does_no_harm(self, ledger, monkeypatch) -> None:
        for now in (2_000_000_000.0, 1_000_000_000.0, 0.0):
            monkeypatch.setattr("time.time", lambda now=now: now)
            with ledger.start_run("a") as run:
                run.record(SAMPLING, QUERIES)
                run.cover(Round(SAMPLING, QUERIES), 2)
                ledger.seal()
                run.settle(1)
        ledger.open_account(account())

        assert len(ledger) == 6
        assert [seal.time for seal in ledger.seals][-1] == 0
        ledger.verify()


class TestStates:
    def test_planned_then_running_then_finished(self, ledger) -> None:
        run = ledger.start_run("a")
        run.plan([(Round(SAMPLING, QUERIES), 10)])
        assert ledger.runs[0].state == "planned"

        run.cover(Round(SAMPLING, QUERIES), 10)
        assert ledger.runs[0].state == "running"

        run.settle(4)
        run.finish()
        record = ledger.runs[0]
        assert record.state == "finished"
        assert record.plan == ((Round(SAMPLING, QUERIES), 10),)
        assert len(record) == 4

    def test_an_exception_ends_a_run(self, ledger) -> None:
        with pytest.raises(KeyError), ledger.start_run("a"):
            raise KeyError

        assert ledger.runs[0].outcome == "failed"
        assert ledger.runs[0].state == "died"

    def test_nothing_is_recorded_in_a_run_that_ended(self, ledger) -> None:
        run = ledger.start_run("a")
        run.cover(Round(SAMPLING, QUERIES), 10)
        run.settle(3)
        run.finish()

        for record in (
            lambda: run.record(SAMPLING, QUERIES),
            lambda: run.cover(Round(SAMPLING, QUERIES)),
            lambda: run.plan([]),
            run.finish,
        ):
            with pytest.raises(LedgerWriteError, match="has ended"):
                record()
        assert len(ledger) == 3

    @pytest.mark.parametrize("reserved", [False, True])
    def test_a_process_that_is_gone_died(self, address, reserved) -> None:
        def dies() -> bool:
            ledger = PrivacyLedger.open(address, dataset="d")
            run = ledger.start_run("a")
            if reserved:
                run.cover(Round(SAMPLING, QUERIES), 10)
            return True

        assert in_a_fork(dies) == 0
        with PrivacyLedger.open(address, mode="r") as ledger:
            assert ledger.runs[0].state == "died"
            assert len(ledger) == ledger.unsettled == 10 * reserved

    def test_another_machine_cannot_be_asked(self, ledger, monkeypatch) -> None:
        ledger.start_run("a")
        monkeypatch.setattr(
            "keras_dp.ledger.rows.author._machine", lambda: "other"
        )
        monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")

        assert ledger.runs[0].state == "unknown"

    def test_a_number_given_anew_is_another_process(
        self, ledger, monkeypatch
    ) -> None:
        ledger.start_run("a")
        monkeypatch.setattr(
            "keras_dp.ledger.rows.author._start_of", lambda process: "later"
        )

        assert ledger.runs[0].state == "died"


class TestInterrupted:
    """A run that was interrupted goes on under its one plan."""

    @staticmethod
    def interrupted(ledger, outcome="stopped", planned=10, ran=4):
        run = ledger.start_run("a", description="of the night")
        run.plan([(Round(SAMPLING, QUERIES), planned)])
        run.record(SAMPLING, QUERIES, ran)
        if outcome is not None:
            run.finish(outcome)
        return run.number

    def test_goes_on_as_the_same_run(self, ledger) -> None:
        number = self.interrupted(ledger)
        assert ledger.runs[0].rest == (Round(SAMPLING, QUERIES), 6)

        run = ledger.continue_run(number)
        run.record(SAMPLING, QUERIES, 2)
        (record,) = ledger.runs
        assert (record.state, record.outcome) == ("running", None)
        assert record.rest is None  # Nobody else continues it meanwhile.
        run.finish("failed")
        again = ledger.continue_run(number)
        again.cover(Round(SAMPLING, QUERIES), 4)
        again.settle(4)
        again.finish()

        (record,) = ledger.runs
        assert (record.number, record.outcome) == (number, "finished")
        assert len(record) == 10
        assert record.start.description == "of the night"
        found = budgets.guarantee(ledger, delta=1e-5)
        assert (found.basis, found.ex_post) == ("plan", None)
        ledger.verify()
        with pytest.raises(LedgerWriteError, match="has ended"):
            again.record(SAMPLING, QUERIES)

    def test_after_its_process_died(self, address) -> None:
        def dies() -> bool:
            ledger = PrivacyLedger.open(address, dataset="d")
            self.interrupted(ledger, outcome=None)
            return True

        assert in_a_fork(dies) == 0
        with PrivacyLedger.open(address) as ledger:
            (dead,) = ledger.runs
            with ledger.continue_run(dead.number) as run:
                run.record(SAMPLING, QUERIES, 6)

            (record,) = ledger.runs
            assert record.start.author.process == os.getpid()
            assert record.start.author != dead.start.author

    def test_by_a_newer_version_of_its_library(self, ledger) -> None:
        run = ledger.start_run("a", library="other 1.0")
        run.plan([(Round(SAMPLING, QUERIES), 10)])
        run.finish("stopped")

        for library in ("other 1.1", ""):
            again = ledger.continue_run(1, library=library)
            again.record(SAMPLING, QUERIES, 2)
            again.finish("stopped")

            assert ledger.runs[0].start.library == "other 1.1"

    @pytest.mark.parametrize(
        "options",
        [
            {"outcome": None},  # Its process still runs.
            {"outcome": "finished"},
            {"outcome": "budget"},
            {"ran": 10},
            {"ran": 11},
        ],
        ids=str,
    )
    def test_only_if_its_plan_has_rounds_left(self, ledger, options) -> None:
        number = self.interrupted(ledger, **options)

        assert ledger.runs[0].rest is None
        for other in (number, number + 1, 99):
            with pytest.raises(ValueError, match="`number` must be that of"):
                ledger.continue_run(other)
        ledger.verify()

    def test_only_if_it_kept_to_one_kind_of_rounds(self, ledger) -> None:
        step, other = Round(SAMPLING, QUERIES), Round(SAMPLING, OTHERS)
        for plan, ran in (
            ([(step, 5), (other, 5)], QUERIES),
            ([(step, 5)], OTHERS),
        ):
            run = ledger.start_run("a")
            run.plan(plan)
            run.record(SAMPLING, ran, 2)
            run.finish("stopped")
        late = ledger.start_run("late")
        late.record(SAMPLING, QUERIES, 2)
        late.plan([(step, 5)])
        late.finish("stopped")

        assert [run.rest for run in ledger.runs] == [None, None, None]


class TestAccounts:
    @pytest.mark.parametrize(
        "prices",
        [((0, -3),), ((0, 0),), ((-1, 3),), ((1, 3), (0, 3)), ((0, 1.5),), 3],
        ids=repr,
    )
    def test_no_charge_returns_what_others_spent(self, ledger, prices) -> None:
        number = ledger.open_account(account("all", 10)).number
        run = paying(ledger, "all", Charge(number, prices))
        before = ledger.verify()

        for act in (
            lambda: run.record(SAMPLING, QUERIES),
            lambda: run.cover(Round(SAMPLING, QUERIES)),
        ):
            with pytest.raises(ValueError, match="`charge`"):
                act()
        assert ledger.verify() == before

    @pytest.mark.parametrize(
        ("name", "prices", "words"),
        [("all", None, "name that was taken"), ("b", ((0, 1),), "be charged")],
    )
    def test_contradict_where_no_program_would_open_them(
        self, ledger, name, prices, words
    ) -> None:
        number = ledger.open_account(account("all", 10)).number
        charge = None if prices is None else Charge(number, prices)
        text = statements.text_from_statement(account(name, 10))
        with ledger.lock() as database:
            log._append(database, "account", log.Rounds(text, None, charge), 0)

        with pytest.raises(LedgerIntegrityError, match=words):
            ledger.verify()

    def test_rounds_are_paid_until_there_is_no_room(self, ledger) -> None:
        number = ledger.open_account(account("all", 10)).number
        run = paying(ledger, "all", Charge(number, ((0, 3),)))

        run.record(SAMPLING, QUERIES, 2)
        before = ledger.verify()
        with pytest.raises(BudgetExceededError, match="room for 1"):
            run.record(SAMPLING, QUERIES, 2)
        with pytest.raises(BudgetExceededError, match="room for 1"):
            run.cover(Round(SAMPLING, QUERIES), 2)
        assert ledger.verify() == before
        run.record(SAMPLING, QUERIES, 1)
        assert ledger.accounts[0].balance.spent == (9,)

    def test_equal_rounds_of_other_prices_are_other_rows(self, ledger) -> None:
        number = ledger.open_account(account("all", 10)).number
        prices = [Charge(number, ((0, price),)) for price in (1, 2)]
        run = paying(ledger, "all", prices[0])

        for count, price in zip((3, 2), prices, strict=True):
            run.limits.price = price
            run.record(SAMPLING, QUERIES, count)

        assert ledger.accounts[0].balance.spent == (7,)
        assert [each[1] for each in ledger.runs[0].charges] == prices
        ledger.verify()

    def test_rounds_that_did_not_run_are_given_back(self, ledger) -> None:
        number = ledger.open_account(account("all", 10, 100)).number
        run = paying(ledger, "all", Charge(number, ((0, 1), (1, 7))))

        run.cover(Round(SAMPLING, QUERIES), 10)
        assert ledger.accounts[0].balance.spent == (10, 70)
        run.settle(4)
        run.cover(Round(SAMPLING, QUERIES), 6, most=6)
        assert ledger.accounts[0].balance.spent == (10, 70)
        with pytest.raises(BudgetExceededError):
            run.cover(Round(SAMPLING, QUERIES), 1)
        ledger.verify()
        run.settle(1)
        assert ledger.accounts[0].balance.spent == (5, 35)
        ledger.verify()

    def test_free_rounds_are_paid_with_nothing(self, ledger) -> None:
        number = ledger.open_account(account("all", 0)).number
        charge = Charge(number, ())
        run = paying(ledger, "all", charge)

        run.record(SAMPLING, QUERIES, 2)
        run.cover(Round(SAMPLING, QUERIES), 3)
        run.settle(1)
        assert ledger.verify().rounds == 3
        assert ledger.runs[0].charges[0][1] == charge
        assert ledger.accounts[0].balance.spent == (0,)

    def test_every_round_must_be_paid(self, ledger) -> None:
        ledger.open_account(account())

        run = ledger.start_run("a")
        for add in (
            lambda: ledger.record(SAMPLING, QUERIES),
            lambda: run.record(SAMPLING, QUERIES),
            lambda: run.cover(Round(SAMPLING, QUERIES)),
        ):
            with pytest.raises(LedgerWriteError, match="must pay"):
                add()

    def test_names_are_given_once(self, ledger) -> None:
        ledger.open_account(account("a"))

        with pytest.raises(ValueError, match="a name that no account"):
            ledger.open_account(account("a"))

    @pytest.mark.parametrize("capacity", [-1, 2**63, 1.0, True])
    def test_capacities_are_whole_numbers(self, capacity) -> None:
        with pytest.raises(ValueError, match="`capacities`"):
            account("a", capacity)


class TestSeals:
    def test_no_row_before_a_seal_is_folded(self, ledger) -> None:
        run = ledger.start_run("a")
        run.record(SAMPLING, QUERIES, 5)
        run.cover(Round(SAMPLING, QUERIES), 5)
        seal = ledger.seal("audited")
        run.record(SAMPLING, QUERIES, 5)
        run.settle(2)
        ledger.seal()

        assert ledger.seals[0] == seal
        assert (seal.number, seal.note) == (4, "audited")
        assert len(ledger) == 12
        ledger.verify()


class TestTexts:
    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            ("seal", '{"note":3}'),
            ("seal", '{"note": ""}'),
            ("seal", "{}"),
            ("end", '{"outcome":"lost"}'),
            ("plan", '{"rounds":[[{},3]]}'),
            ("plan", '{"rounds":3}'),
            ("run", "{}"),
            ("account", '{"name":"a"}'),
            ("account", "[" * 100_000),
        ],
    )
    def test_impossible_statements_are_errors(self, kind, text) -> None:
        with pytest.raises(LedgerFormatError):
            statements.statement_from_text(kind, text)


def _edited(path, *edits) -> None:
    """Changes rows and computes every hash anew, as a forger would."""
    with contextlib.closing(
        sqlite3.connect(path, isolation_level=None)
    ) as connection:
        for edit in edits:
            connection.execute(edit)
        previous = None
        for row in log.rows(connection):
            digest = chain.hash_of(
                chain.hash_before(log.meta(connection), previous), *row[:-1]
            )
            connection.execute(
                "UPDATE log SET hash = ? WHERE seq = ?", [digest, row.seq]
            )
            previous = row._replace(hash=digest)
        log.finish(connection, "")


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE log SET run = NULL WHERE seq = 3",
        "UPDATE log SET run = 3 WHERE seq = 4",
        "UPDATE log SET run = 2 WHERE seq = 2",
        "UPDATE log SET run = 1 WHERE seq = 2",
        "UPDATE log SET charge = NULL WHERE seq = 4",
        "UPDATE log SET charge = '[1,[[0,4]]]' WHERE seq = 4",
        "UPDATE log SET charge = '[2,[[0,1]]]' WHERE seq = 4",
        "UPDATE log SET charge = '[1,[[9,1]]]' WHERE seq = 4",
        "UPDATE log SET charge = '[1,[[0,-1]]]' WHERE seq = 4",
        "UPDATE log SET charge = 'x' WHERE seq = 4",
        "UPDATE log SET count = 11 WHERE seq = 4",
        "UPDATE log SET count = 1 WHERE seq = 6",
        "UPDATE log SET target = 1 WHERE seq = 6",
    ],
)
def test_rows_that_contradict_each_other_are_found(tmp_path, edit) -> None:
    """Even if every hash was computed anew."""
    path = tmp_path / "l.db"
    with PrivacyLedger.open(path, dataset="d") as ledger:
        number = ledger.open_account(account("all", 10)).number
        run = paying(ledger, "all", Charge(number, ((0, 1),)))
        run.plan([(Round(FullDataset(), QUERIES), 5)])
        run.record(FullDataset(), QUERIES, 5)
        run.finish()
        ledger.seal()
    _edited(path)
    PrivacyLedger.open(path, mode="r").close()  # The control.

    _edited(path, edit)
    with pytest.raises(LedgerIntegrityError):
        PrivacyLedger.open(path, mode="r")
