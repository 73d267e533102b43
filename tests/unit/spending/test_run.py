"""A run of a training, without the training: rooms, races, and ends."""

import os

import pytest

from keras_dp import budgets
from keras_dp.errors import (
    BudgetExceededError,
    LedgerError,
    LedgerWriteError,
)
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.spending import recording
from keras_dp.spending.epsilon_limit import EpsilonLimit, PrivacyTarget
from keras_dp.spending.recording import RoundRecorder
from keras_dp.spending.run import RunDetails, TrainingRun
from tests.ledger_faults import start_fork

DELTA = 1e-5
STEP = Round(PoissonSampling(0.1), (GaussianSum("gradients", 1.0, 4.0),))
OTHER = Round(FullDataset(), (GaussianSum("mean", 1.0, 20.0),))
PROCESSES, CAPACITY = 8, 500


@pytest.fixture
def ledger() -> PrivacyLedger:
    return PrivacyLedger.in_memory(dataset="d")


def open_plan(ledger, name: str = "all", count: int = 10) -> None:
    budget = budgets.FixedPlan([(STEP, count)], 8.0, DELTA)
    budgets.open_account(ledger, name, budget)


def recorder_of(run: TrainingRun, adapts=lambda: False) -> RoundRecorder:
    return RoundRecorder(
        run, lambda: STEP, events_of=lambda _: STEP.queries, adapts=adapts
    )


def train(recorder: RoundRecorder, rounds: int) -> int:
    """Runs rounds until there is no room, as a loop does; returns how many."""
    for ran in range(rounds):
        if recorder.is_exhausted:
            return ran
        try:
            recorder.cover()
        except BudgetExceededError:  # The room went since the question.
            assert recorder.ran_out
            return ran
        recorder.released(None)
    return rounds


class TestARace:
    """Another training is faster, between the question and the answer."""

    def test_for_a_part_of_the_room_leaves_the_rest(self, ledger) -> None:
        open_plan(ledger, count=10)
        other = TrainingRun(ledger, RunDetails("other"))

        class Late(TrainingRun):
            def room(self, planned, count):
                found = super().room(planned, count)
                if not other_blocks:
                    other_blocks.append(other.reserve(STEP, 7, None))
                return found

        other_blocks: list = []
        block = Late(ledger).reserve(STEP, 10, None)

        assert (other_blocks[0].count, block.count) == (7, 3)
        assert ledger.accounts[0].balance.spent == (10,)

    def test_for_all_of_it_is_refused_before_anything_ran(self, ledger) -> None:
        open_plan(ledger, count=10)
        other = TrainingRun(ledger, RunDetails("other"))

        class Late(TrainingRun):
            def room(self, planned, count):
                found = super().room(planned, count)
                if found:
                    other.reserve(STEP, 10, None)
                return found

        late = Late(ledger)
        with pytest.raises(BudgetExceededError, match=r"'all'.*No round ran"):
            late.reserve(STEP, 4, None)

        assert len(ledger) == 10

    def test_in_the_middle_ends_it_with_its_last_block(self, ledger) -> None:
        open_plan(ledger, count=10)
        run = TrainingRun(ledger, most=10)
        recorder = recorder_of(run, adapts=lambda: True)
        assert train(recorder, 4) == 4
        TrainingRun(ledger, RunDetails("other")).reserve(STEP, 5, None)

        assert train(recorder, 6) == 1
        recorder.end()

        own = ledger.runs[0]
        assert (own.outcome, len(own)) == ("budget", 5)
        assert sum(count for _, count in own.plan) == 10

    def test_by_a_round_that_was_not_planned_is_no_end(self, ledger) -> None:
        """It was released, and no account has room for it: an error."""
        open_plan(ledger, count=2)
        recorder = RoundRecorder(
            TrainingRun(ledger), lambda: STEP, events_of=lambda _: OTHER.queries
        )
        recorder.cover()

        with pytest.raises(BudgetExceededError, match="in the plan"):
            recorder.released(None)
        assert not recorder.ran_out


class TestALedgerThatIsClosed:
    def test_stops_before_the_next_round(self, tmp_path) -> None:
        ledger = PrivacyLedger.open(tmp_path / "l.db", dataset="d")
        recorder = recorder_of(TrainingRun(ledger, most=9), lambda: True)
        train(recorder, 2)
        ledger.close()

        with pytest.raises(LedgerWriteError, match="The ledger is closed"):
            recorder.cover()
        with pytest.raises(LedgerError, match="The ledger is closed"):
            recorder.end(failed=True)
        with PrivacyLedger.open(tmp_path / "l.db") as again:
            (own,) = again.runs
            # The third round may have run, for all that the ledger knows.
            assert (own.outcome, len(own)) == (None, 2)

    def test_ends_a_run_of_batches_without_a_word(self, tmp_path) -> None:
        ledger = PrivacyLedger.open(tmp_path / "l.db", dataset="d")
        run = TrainingRun(ledger)
        run.reserve(STEP, 1, None)
        ledger.close()

        run.abandon()

        with PrivacyLedger.open(tmp_path / "l.db") as again:
            assert again.runs[0].outcome is None


