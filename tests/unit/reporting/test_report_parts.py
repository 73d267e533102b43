"""A report says who spent what, by which theorem, and whether to believe it."""

import math
import re

import pytest

from keras_dp import budgets
from keras_dp.accountants import Fourier, replay
from keras_dp.accountants.normalize.mechanisms import Exposure, Threshold
from keras_dp.accountants.replay import tightest
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PoissonUserSampling,
    PrivacyLedger,
    Round,
    ThresholdedSum,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.ledger.rows import author as author_module
from keras_dp.reporting import account_states, make_report, run_costs
from keras_dp.reporting.explanation import bound_on_attacks
from keras_dp.spending import RunLimits

DELTA = 1e-5
STEP = Round(
    PoissonSampling(0.01, drawn_by_library=True),
    (GaussianSum("gradients", 1.0, 1.1),),
)
MEAN = Round(FullDataset(True), (GaussianSum("mean", 1.0, 20.0),))


def exact(*rounds):
    return Fourier().epsilon([*rounds], delta=DELTA)


def many_runs(size, kinds):
    """Returns a ledger of runs, and what each costs alone."""
    ledger, own = PrivacyLedger.in_memory(dataset="d"), []
    for index in range(size):
        noise = 20.0 + 0.01 * (index % kinds)
        query = GaussianSum("mean", 1.0, noise)
        with ledger.start_run(f"run {index}") as run:
            run.record(FullDataset(True), (query,), 3)
        own.append(exact((Round(FullDataset(True), (query,)), 3)))
    return ledger, own


@pytest.fixture
def asked(monkeypatch):
    """Returns a list of all rounds for which an accountant was asked."""
    found = []

    def counting(rounds):
        found.append(rounds)
        return tightest(rounds)

    monkeypatch.setattr(replay, "tightest", counting)
    return found


@pytest.fixture
def ledger():
    """Holds a statistic and a training that was stopped after its plan."""
    found = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    with found.start_run("means", purpose="statistics") as run:
        run.plan([(MEAN, 1)])
        run.record(MEAN.sampling, MEAN.queries)
    run = found.start_run("training", description="the second")
    run.plan([(STEP, 1000)])
    run.record(STEP.sampling, STEP.queries, 400)
    run.finish("stopped")
    return found


@pytest.fixture
def divided():
    """Holds two accounts, of which one is spent in part."""
    found = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    for name, budget in (
        ("research", budgets.RenyiFilter(4.0, 5e-6)),
        ("means", budgets.FixedPlan([(MEAN, 4)], 1.0, 1e-6)),
    ):
        budgets.open_account(found, name, budget)
    with found.start_run(
        "first", limits=RunLimits(found, account="means")
    ) as run:
        run.record(MEAN.sampling, MEAN.queries, 3)
    return found


