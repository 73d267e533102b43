"""A run of a training, without the training: rooms, races, and ends."""

import contextlib
import os
import sqlite3
import threading

import pytest

from keras_dp import budgets
from keras_dp.accountants.replay import Replay
from keras_dp.errors import (
    BudgetExceededError,
    LedgerError,
    LedgerWriteError,
    PrivateTrainingError,
)
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    Forecast,
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places.place import FileHandle
from keras_dp.ledger.rows import run_writer
from keras_dp.ledger.rows.run_writer import RunWriter
from keras_dp.spending.epsilon_limit import EpsilonLimit, PrivacyTarget
from keras_dp.spending.run import RunDetails, RunLimits, new_run
from tests.ledger_faults import run_together, start_fork
from tests.waiting import HUNG_SECONDS

DELTA = 1e-5
STEP = Round(PoissonSampling(0.1), (GaussianSum("gradients", 1.0, 4.0),))
OTHER = Round(FullDataset(), (GaussianSum("mean", 1.0, 20.0),))
GOES_ON = RunDetails(continues=1)
PROCESSES, CAPACITY = 8, 500


@pytest.fixture
def ledger() -> PrivacyLedger:
    return PrivacyLedger.in_memory(dataset="d")


def open_plan(ledger, name: str = "all", count: int = 10) -> None:
    budget = budgets.FixedPlan([(STEP, count)], 8.0, DELTA)
    budgets.open_account(ledger, name, budget)


def train(run: RunWriter, rounds: int, most: int = 4096) -> int:
    """Runs rounds until there is no room, as a loop does; returns how many."""
    for ran in range(rounds):
        if run.is_exhausted(STEP):
            return ran
        try:
            run.cover(STEP, most=most)
        except BudgetExceededError:  # The room went since the question.
            assert run.ran_out
            return ran
        run.released(lambda: STEP.queries)
    return rounds


class TestARace:
    """Another training is faster, between the question and the answer."""

    def test_for_part_of_it_leaves_the_rest(self, ledger, monkeypatch) -> None:
        open_plan(ledger, count=10)
        other = new_run(ledger, RunDetails("other"))
        room, asked = RunLimits.allow, []

        def late(self, planned, count, own):
            found = room(self, planned, count, own)
            asked.append(found.rounds)
            if len(asked) == 2:  # The second block, of four.
                monkeypatch.undo()
                other.cover(STEP, 7)
            return found

        monkeypatch.setattr(RunLimits, "allow", late)
        run = new_run(ledger)
        for _ in range(2):
            run.cover(STEP)

        assert asked == [1, 4]
        assert [len(each) for each in ledger.runs] == [3, 7]
        assert ledger.accounts[0].balance.spent == (10,)

    def test_for_all_of_it_runs_nothing(self, ledger, monkeypatch) -> None:
        open_plan(ledger, count=10)
        other, room = new_run(ledger, RunDetails("other")), RunLimits.allow

        def late(self, planned, count, own):
            found = room(self, planned, count, own)
            monkeypatch.undo()
            other.cover(STEP, 10)
            return found

        monkeypatch.setattr(RunLimits, "allow", late)
        with pytest.raises(BudgetExceededError, match=r"'all'.*No round ran"):
            new_run(ledger).cover(STEP, 4)

        assert len(ledger) == 10

    def test_in_the_middle_ends_it_with_its_last_block(self, ledger) -> None:
        open_plan(ledger, count=10)
        run = new_run(ledger, most=10)
        assert train(run, 4, most=1) == 4
        new_run(ledger, RunDetails("other")).cover(STEP, 5)

        assert train(run, 6, most=1) == 1
        run.finish()

        own = ledger.runs[0]
        assert (own.outcome, len(own)) == ("budget", 5)
        assert sum(count for _, count in own.plan) == 10


