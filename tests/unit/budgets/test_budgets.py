"""Budgets keep their promise, whoever spends, when, and for what."""

import math

import numpy as np
import pytest

from keras_dp import budgets
from keras_dp.accountants import RDP, Fourier
from keras_dp.budgets.budget import UNITS, units
from keras_dp.errors import (
    BudgetExceededError,
    CalibrationError,
    LedgerIntegrityError,
    LedgerWriteError,
    UnsupportedEventError,
)
from keras_dp.ledger import (
    Account,
    BandedToeplitz,
    Charge,
    CorrelatedSum,
    DisjointBatches,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    Selection,
    TruncatedNegativeBinomial,
    TruncatedPoissonSampling,
)
from keras_dp.ledger.places import connections
from keras_dp.ledger.rows.codec import canonical
from keras_dp.spending import RunLimits
from tests.paying import paying

DELTA = 1e-5


def gaussian(z: float, q: float = 1.0) -> Round:
    sampling = FullDataset() if q == 1.0 else PoissonSampling(q)
    return Round(sampling, (GaussianSum("sum", 1.0, z),))


def row_of(mechanism: str) -> CorrelatedSum:
    strategy = BandedToeplitz((1.0, 0.5))
    return CorrelatedSum("row", 1.0, 8.0, strategy, 10, mechanism)


SUM = (GaussianSum("sum", 1.0, 1.0),)