class TestRuns:
    def test_cost_their_plan_and_add_up_by_composition(self, ledger) -> None:
        means, training = run_costs(ledger, delta=DELTA)

        assert means.epsilon == means.total_epsilon
        assert means.epsilon == pytest.approx(exact((MEAN, 1)), rel=1e-6)
        assert training.epsilon == exact((STEP, 1000))
        assert training.total_epsilon == exact((MEAN, 1), (STEP, 1000))
        assert (training.planned, len(training.run)) == (1000, 400)
        assert (means.state, training.state) == ("finished", "stopped")

    def test_without_a_bound_are_infinite(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        ledger.record(FullDataset(), [NonPrivateSum("loss")])

        (cost,) = run_costs(ledger, delta=DELTA)

        assert (cost.epsilon, cost.as_dict()["epsilon"]) == (math.inf, "inf")
        assert cost.name == "rounds without a run"

    def test_that_are_many_have_totals_that_hold(self, asked) -> None:
        """Those of the last runs, which a report shows, are exact.

        Others are those of a run by which there are 1.4 times as many: 20 steps
        lead to 500 runs.
        """
        ledger, _ = many_runs(500, kinds=3)

        costs = run_costs(ledger, delta=DELTA)

        assert len(asked) <= 3 + 40
        totals = [each.total_epsilon for each in costs]
        assert totals == sorted(totals)
        for index in (0, 7, 24, 123, 479, *range(480, 500)):
            runs = costs[: index + 1]
            rounds = [pair for each in runs for pair in each.run.rounds]
            true = exact(*rounds)
            assert totals[index] >= true * (1 - 1e-9)
            most = 1 + 1e-9 if index >= 480 else 1.3
            assert totals[index] <= most * true


class TestAccounts:
    def test_a_filter_counts_in_rounds_like_the_last(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        account = budgets.open_account(
            ledger, "all", budgets.RenyiFilter(3.0, DELTA)
        )
        charges = [budgets.charge_of(account, each) for each in (STEP, MEAN)]
        with ledger.start_run("a", limits=RunLimits(ledger)) as run:
            for each in (STEP, MEAN):
                run.record(each.sampling, each.queries)

        (state,) = account_states(ledger)

        room = [state.record.balance.room(each, 10**9) for each in charges]
        assert room[0] != room[1]
        assert state.left == f"room for {room[1]:,} rounds like the last"

    def test_promise_what_is_explained(self, divided) -> None:
        """The line to publish and the limits of attacks are of one promise."""
        held = replay.Replay(divided)
        found = budgets.guarantee(held, delta=DELTA)
        curve = bound_on_attacks(held, found)

        assert found.claim.accountant == "the accounts"
        assert (found.claim.epsilon, DELTA) in zip(
            curve.epsilons, curve.deltas, strict=True
        )

    def test_of_a_filter_limit_attacks_at_every_delta(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        budget = budgets.RenyiFilter(3.0, DELTA)
        budgets.open_account(ledger, "all", budget)

        held = replay.Replay(ledger)
        curve = bound_on_attacks(held, budgets.guarantee(held, delta=DELTA))

        for epsilon, delta in zip(curve.epsilons, curve.deltas, strict=True):
            if delta < 1:
                assert epsilon == max(0.0, budget.promise(delta))
        assert len(curve.epsilons) > 5


class TestCautions:
    @pytest.mark.parametrize(("delta", "is_said"), [(0.1, True), (1e-5, False)])
    def test_say_that_few_units_make_delta_large(self, delta, is_said) -> None:
        """Two or three records have a default of 0.1 and more."""
        ledger = PrivacyLedger.in_memory(dataset="clinic")
        ledger.record(FullDataset(True), [GaussianSum("ages", 1.0, 4.0)])

        found = make_report(ledger, delta=delta).facts["cautions"]

        assert any("Delta is 0.1" in each for each in found) == is_said

    def cautions(self, ledger) -> str:
        return "\n".join(make_report(ledger, delta=DELTA).facts["cautions"])

    def test_there_are_none_for_a_plan_of_examples(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")
        with ledger.start_run("a") as run:
            run.plan([(STEP, 3)])
            run.record(STEP.sampling, STEP.queries, 3)

        assert self.cautions(ledger) == ""

    def test_name_what_the_theorem_takes_for_granted(self, ledger) -> None:
        found = self.cautions(ledger)

        assert "ask the people who made the runs" in found
        assert "Publish the first one" in found
        assert "one patient has at most 1 row" in found

    @pytest.mark.parametrize(
        ("whole", "of_rows", "summary", "caution"),
        [
            (
                0,
                3,
                "(one row each, as declared)",
                "one user has at most 1 row ",
            ),
            (3, 0, "(with all its rows)", "drawn with all of its rows. To "),
            (
                3,
                2,
                "(with all its rows in 3 rounds, else one row each, as",
                "3 rounds drew each user with all of its rows, and 2 rounds "
                "took each row for one.",
            ),
        ],
    )
    def test_tell_users_that_are_drawn_from_rows(
        self, whole, of_rows, summary, caution
    ) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d", unit="user")
        if whole:
            ledger.record(PoissonUserSampling(0.1), STEP.queries, whole)
        if of_rows:
            ledger.record(PoissonSampling(0.1), STEP.queries, of_rows)

        report = make_report(ledger, delta=DELTA, accountants=())

        assert summary in report.parts[1].sentences[0]
        assert caution in report.facts["cautions"][-1]
        ending = "of units with all their rows" in str(report)
        assert ending == bool(whole)

    def test_name_sampling_seeds_and_sums_without_noise(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d", unit="microbatch")
        ledger.record(PoissonSampling(0.1), STEP.queries, 2)
        ledger.record(UnverifiedSampling(), STEP.queries, 3, seeded=True)
        ledger.record(FullDataset(True), [NonPrivateSum("loss")], 4)
        words = ThresholdedSum("words", 1.0, 1.0, 1, 5.0)
        ledger.record(FullDataset(True), [words], 2)

        found = self.cautions(ledger)

        for text in (
            "4 rounds released a sum without noise",
            "up to 6.4e-05 of delta pays for that",  # 6.334e-5, rounded up.
            "The sampling of 3 rounds was not verified",
            "The sampling of 2 rounds is as somebody declared it",
            "3 rounds had a seed that the caller chose",
            "The unit is a microbatch",
        ):
            assert text in found

    @pytest.mark.parametrize("rows", [1, 5])
    def test_say_that_truncation_counts_for_each_row(self, rows) -> None:
        ledger = PrivacyLedger.in_memory(
            dataset="d", unit="patient", rows_per_unit=rows
        )
        sampling = TruncatedPoissonSampling(0.01, 20, 1000, True)
        ledger.record(sampling, STEP.queries)

        found = self.cautions(ledger)

        assert "Samples were truncated" in found
        assert ("for 5 records of one unit it is more" in found) == (rows == 5)

    def test_count_what_thresholds_let_through_for_all_rows(self) -> None:
        """A key that five records of a unit hold passes more often."""
        ledger = PrivacyLedger.in_memory(
            dataset="d", unit="patient", rows_per_unit=5
        )
        words = ThresholdedSum("words", 1.0, 5.0, 10, 25.0)
        ledger.record(FullDataset(True), [words])
        exposure = Exposure(
            ((Threshold(1.0, 5.0, 10, 25.0),),), records=5
        ).chance

        found = self.cautions(ledger)

        assert "what 5 records of one unit hold alone" in found
        shown = float(re.search(r"up to (\S+) of delta", found)[1])
        assert exposure <= shown < 1.1 * exposure

    def test_say_if_the_process_runs_or_died(self, ledger, monkeypatch) -> None:
        block = ledger.start_run("night")
        block.cover(Round(STEP.sampling, STEP.queries), 7)
        running = self.cautions(ledger)
        monkeypatch.setattr(author_module, "_start_of", lambda process: "other")
        died = self.cautions(ledger)

        reserved = "counts 7 rounds that the process of run 3 (night) reserved"
        assert f"{reserved}. It is running" in running
        assert f"{reserved} and did not settle before it died" in died
        facts = make_report(ledger, delta=DELTA).facts
        assert facts["runs"][-1]["state"] == "died"