class TestAnAccountThatIsOpenedMeanwhile:
    def test_stops_a_training_without_one(self, ledger) -> None:
        run = new_run(ledger, most=9)
        train(run, 3, most=1)
        open_plan(ledger)

        with pytest.raises(LedgerWriteError, match="must be started again"):
            run.cover(STEP, most=1)
        run.finish("failed")

        assert (ledger.runs[0].outcome, len(ledger)) == ("failed", 3)

    def test_beside_its_own_changes_nothing(self, ledger) -> None:
        open_plan(ledger)
        run = new_run(ledger, most=5)
        train(run, 2, most=1)
        open_plan(ledger, "second")

        assert train(run, 3, most=1) == 3
        run.finish()

        assert ledger.runs[0].outcome == "finished"
        first, second = ledger.accounts
        assert (first.balance.spent, second.balance.spent) == ((5,), (0,))


class TestAnInterruptedRun:
    @pytest.mark.parametrize("library", ["other 1.0", ""])
    def test_goes_on_where_this_library_ran_it(self, ledger, library) -> None:
        begun = ledger.start_run("a", library=library, plan=[(STEP, 10)])
        begun.cover(STEP)
        begun.finish()

        if library:
            with pytest.raises(ValueError, match="`continues`"):
                new_run(ledger, GOES_ON)
            return
        with new_run(ledger, GOES_ON) as run:
            assert train(run, 20) == 9

        (record,) = ledger.runs
        assert (record.outcome, len(record)) == ("finished", 10)

    def test_goes_on_with_the_rounds_of_its_plan_alone(self, ledger) -> None:
        ledger.start_run("a", plan=[(STEP, 10)]).finish("stopped")
        run = new_run(ledger, GOES_ON)
        with pytest.raises(PrivateTrainingError, match="rounds of its plan"):
            run.cover(OTHER)

        assert len(ledger) == 0

    def test_goes_on_at_the_cost_of_its_account(self, ledger) -> None:
        open_plan(ledger, count=9)
        limits = RunLimits(ledger)
        plan = [(STEP, 10)]
        ledger.start_run("a", plan=plan, limits=limits).finish("stopped")
        open_plan(ledger, "other")
        for wrong in (None, RunLimits(ledger, account="other")):
            with pytest.raises(ValueError, match="of the account that pays"):
                ledger.continue_run(1, limits=wrong)

        limits = RunLimits(ledger, account="all")
        with ledger.continue_run(1, limits=limits) as run:
            assert train(run, 20) == 9

        assert ledger.accounts[0].balance.spent == (9,)
        assert ledger.runs[0].outcome == "budget"

    def test_goes_on_once_where_two_trainings_found_it(self, ledger) -> None:
        ledger.start_run("a", plan=[(STEP, 10)]).finish("stopped")
        first, second = (new_run(ledger, GOES_ON) for _ in range(2))
        train(first, 7)
        first.finish("stopped")
        with pytest.raises(ValueError, match="3 left by now"):
            second.cover(STEP)
        with new_run(ledger, GOES_ON) as third:
            assert train(third, 10) == 3

        assert len(ledger) == 10