class TestPrices:
    """Every sequence of rounds that fits the capacity keeps the promise."""

    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
    @pytest.mark.parametrize("seed", range(5))
    def test_rounds_that_fill_a_renyi_filter(self, epsilon, seed) -> None:
        generator = np.random.default_rng(seed)
        budget = budgets.RenyiFilter(epsilon, DELTA)
        spent, rounds = 0, []
        for _ in range(30):
            z = float(generator.uniform(0.7, 8))
            round_ = gaussian(z, float(generator.choice([1.0, 0.01, 0.1])))
            ((_, price),) = budget.prices(round_)
            count = min(50, (budget.capacities[0] - spent) // price)
            if count:
                rounds.append((round_, count))
                spent += count * price

        assert spent > 0.5 * UNITS
        # The best order is a bound for parameters fixed in advance, so that it
        # cannot be above the filter's promise at its own order.
        assert RDP().epsilon(rounds, delta=DELTA) <= epsilon
        assert Fourier().epsilon(rounds, delta=DELTA) <= epsilon

    def test_units_add_up_as_numbers_are_printed(self) -> None:
        assert 10 * units(0.1, 1.0) == UNITS
        assert 3 * units(0.3333333333333333, 1.0) <= UNITS
        assert units(1e-300, 1.0) == 1
        with pytest.raises(BudgetExceededError, match="finite"):
            units(math.inf, 1.0)

    @pytest.mark.parametrize("order", [1.0, 0.5, 1.001, math.inf, math.nan])
    def test_an_order_without_room_is_refused(self, order) -> None:
        with pytest.raises(CalibrationError, match="`order`"):
            budgets.RenyiFilter(1.0, DELTA, order=order)

    @pytest.mark.parametrize(
        "query",
        [
            GaussianSum("bare", 1.0, 0.0),
            GaussianSum("next to bare", 1.0, 5e-324),
            GaussianSum("square underflows", 1.0, 1e-200),
            NonPrivateSum("raw"),
        ],
        ids=lambda query: query.name,
    )
    def test_what_has_no_noise_has_no_price(self, query) -> None:
        with pytest.raises(BudgetExceededError, match="finite"):
            budgets.RenyiFilter(1.0, DELTA).prices(
                Round(FullDataset(), (query,))
            )

    @pytest.mark.parametrize(
        "budget",
        [
            budgets.RenyiFilter(1.0, DELTA),
            budgets.RenyiFilter(1.0, DELTA, 21.0, "replace_one"),
            budgets.FixedPlan([(gaussian(4.0, 0.01), 100)], 1.0, DELTA),
        ],
        ids=lambda budget: budget.kind,
    )
    def test_promises_at_the_delta_of_the_budget(self, budget) -> None:
        assert budget.promise(DELTA) <= 1.0 + 1e-9
        assert budget.promise(DELTA / 10) >= budget.promise(DELTA)


class TestAdaptiveAdversary:
    """Plays the game that breaks filters of privacy loss distributions.

    The first answer has a privacy loss `l`. Then the adversary may ask one
    more question, from a menu that the filter allows. What it gains is
    `delta(epsilon)`, the mean over `l` of the most that any question adds,
    `E[(1 - e^(epsilon - l - l'))_+]`: computed by quadrature.
    """

    EPSILON, DELTA = 2.0, 1e-5
    FIRST = 3.0  # Noise multiplier of the first question.

    @staticmethod
    def gain(z: float, q: float, epsilon: np.ndarray) -> np.ndarray:
        """Returns `E[(1 - e^(epsilon - l'))_+]` of one question."""
        x = np.linspace(-12 * z, 12 * z + 1, 20_001)
        plain = np.exp(-(x**2) / (2 * z**2)) / (z * math.sqrt(2 * math.pi))
        ratio = 1 - q + q * np.exp((2 * x - 1) / (2 * z**2))
        mass = ratio * plain * (x[1] - x[0])
        return np.array(
            [
                np.sum(mass * np.maximum(0, 1 - np.exp(min(e, 700)) / ratio))
                for e in epsilon
            ]
        )

    def played(self, menu) -> float:
        """Returns delta at `EPSILON` of the best adversary with this menu."""
        mu = 1 / self.FIRST
        losses = np.linspace(mu**2 / 2 - 9 * mu, mu**2 / 2 + 9 * mu, 601)
        weights = np.exp(-((losses - mu**2 / 2) ** 2) / (2 * mu**2))
        weights /= weights.sum()
        gains = [np.maximum(0, 1 - np.exp(self.EPSILON - losses))]
        gains += [self.gain(z, q, self.EPSILON - losses) for z, q in menu]
        return float(np.sum(weights * np.max(gains, axis=0)))

    def menu(self, allows) -> list[tuple[float, float]]:
        """Returns the least noise that is allowed at each probability."""
        found = []
        for q in (1.0, 0.3, 0.1, 0.03, 0.01, 0.003):
            low, high = 0.05, 200.0
            for _ in range(40):
                middle = math.sqrt(low * high)
                low, high = (
                    (low, middle) if allows(middle, q) else (middle, high)
                )
            found.append((high, q))
        return found

    @pytest.mark.standard
    def test_the_invalid_filter_is_caught(self) -> None:
        def allows(z: float, q: float) -> bool:
            rounds = [(gaussian(self.FIRST), 1), (gaussian(z, q), 1)]
            return Fourier().delta(rounds, epsilon=self.EPSILON) <= self.DELTA

        menu = self.menu(allows)
        # Each question by itself keeps the target,
        assert max(self.played([each]) for each in menu) <= 1.001 * self.DELTA
        # and the adversary who chooses by the first answer exceeds it.
        assert self.played(menu) > 1.9 * self.DELTA

    @pytest.mark.parametrize("order", [None, 8.0, 20.0])
    def test_a_renyi_filter_is_not(self, order) -> None:
        budget = budgets.RenyiFilter(self.EPSILON, self.DELTA, order)
        ((_, first),) = budget.prices(gaussian(self.FIRST))

        def allows(z: float, q: float) -> bool:
            ((_, price),) = budget.prices(gaussian(z, q))
            return price + first <= UNITS

        assert self.played(self.menu(allows)) <= self.DELTA

    def test_a_plan_is_not(self) -> None:
        """Its menu is what was planned, all of which was paid."""
        questions = [(4.0, 1.0), (1.0, 0.01), (2.0, 0.1)]
        rounds = [(gaussian(self.FIRST), 1)]
        rounds += [(gaussian(z, q), 1) for z, q in questions]
        plan = budgets.FixedPlan(rounds, 50.0, self.DELTA)

        delta = Fourier().delta(plan.rounds, epsilon=self.EPSILON)
        assert self.played(questions) <= delta


def truncated(most, name="sum", scale=1.0):
    return Round(
        TruncatedPoissonSampling(0.1, most, 100),
        (GaussianSum(name, scale, 4.0 * scale),),
    )


class TestPlansOfTruncatedSamples:
    """Their slack is composed with the plan, and paid for with the round."""

    def test_pay_for_the_same_truncation_alone(self) -> None:
        plan = budgets.FixedPlan([(truncated(40), 50)], 2.0, DELTA)
        whole = Round(PoissonSampling(0.1), truncated(40).queries)

        assert plan.prices(truncated(40, "other", 2.0)) == ((0, 1),)
        for other in (truncated(39), truncated(41), whole):
            with pytest.raises(BudgetExceededError, match="one of those in"):
                plan.prices(other)

    def test_of_whole_samples_do_not_pay_for_them(self) -> None:
        whole = Round(PoissonSampling(0.1), truncated(40).queries)
        plan = budgets.FixedPlan([(whole, 50)], 2.0, DELTA)

        with pytest.raises(BudgetExceededError, match="one of those in"):
            plan.prices(truncated(40))


@pytest.fixture
def ledger():
    return PrivacyLedger.in_memory(dataset="d")


def spend(ledger, round_, count, name="a", account=None) -> None:
    run = ledger.start_run(name, limits=RunLimits(ledger, account=account))
    run.record(round_.sampling, round_.queries, count)


class TestAccounts:
    def test_the_only_account_pays(self, ledger) -> None:
        round_ = gaussian(1.0, 0.01)
        budget = budgets.RenyiFilter(1.0, DELTA, order=9.6)
        budgets.open_account(ledger, "all", budget)
        room = ledger.accounts[0].balance.room(
            budgets.charge_of(ledger.accounts[0], round_), 10**9
        )

        spend(ledger, round_, room)
        with pytest.raises(BudgetExceededError):
            spend(ledger, round_, 1)
        budgets.verify_prices(ledger)
        assert Fourier().epsilon(ledger, delta=DELTA) <= 1.0

    def test_one_of_several_is_named(self, ledger) -> None:
        half = budgets.RenyiFilter(0.5, DELTA / 2)
        for name in "ab":
            budgets.open_account(ledger, name, half)

        with pytest.raises(ValueError, match=r"\['a', 'b'\]"):
            budgets.chosen_account(ledger, None)
        for name in ("c", ["a"]):
            with pytest.raises(ValueError, match="`account` must"):
                budgets.chosen_account(ledger, name)
        spend(ledger, gaussian(20.0), 1, account="b")

    def test_a_plan_costs_every_round_that_it_names_or_holds(self) -> None:
        one, other = gaussian(8.0), gaussian(9.0)

        plan = budgets.FixedPlan(
            [(one, 3), (other, 1), (one, 2)],
            9.0,
            DELTA,
            held=[(one, 4), (other, 2), (one, 6)],
        )

        assert plan.capacities == (5, 1)
        assert plan.cost == pytest.approx(
            Fourier().epsilon([(one, 15), (other, 3)], delta=DELTA), rel=1e-6
        )

    def test_a_plan_too_large_is_refused(self) -> None:
        with pytest.raises(BudgetExceededError, match="cost at most"):
            budgets.FixedPlan([(gaussian(1.0), 100)], 1.0, DELTA)

    def test_the_first_account_pays_for_what_is_held(self, ledger) -> None:
        step = gaussian(1.0, 0.01)
        ledger.record(step.sampling, step.queries, 1000)

        with pytest.raises(BudgetExceededError):
            budgets.open_account(ledger, "all", budgets.RenyiFilter(0.5, DELTA))
        budgets.open_account(ledger, "all", budgets.RenyiFilter(3.0, DELTA))
        charge = budgets.charge_of(ledger.accounts[0], step)
        ((_, price),) = charge.prices
        room = ledger.accounts[0].balance.room(charge, 10**9)
        assert room == UNITS // price - 1000

    def test_a_plan_counts_what_is_held(self, ledger) -> None:
        step = gaussian(1.0, 0.01)
        plan = budgets.FixedPlan([(step, 1000)], 3.0, DELTA)
        ledger.record(step.sampling, step.queries, 1000)
        budgets.open_account(ledger, "all", plan)

        found = budgets.guarantee(ledger, delta=DELTA)
        assert not found.is_unconditional
        assert "before an account was opened" in found.theorem
        both = Fourier().epsilon([(step, 2000)], delta=DELTA)
        assert found.claim.epsilon == pytest.approx(both, abs=1e-6)

    def test_groups_need_a_plan(self) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d", rows_per_unit=3)

        with pytest.raises(ValueError, match="rows_per_unit=3"):
            budgets.open_account(ledger, "all", budgets.RenyiFilter(1.0, DELTA))
        plan = budgets.FixedPlan([(gaussian(9.0), 1)], 3.0, DELTA)
        opened = budgets.open_account(ledger, "all", plan)
        assert budgets.budget_of(opened.account).rows_per_unit == 3

    @pytest.mark.parametrize(
        "budget",
        [
            budgets.RenyiFilter(1.0, DELTA, 21.0, "replace_one"),
            budgets.FixedPlan(
                [(gaussian(4.0, 0.01), 100), (gaussian(9.0), 1)], 1.0, DELTA
            ),
        ],
        ids=lambda budget: budget.kind,
    )
    def test_a_budget_comes_back_from_the_ledger(self, ledger, budget) -> None:
        budgets.open_account(ledger, "all", budget)

        assert budgets.budget_of(ledger.accounts[0].account) == budget

    def test_a_price_that_is_too_low_is_found(self, ledger) -> None:
        opened = budgets.open_account(
            ledger, "all", budgets.RenyiFilter(1.0, DELTA)
        )
        run = paying(ledger, "all", Charge(opened.number, ((0, 1),)))
        step = gaussian(1.0, 0.01)
        run.record(step.sampling, step.queries)

        ledger.verify()
        with pytest.raises(LedgerIntegrityError, match="paid"):
            budgets.verify_prices(ledger)

    def test_another_runs_account_is_found(self, ledger, monkeypatch) -> None:
        """As another program could write it; a run refuses the charge."""
        for name in "ab":
            budgets.open_account(
                ledger, name, budgets.RenyiFilter(0.5, DELTA / 2)
            )
        step = gaussian(20.0)
        run = paying(ledger, "a", budgets.charge_of(ledger.accounts[1], step))
        with pytest.raises(ValueError, match="`charge`"):
            run.record(step.sampling, step.queries)
        monkeypatch.setattr(type(run), "_check_price", lambda *_: None)
        run.record(step.sampling, step.queries)

        with pytest.raises(LedgerIntegrityError, match="not its account"):
            budgets.verify_prices(ledger)


def unchecked(ledger, name, budget) -> None:
    """Opens an account as a ledger may hold it that was never checked."""
    terms = canonical(budget.terms())
    ledger.open_account(Account(name, budget.capacities, terms))


class TestAMechanism:
    """All of its rows have one cost, which a plan pays as a whole."""

    ROW = Round(FullDataset(), (row_of("one"),))

    def test_leaves_nothing_for_another(self, ledger) -> None:
        """Three rows each of two mechanisms cost two of them."""
        plan = budgets.FixedPlan([(self.ROW, 10)], 20.0, DELTA)
        budgets.open_account(ledger, "a", plan)
        spend(ledger, self.ROW, 3, "a", account="a")

        other = Round(FullDataset(), (row_of("other"),))
        with pytest.raises(BudgetExceededError, match="one of those in"):
            spend(ledger, other, 3, "b", account="a")

    def test_is_no_round_of_a_filter(self, ledger) -> None:
        budgets.open_account(ledger, "a", budgets.RenyiFilter(9.0, DELTA))

        with pytest.raises(UnsupportedEventError, match="with a FixedPlan"):
            spend(ledger, self.ROW, 1, "a", account="a")


class TestAMechanismOfTwoAccounts:
    """All of its rounds have one cost, so that one account pays for them."""

    def plan(self, name="tree", count=10):
        round_ = Round(FullDataset(), (row_of(name),))
        return budgets.FixedPlan([(round_, count)], 20.0, DELTA / 2)

    def test_is_refused(self, ledger) -> None:
        budgets.open_account(ledger, "a", self.plan())

        with pytest.raises(ValueError, match=r"trees \['tree'\]"):
            budgets.open_account(ledger, "b", self.plan())
        budgets.open_account(ledger, "b", self.plan("other"))
        budgets.verify_prices(ledger)

    def test_is_refused_if_it_began_before_them(self, ledger) -> None:
        ledger.record(FullDataset(), (row_of("tree"),))
        budgets.open_account(ledger, "a", self.plan("other"))

        with pytest.raises(ValueError, match="`budget` must plan trees"):
            budgets.open_account(ledger, "b", self.plan())

    def test_counts_as_one_where_a_ledger_has_it(self, ledger) -> None:
        """Two mechanisms are what the promises are for, as a control."""
        for name in "ab":
            unchecked(ledger, name, self.plan())
        spend(ledger, self.plan().rounds[0].round, 10, "a", account="a")

        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.claim.epsilon >= Fourier().epsilon(ledger, delta=DELTA)
        assert "plans for one tree" in found.theorem
        with pytest.raises(LedgerIntegrityError, match="plans for one tree"):
            budgets.verify_prices(ledger)


def test_a_filter_cannot_hold_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="`held` must"):
        budgets.RenyiFilter(1.0, DELTA, held=-UNITS)