class TestAnAccountThatIsOpenedMeanwhile:
    def test_stops_a_training_without_one(self, ledger) -> None:
        run = TrainingRun(ledger, most=9)
        recorder = recorder_of(run, adapts=lambda: True)
        train(recorder, 3)
        open_plan(ledger)

        with pytest.raises(LedgerWriteError, match="must be started again"):
            recorder.cover()
        recorder.end(failed=True)

        assert (ledger.runs[0].outcome, len(ledger)) == ("failed", 3)

    def test_beside_its_own_changes_nothing(self, ledger) -> None:
        open_plan(ledger)
        recorder = recorder_of(TrainingRun(ledger, most=5), lambda: True)
        train(recorder, 2)
        open_plan(ledger, "second")

        assert train(recorder, 3) == 3
        recorder.end()

        assert ledger.runs[0].outcome == "finished"
        first, second = ledger.accounts
        assert (first.balance.spent, second.balance.spent) == ((5,), (0,))


class TestAnInterruptedRun:
    @pytest.mark.parametrize(
        ("library", "continues"),
        [("other 1.0", True), ("other 1.1", True), ("", False)],
    )
    def test_goes_on_in_the_library_in_which_it_began(
        self, ledger, library, continues
    ) -> None:
        begun = recorder_of(TrainingRun(ledger, library="other 1.0", most=10))
        begun.cover()
        begun.released(None)
        begun.end()
        details = RunDetails(continues=1)

        if not continues:
            with pytest.raises(ValueError, match="of the same library"):
                TrainingRun(ledger, details, library=library)
            return
        recorder = recorder_of(TrainingRun(ledger, details, library=library))
        assert train(recorder, 20) == 9
        recorder.end()

        (run,) = ledger.runs
        assert (run.outcome, len(run)) == ("finished", 10)
        assert run.start.library == library


class TestAnUnknownNumberOfRounds:
    def test_has_no_plan_and_finishes(self, ledger) -> None:
        recorder = recorder_of(TrainingRun(ledger))
        train(recorder, 7)
        recorder.end()

        (own,) = ledger.runs
        assert (own.plan, own.outcome, len(own)) == (None, "finished", 7)
        found = budgets.guarantee(ledger, delta=DELTA)
        assert (found.basis, found.ex_post) == ("as if fixed", None)

    def test_is_bounded_by_a_target(self, ledger) -> None:
        limit = EpsilonLimit(PrivacyTarget(1.0, DELTA), ledger)
        recorder = recorder_of(TrainingRun(ledger, limit=limit))
        ran = train(recorder, 10**6)
        recorder.end()

        (own,) = ledger.runs
        assert (own.plan, own.outcome, len(own)) == (None, "budget", ran)
        assert 1 < ran < 10**4

    def test_that_is_learnt_before_the_first_round_is_planned(
        self, ledger
    ) -> None:
        run = TrainingRun(ledger)
        run.expect(5)
        recorder = recorder_of(run)
        train(recorder, 5)
        recorder.end()

        assert [count for _, count in ledger.runs[0].plan] == [5]


def test_eight_processes_share_an_account(address, monkeypatch) -> None:
    """None overspends, all of it is spent, and each says why it stopped."""
    monkeypatch.setattr(recording, "LARGEST_BLOCK", 5)
    with PrivacyLedger.open(address, dataset="d") as ledger:
        open_plan(ledger, count=CAPACITY)
    gate, opener = os.pipe()
    counts, result = os.pipe()

    def trains(number: int) -> bool:
        os.close(opener)
        os.read(gate, 1)  # Returns when the parent closes its end.
        with PrivacyLedger.open(address) as ledger:
            details = RunDetails(str(number))
            run = TrainingRun(ledger, details, most=CAPACITY + 1)
            # Half of them reserve one round at a time.
            recorder = recorder_of(run, lambda: bool(number % 2))
            ran = train(recorder, CAPACITY + 1)
            recorder.end()
        os.write(result, f"{number} {ran}\n".encode())
        return True

    children = [
        start_fork(lambda number=number: trains(number))
        for number in range(PROCESSES)
    ]
    os.close(opener)
    os.close(result)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * PROCESSES
    with os.fdopen(counts) as lines:
        ran = dict(map(int, line.split()) for line in lines)

    with PrivacyLedger.open(address, mode="r") as ledger:
        assert len(ledger) == CAPACITY
        assert ledger.unsettled == 0
        assert ledger.accounts[0].balance.spent == (CAPACITY,)
        runs = {int(run.name): run for run in ledger.runs}
        assert {number: len(run) for number, run in runs.items()} == {
            number: n for number, n in ran.items() if n or number in runs
        }
        assert {run.outcome for run in runs.values()} == {"budget"}
        budgets.verify_prices(ledger)
        assert ledger.verify().rounds == CAPACITY
        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.basis == "account"
    os.close(gate)