class TestAForecast:
    """What the training says of its rounds, before the first of them."""

    ROUNDS = ((STEP, 3), (OTHER, 2))

    def run(self, ledger, forecast, epsilon=None, details=None) -> RunWriter:
        limit = None
        if epsilon is not None:
            limit = EpsilonLimit(PrivacyTarget(epsilon, DELTA), ledger)
        run = new_run(ledger, details, epsilon_limit=limit, delta=DELTA)
        run.limits.expect(forecast)
        return run

    def ran(self, run: RunWriter) -> int:
        """Runs the rounds, then more of the last kind; returns how many."""
        kinds = [each for each, count in self.ROUNDS for _ in range(count)]
        for ran, planned in enumerate([*kinds, OTHER, OTHER]):
            try:
                run.cover(planned)
            except BudgetExceededError:
                return ran
        return len(kinds) + 2

    def test_is_the_plan_that_the_rounds_keep_to(self, ledger) -> None:
        run = self.run(ledger, Forecast(4, self.ROUNDS))
        for planned in (STEP, STEP, STEP, OTHER):
            run.cover(planned)
        run.finish()

        (own,) = ledger.runs
        assert own.plan == ((STEP, 3), (OTHER, 1))
        assert (own.outcome, len(own)) == ("finished", 4)
        assert budgets.guarantee(ledger, delta=DELTA).basis == "plan"

    def test_of_all_rounds_lets_no_other_follow(self, ledger) -> None:
        run = self.run(ledger, Forecast(None, self.ROUNDS, are_all=True))
        assert self.ran(run) == 5
        assert len(ledger) == 5

    def test_of_fewer_rounds_than_there_are_is_refused(self, ledger) -> None:
        with pytest.raises(ValueError, match="Correlated noise must have"):
            self.run(ledger, Forecast(6, self.ROUNDS, are_all=True))

    def test_of_all_rounds_meets_a_target(self, ledger) -> None:
        """It has room for the rounds of both kinds but for the last one."""
        paid = PrivacyLedger.in_memory(dataset="paid")
        self.run(paid, Forecast()).record(STEP.sampling, STEP.queries, 3)
        self.run(paid, Forecast()).record(OTHER.sampling, OTHER.queries)
        epsilon = Replay(paid).claim(delta=DELTA).epsilon * (1 + 1e-6)
        forecast = Forecast(None, self.ROUNDS, are_all=True)

        assert self.ran(self.run(ledger, forecast, epsilon)) == 4
        assert Replay(ledger).claim(delta=DELTA).epsilon <= epsilon

    def test_leaves_the_rest_of_a_continued_run_as_it_is(self, ledger) -> None:
        with ledger.start_run("a", plan=[(STEP, 10)]) as begun:
            train(begun, 6)
        with self.run(ledger, Forecast(100), None, GOES_ON) as run:
            assert (run.limits.most, train(run, 20)) == (4, 4)

        (own,) = ledger.runs
        assert (own.outcome, len(own)) == ("finished", 10)


class TestTwoTrainingsWithOneTarget:
    """All rounds of the ledger count, and so do plans that still run."""

    TARGET = PrivacyTarget(1.0, DELTA)

    def run(self, ledger, most=None):
        limit = EpsilonLimit(self.TARGET, ledger)
        return new_run(ledger, most=most, epsilon_limit=limit)

    def epsilon(self, ledger):
        return Replay(ledger).claim(delta=DELTA).epsilon

    @pytest.mark.parametrize("is_seen", [True, False])
    def test_meet_it_in_every_order(self, ledger, monkeypatch, is_seen) -> None:
        """The control takes the answer as it was when it was asked for."""
        with self.run(PrivacyLedger.in_memory(dataset="alone")) as alone:
            fits = train(alone, 10**6)
        first, second = self.run(ledger), self.run(ledger)
        allowed, asked = EpsilonLimit.allowed, []

        def late(limit, planned, *others):
            found = allowed(limit, planned, *others)
            if limit is second.limits._epsilon_limit and not asked:
                asked.append(found)
                first.cover(STEP, fits)
            return found

        monkeypatch.setattr(EpsilonLimit, "allowed", late)
        if not is_seen:
            allow = RunLimits.allow

            def unseen(self, *question):
                return allow(self, *question)._replace(head="")

            monkeypatch.setattr(RunLimits, "allow", unseen)
        with contextlib.suppress(BudgetExceededError):
            second.cover(STEP)

        assert asked == [1]
        assert second.ran_out == is_seen
        assert (self.epsilon(ledger) <= 1.0) == is_seen

    def test_know_of_each_others_plans(self, ledger) -> None:
        with self.run(PrivacyLedger.in_memory(dataset="alone")) as alone:
            fits = train(alone, 10**6)
        first, second = self.run(ledger, fits), self.run(ledger, fits)
        first.cover(STEP)

        with pytest.raises(BudgetExceededError, match="other trainings"):
            second.cover(STEP)

        assert second.row is None
        assert train(first, 10**6) == fits - 1
        assert self.epsilon(ledger) <= 1.0

    def test_know_that_rounds_were_away(self, ledger, monkeypatch) -> None:
        """A block that is taken back, and reserved again, has equal rows."""
        monkeypatch.setattr("time.time", lambda: 1e9)
        room = RunLimits.allow
        other = ledger.start_run("other")
        other.cover(OTHER, 15, most=15)
        before, run = ledger.head, self.run(ledger)
        fits = run.rounds_left(STEP)

        def late(self, planned, count, own):
            other.settle(0)
            found = room(self, planned, count, own)
            monkeypatch.setattr(RunLimits, "allow", room)
            other.cover(OTHER, 15, most=15)
            assert ledger.head == before
            return found

        monkeypatch.setattr(RunLimits, "allow", late)
        with pytest.raises(BudgetExceededError, match="`target_epsilon`"):
            run.cover(STEP, fits + 1)

    def test_take_turns_where_their_plans_fit_together(self, ledger) -> None:
        with self.run(PrivacyLedger.in_memory(dataset="alone")) as alone:
            half = train(alone, 10**6) // 2
        runs = [self.run(ledger, half) for _ in range(2)]
        for _ in range(half):
            for run in runs:
                run.cover(STEP)

        assert [len(run) for run in ledger.runs] == [half, half]
        assert self.epsilon(ledger) <= 1.0

    def test_know_plans_kept_under_a_weaker_relation(self, ledger) -> None:
        """The first round of the training makes that one count."""

        def full(noise: float) -> Round:
            return Round(FullDataset(), (GaussianSum("mean", 1.0, noise),))

        fixed = Round(FixedSizeWithoutReplacement(10, 1000), STEP.queries)
        other = ledger.start_run("other", plan=[(fixed, 1), (full(40.0), 50)])
        other.cover(full(80.0), 10, most=10)

        with pytest.raises(BudgetExceededError, match="`target_epsilon`"):
            self.run(ledger).cover(fixed)

    @pytest.mark.parametrize("what", ["rounds", "plan", "own"])
    def test_see_what_leaves_the_count_as_it_is(self, ledger, what) -> None:
        cheap = Round(PoissonSampling(1e-6), STEP.queries)
        before = ledger.start_run("before")
        before.cover(cheap, 30, most=30)
        run = self.run(ledger)
        run.cover(STEP)
        if what == "rounds":
            before.settle(0)
            ledger.start_run("other").cover(OTHER, 30, most=30)
        elif what == "plan":
            ledger.start_run("other", plan=[(OTHER, 30)])
        else:
            run.record(OTHER.sampling, OTHER.queries, 30)

        with pytest.raises(BudgetExceededError, match="`target_epsilon`"):
            run.cover(STEP)