class TestAnAccountThatWasOpenedLater:
    @pytest.mark.parametrize("ran", [False, True])
    def test_may_have_been_chosen_by_answers(self, ledger, ran) -> None:
        """Two accounts from before the first answers, as a control."""
        filter_ = budgets.RenyiFilter(1.0, DELTA)
        budgets.open_account(ledger, "first", filter_)
        if ran:
            spend(ledger, gaussian(40.0), 1, account="first")
        budgets.open_account(ledger, "second", filter_)
        spend(ledger, gaussian(40.0), 1, "b", account="second")

        found = budgets.guarantee(ledger, delta=2 * DELTA)
        assert found.claim.epsilon == pytest.approx(2.0)
        assert found.is_unconditional == (not ran)
        assert ("as if fixed in advance" in found.theorem) == ran


class TestRoundsWhileAnAccountIsOpened:
    """They are held by the account, or they do not run."""

    STEP = gaussian(1.0, 0.1)

    def test_wait_and_are_refused(self, address, monkeypatch) -> None:
        monkeypatch.setattr(connections, "BUSY_SECONDS", 0.0)
        check_held = budgets.RenyiFilter.check_held

        def while_held_is_counted(self, held):
            with pytest.raises(LedgerWriteError, match="opened for writing"):
                PrivacyLedger.open(address)
            return check_held(self, held)

        with PrivacyLedger.open(address, dataset="d") as ledger:
            ledger.record(self.STEP.sampling, self.STEP.queries, 10)
            monkeypatch.setattr(
                budgets.RenyiFilter, "check_held", while_held_is_counted
            )
            budgets.open_account(ledger, "all", budgets.RenyiFilter(8.0, DELTA))
            with pytest.raises(LedgerWriteError, match="must pay for every"):
                ledger.record(self.STEP.sampling, self.STEP.queries, 140)

            assert len(ledger) == 10
            budgets.verify_prices(ledger)
            found = budgets.guarantee(ledger, delta=DELTA)
            assert found.basis == "account"
            assert found.ex_post.epsilon < found.claim.epsilon <= 8.0 + 1e-9

    @pytest.mark.parametrize("more", [0, 1, 140])
    @pytest.mark.parametrize(
        "make",
        [
            lambda step: budgets.RenyiFilter(8.0, DELTA),
            lambda step: budgets.FixedPlan([(step, 1)], 8.0, DELTA),
        ],
    )
    def test_that_were_not_held_count(self, ledger, make, more) -> None:
        """An account that was decided on before, as a control."""
        ledger.record(self.STEP.sampling, self.STEP.queries, 10)
        budget = make(self.STEP).check_held(ledger.rounds)
        if more:
            ledger.record(self.STEP.sampling, self.STEP.queries, more)
        unchecked(ledger, "all", budget)
        spend(ledger, self.STEP, 1)

        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.claim.epsilon >= Fourier().epsilon(ledger, delta=DELTA)
        if not more:
            assert found.basis == "account"
            budgets.verify_prices(ledger)
            return
        assert found.basis == "as if fixed"
        assert "no account paid for" in found.theorem
        with pytest.raises(LedgerIntegrityError, match="no account paid for"):
            budgets.verify_prices(ledger)

    def test_that_are_reserved_may_run_less_often(self, ledger) -> None:
        block = ledger.start_run("a")
        block.cover(Round(self.STEP.sampling, self.STEP.queries), 10)
        budgets.open_account(ledger, "all", budgets.RenyiFilter(8.0, DELTA))
        block.settle(3)

        budgets.verify_prices(ledger)
        assert budgets.guarantee(ledger, delta=DELTA).basis == "account"

    def test_that_cost_more_than_was_promised_count(self, ledger) -> None:
        """By prices that are too low, which `verify` names."""
        opened = budgets.open_account(
            ledger, "all", budgets.RenyiFilter(1.0, DELTA)
        )
        run = paying(ledger, "all", Charge(opened.number, ((0, 1),)))
        run.record(self.STEP.sampling, self.STEP.queries, 100)

        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.basis == "as if fixed"
        assert found.claim.epsilon == Fourier().epsilon(ledger, delta=DELTA)


