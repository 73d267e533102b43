"""What counts of a ledger towards a target, and which runs may go on."""

from keras_dp import budgets
from keras_dp.budgets import chosen_account
from keras_dp.ledger import GaussianSum, PoissonSampling, PrivacyLedger, Round
from keras_dp.recipes.held_rounds import HeldRounds, interrupted_runs, refunded
from keras_dp.spending import PrivacyTarget, RunDetails, RunLimits

STEP = Round(PoissonSampling(0.01, True), (GaussianSum("g", 1.0, 1.0),))


def interrupted(ledger, name, account=None, **more):
    """Leaves a run that ran 10 of the 40 rounds of its plan."""
    limits = None
    if account is not None:
        limits = RunLimits(ledger, account=account)
    run = ledger.start_run(name, limits=limits, **more)
    run.plan([(STEP, 40)])
    run.record(STEP.sampling, STEP.queries, 10)
    run.finish("stopped")


def test_all_that_was_planned_counts() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")
    interrupted(ledger, "first")
    target = PrivacyTarget(3.0, 1e-5)

    held = HeldRounds.of(ledger, target)
    before = HeldRounds.of(ledger, target, before=ledger.runs[0])

    assert (len(ledger), held.rounds) == (10, ((STEP, 40),))
    assert before.rounds == ()


def test_runs_go_on_for_the_account_that_paid_them() -> None:
    """The rounds that ran are paid already: a training takes the others."""
    ledger = PrivacyLedger.in_memory(dataset="d")
    for name in "ab":
        budgets.open_account(ledger, name, budgets.RenyiFilter(3.0, 1e-5))
    interrupted(ledger, "first", "a")
    interrupted(ledger, "second", "b")
    interrupted(ledger, "third", "a", library="other 1.0")
    account = chosen_account(ledger, "b")

    (run,) = interrupted_runs(ledger, RunDetails(), account)

    assert run.name == "second"
    assert not [*interrupted_runs(ledger, RunDetails("first"), account)]
    assert account.balance.spent > refunded(account, run).balance.spent == (0,)