class TestSeveralRoundsOfOneCall:
    """As where one compiled call runs them all."""

    def test_of_another_kind_are_not_covered(self, ledger, monkeypatch) -> None:
        monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
        run = new_run(ledger)
        for _ in range(2):
            run.cover(STEP)  # The second block has four rounds.
        run.cover(OTHER)
        run.finish()

        assert ledger.rounds == ((STEP, 2), (OTHER, 1))

    def test_are_covered_before_it_in_whole_calls(
        self, ledger, monkeypatch
    ) -> None:
        monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
        run, seen = new_run(ledger), []
        for _ in range(20):
            run.cover(STEP, 50, most=330)
            seen.append(len(ledger))

        assert all(n >= 50 * call for call, n in enumerate(seen, start=1))
        assert {n % 50 for n in seen} == {0}
        assert len(set(seen)) < 10  # Most calls find their rounds reserved.
        run.finish()
        assert (len(ledger), ledger.unsettled) == (1000, 0)


def test_no_block_is_longer_than_the_plan(ledger) -> None:
    """A process that dies would break its plan."""
    with ledger.start_run("a", plan=[(STEP, 7)]) as run:
        for _ in range(7):
            run.cover(STEP)
            assert len(ledger) <= 7


def test_eight_processes_share_an_account(address, monkeypatch) -> None:
    """None overspends, all of it is spent, and each says why it stopped."""
    monkeypatch.setattr(run_writer, "LARGEST_BLOCK", 5)
    with PrivacyLedger.open(address, dataset="d") as ledger:
        open_plan(ledger, count=CAPACITY)
    gate, opener = os.pipe()

    def trains(number: int) -> bool:
        os.close(opener)
        os.read(gate, 1)  # Returns when the parent closes its end.
        with PrivacyLedger.open(address) as ledger:
            details = RunDetails(str(number))
            # Half of them reserve one round at a time.
            with new_run(ledger, details, most=CAPACITY + 1) as run:
                ran = train(run, CAPACITY + 1, most=1 if number % 2 else 5)
            own = {each.name: len(each) for each in ledger.runs}
        return own.get(str(number), 0) == ran

    children = [
        start_fork(lambda number=number: trains(number))
        for number in range(PROCESSES)
    ]
    os.close(opener)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * PROCESSES
    with PrivacyLedger.open(address, mode="r") as ledger:
        assert len(ledger) == CAPACITY
        assert ledger.unsettled == 0
        assert ledger.accounts[0].balance.spent == (CAPACITY,)
        assert {run.outcome for run in ledger.runs} == {"budget"}
        budgets.verify_prices(ledger)
        assert ledger.verify().rounds == CAPACITY
        assert budgets.guarantee(ledger, delta=DELTA).basis == "account"
    os.close(gate)