class TestGuarantee:
    STEP = gaussian(4.0, 0.01)

    def run(self, ledger, planned, ran, name="a", outcome="finished"):
        run = ledger.start_run(name)
        if planned:
            run.plan([(self.STEP, planned)])
        if ran:
            run.record(self.STEP.sampling, self.STEP.queries, ran)
        run.finish(outcome)
        return run

    def epsilon(self, count) -> float:
        return Fourier().epsilon([(self.STEP, count)], delta=DELTA)

    def test_a_plan_that_stopped_early_costs_the_plan(self, ledger) -> None:
        self.run(ledger, 1000, 400, outcome="stopped")

        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.claim.epsilon == self.epsilon(1000)
        assert found.ex_post.epsilon == self.epsilon(400)
        assert "ex post" in found.sentences("patient")[-1]

    def test_a_plan_after_the_first_round_is_none(self, ledger) -> None:
        run = ledger.start_run("a")
        run.record(self.STEP.sampling, self.STEP.queries)
        run.plan([(self.STEP, 10)])

        assert budgets.guarantee(ledger, delta=DELTA).basis == "as if fixed"

    @pytest.mark.parametrize(
        ("second_plan", "basis", "counted"),
        [
            ("before", "plans", 1000),
            ("after an answer", "as if fixed", 1000),
            ("never", "as if fixed", 800),
        ],
    )
    def test_plans_hold_together_if_all_came_before_an_answer(
        self, ledger, second_plan, basis, counted
    ) -> None:
        first, second = (ledger.start_run(name) for name in "ab")
        first.plan([(self.STEP, 500)])
        if second_plan == "before":
            second.plan([(self.STEP, 500)])
        first.record(self.STEP.sampling, self.STEP.queries, 300)
        if second_plan == "after an answer":
            second.plan([(self.STEP, 500)])
        second.record(self.STEP.sampling, self.STEP.queries, 300)

        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.basis == basis
        assert found.is_unconditional == (basis == "plans")
        assert found.claim.epsilon == self.epsilon(counted)

    def test_a_clip_that_adapts_keeps_to_its_plan(self, ledger) -> None:
        run = ledger.start_run("a")
        run.plan([(self.STEP, 20)])
        for clip in np.geomspace(0.1, 10, 20):
            query = GaussianSum("sum", float(clip), float(4 * clip))
            run.record(self.STEP.sampling, (query,))

        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.basis == "plan"
        assert found.claim.epsilon == self.epsilon(20)

    @pytest.mark.parametrize(
        "part_of",
        [
            lambda name: Round(DisjointBatches(name), SUM),
            lambda name: Round(FullDataset(), (row_of(name),)),
        ],
        ids=["epoch", "mechanism"],
    )
    @pytest.mark.parametrize("another", [False, True])
    def test_each_part_is_used_once(self, ledger, part_of, another) -> None:
        """A second one, in the place of what is left, as a control."""
        run = ledger.start_run("a")
        run.plan([(part_of("planned"), 10)])
        first = part_of("planned")
        run.record(first.sampling, first.queries, 5)
        if another:
            second = part_of("another")
            run.record(second.sampling, second.queries, 10)

        found = budgets.guarantee(ledger, delta=DELTA)
        assert (found.basis == "plan") == (not another)
        relation = found.claim.neighbours
        ran = Fourier().epsilon(ledger, delta=DELTA, neighbours=relation)
        assert found.claim.epsilon >= ran

    def test_two_runs_cannot_share_what_one_has_planned(self, ledger) -> None:
        """Each run keeps to its plan, and together they do not."""
        runs = [ledger.start_run(name) for name in "ab"]
        for run in runs:
            run.plan([(Round(DisjointBatches("both"), SUM), 5)])
        for run in runs:
            run.record(DisjointBatches(f"epoch {run.number}"), SUM, 5)

        found = budgets.guarantee(ledger, delta=DELTA)
        assert found.basis == "as if fixed"
        assert found.claim.epsilon == Fourier().epsilon(ledger, delta=DELTA)