class TestWhatIsReleasedIsCovered:
    """Whatever fails, and whoever calls."""

    @pytest.mark.parametrize("failure", ["doubtful", "moved"])
    def test_no_round_comes_of_a_block_that_may_be_settled(
        self, tmp_path, monkeypatch, failure
    ) -> None:
        path, elsewhere = tmp_path / "l.ledger", tmp_path / "elsewhere"
        run = PrivacyLedger.open(path, dataset="d").start_run("a")
        monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
        while run.is_between_blocks:
            run.cover(STEP)
        commit = FileHandle._commit

        def fails(handle) -> None:
            if failure == "moved":
                path.rename(elsewhere)
            commit(handle)
            raise sqlite3.OperationalError("disk I/O error")

        with monkeypatch.context() as patch:
            patch.setattr(FileHandle, "_commit", fails)
            with pytest.raises(LedgerWriteError):
                run.settle()
        with pytest.raises(LedgerError):
            run.cover(STEP)

    def test_a_settlement_that_surely_failed_is_tried_again(
        self, tmp_path, monkeypatch
    ) -> None:
        ledger = PrivacyLedger.open(tmp_path / "l.ledger", dataset="d")
        run = ledger.start_run("a")
        monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
        ran = 0
        while run.is_between_blocks:
            run.cover(STEP)
            ran += 1
        with monkeypatch.context() as patch:
            patch.setattr(FileHandle, "_begin", _busy)
            with pytest.raises(LedgerWriteError):
                run.settle()
        run.cover(STEP)
        run.finish()

        assert len(ledger) == ran + 1

    @pytest.mark.parametrize("covered", [0, 1])
    def test_a_release_without_cover_is_refused(self, ledger, covered) -> None:
        run = ledger.start_run("a")
        for _ in range(covered):
            run.cover(STEP)
            run.released(lambda: STEP.queries)

        with pytest.raises(PrivateTrainingError, match="`released`"):
            run.released(lambda: STEP.queries)

    def test_no_fewer_rounds_are_settled_than_released(self, ledger) -> None:
        run = ledger.start_run("a")
        run.cover(STEP, 5)
        for _ in range(3):
            run.released(lambda: STEP.queries)

        with pytest.raises(ValueError, match="`used`"):
            run.settle(2)
        run.settle(3)
        assert len(ledger) == 3

    def test_threads_lose_no_round_of_the_run(self, ledger) -> None:
        run = ledger.start_run("a", plan=[(STEP, 400)])

        def record() -> None:
            for _ in range(100):
                run.record(STEP.sampling, STEP.queries)

        run_together(record)
        run.finish()

        assert (len(ledger), ledger.runs[0].outcome) == (400, "finished")

    @pytest.mark.parametrize("act", ["settle", "cover"])
    def test_a_thread_waits_for_the_call_of_another(
        self, ledger, act, monkeypatch
    ) -> None:
        """A round that is covered in the middle of a call is counted, too."""
        monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
        run = ledger.start_run("a")
        run._mutex = turns = Turns()
        for _ in range(4):  # Two blocks; the second has room for one more.
            run.cover(STEP)

        def cover() -> None:
            run.cover(STEP)
            turns.go_on.set()

        def in_between() -> None:
            if thread.ident is None:
                thread.start()
                assert turns.go_on.wait(HUNG_SECONDS)

        thread, covered = threading.Thread(target=cover), 5
        if act == "settle":
            measure = run._measure
            run._measure = lambda: [measure(), in_between()]
            run.settle()
        else:
            compared = type("Compared", (Round,), {"__slots__": ()})
            compared.__ne__ = lambda *_: bool(in_between())
            run.cover(compared(STEP.sampling, STEP.queries))
            covered += 1
        thread.join()
        run.finish()

        assert len(ledger) == covered