class TestASearch:
    """An account pays for a search as for one round."""

    RELEASE = Round(FullDataset(True), (GaussianSum("all", 1.0, 9.0),))
    SEARCH = Selection([[(RELEASE, 3)]], TruncatedNegativeBinomial(1, 5)).round

    def test_is_planned_beside_other_rounds(self, ledger) -> None:
        rounds = [(self.SEARCH, 1), (self.RELEASE, 4)]
        plan = budgets.FixedPlan(rounds, 5.0, DELTA)
        budgets.open_account(ledger, "all", plan)

        spend(ledger, self.SEARCH, 1)
        spend(ledger, self.RELEASE, 4)
        # Another search was not planned.
        with pytest.raises(BudgetExceededError):
            spend(ledger, self.SEARCH, 1)

        budgets.verify_prices(ledger)
        assert [*ledger.rounds] == rounds
        assert plan.cost == Fourier().epsilon(ledger, delta=DELTA)

    def test_is_paid_by_its_moments(self, ledger) -> None:
        budget = budgets.RenyiFilter(4.0, DELTA, order=6.0)
        budgets.open_account(ledger, "all", budget)

        spend(ledger, self.SEARCH, 1)

        budgets.verify_prices(ledger)
        (search, release) = (
            budget.prices(each)[0][1] for each in (self.SEARCH, self.RELEASE)
        )
        assert search > 5 * release