class Turns:
    """A lock. `go_on` is set once a thread has to wait for it."""

    def __init__(self) -> None:
        self._lock, self.go_on = threading.RLock(), threading.Event()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.go_on.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("planned", lambda run: run.cover(None)),
        ("most", lambda run: run.cover(STEP, most=0)),
        ("most", lambda run: run.cover(STEP, most=3.0)),
        ("plan", lambda run: run.plan([STEP])),
        ("count", lambda run: run.plan([(STEP, 2.5)])),
        ("plan", lambda run: run.plan([(1, 2)])),
    ],
)
def test_a_run_names_the_argument(ledger, argument, call) -> None:
    run = ledger.start_run("a")
    for _ in range(3):  # The next block would have several rounds.
        run.cover(STEP)

    with pytest.raises((TypeError, ValueError), match=f"`{argument}`"):
        call(run)
    run.finish()
    assert ledger.verify().rounds == 3


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("limits", lambda ledger: ledger.start_run("a", limits="all")),
        ("delta", lambda ledger: ledger.start_run("a", delta=1e-5)),
        ("plan", lambda ledger: ledger.start_run("a", plan=[STEP])),
        ("number", lambda ledger: ledger.continue_run(None)),
        ("most", lambda ledger: RunLimits(ledger, account="all", most=2.5)),
    ],
)
def test_no_run_begins_with_a_wrong_argument(ledger, argument, call) -> None:
    open_plan(ledger, "all")
    open_plan(ledger, "other")

    with pytest.raises((TypeError, ValueError), match=f"`{argument}`"):
        call(ledger)
    assert not ledger.runs


@pytest.mark.parametrize("limit", ["target_epsilon", "account", "plan"])
def test_rounds_that_do_not_fit_together_name_their_limit(
    ledger, limit
) -> None:
    epsilon_limit, details = None, RunDetails("a")
    if limit == "account":
        open_plan(ledger)
    if limit == "plan":
        ledger.start_run("a", plan=[(STEP, 10)]).finish("stopped")
        details = GOES_ON
    if limit == "target_epsilon":
        epsilon_limit = EpsilonLimit(PrivacyTarget(1.0, DELTA), ledger)
    with new_run(ledger, details, epsilon_limit=epsilon_limit) as run:
        run.cover(STEP, 6)
        with pytest.raises(BudgetExceededError, match=f"{limit}.*1,000 more"):
            run.cover(STEP, 1_000)

    assert ledger.rounds == ((STEP, 6),)


@pytest.mark.parametrize("limit", ["target_epsilon", "account"])
def test_limits_of_another_ledger_are_refused(ledger, limit) -> None:
    other, target = PrivacyLedger.in_memory(dataset="d"), None
    for each in (ledger, other):
        open_plan(each)
    if limit == "target_epsilon":
        target = EpsilonLimit(PrivacyTarget(8.0, DELTA), other)
    limits = RunLimits(other, epsilon_limit=target)
    other.start_run("b", limits=RunLimits(other))
    run = ledger.start_run("a", limits=limits)

    with pytest.raises(ValueError, match="`limits` must be of the ledger") as e:
        run.cover(STEP)

    assert " object at " not in str(e.value)
    assert len(ledger) == 0


def test_limits_of_ones_own_end_a_run_before_the_round(ledger) -> None:
    class Three(run_writer.Limits):
        is_limited = True

        def allow(self, planned, count, own):
            return run_writer.Allowance(min(count, 3 - own))

    with ledger.start_run("own", limits=Three()) as run:
        for _ in range(3):
            run.cover(STEP)
        with pytest.raises(BudgetExceededError, match="`limits` must"):
            run.cover(STEP)

    assert (len(ledger), ledger.runs[0].outcome) == (3, "budget")


def _busy(handle, *, writing: bool) -> None:
    raise sqlite3.OperationalError("database is locked")
