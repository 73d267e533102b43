"""What a ledger promises is never below what ran, by brute force.

The rounds are Gaussian sums without amplification. So all that ran is one
Gaussian release, whose sensitivity is the most over all the ways in which one
record can take part. This file enumerates them, and shares no code with the
accountants.
"""

import contextlib
import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
import scipy

from keras_dp import budgets
from keras_dp.errors import BudgetExceededError, UnsupportedEventError
from keras_dp.ledger import (
    Account,
    DisjointBatches,
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
    UnverifiedSampling,
)
from keras_dp.ledger.rows.codec import canonical
from keras_dp.reporting.run_costs import run_costs
from keras_dp.spending import RunLimits

DELTA = 1e-5


def true_epsilon(rounds, neighbours) -> float:
    """Returns the epsilon of one release with the largest sensitivity."""
    every = [each for each, count in rounds for _ in range(count)]
    samplings = {each.sampling for each in every}
    if neighbours == "add_or_remove_one" and any(
        isinstance(each, DisjointBatches | UnverifiedSampling)
        for each in samplings
    ):
        return math.inf
    epochs = defaultdict(list)
    for place, each in enumerate(every):
        if isinstance(each.sampling, DisjointBatches):
            epochs[each.sampling.epoch_id].append(place)
    always = {
        place
        for place, each in enumerate(every)
        if not isinstance(each.sampling, DisjointBatches)
    }
    square = max(
        _square(every, always | set(chosen))
        for chosen in itertools.product(*epochs.values())
    )
    factor = 2 if neighbours == "replace_one" else 1
    return _epsilon(factor * math.sqrt(square))


def _square(every, present) -> float:
    """Returns the square of what a record moves, in units of the noise."""
    return sum(
        (query.l2_norm_bound / query.noise_stddev) ** 2
        for place, each in enumerate(every)
        for query in each.queries
        if place in present
    )


def _epsilon(mu: float) -> float:
    """Returns the root of Balle and Wang (2018), arXiv:1805.06530, eq. 6."""
    if not mu:
        return 0.0
    normal = scipy.stats.norm

    def excess(epsilon: float) -> float:
        at, after = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        tail = math.exp(epsilon + normal.logcdf(after))
        return float(normal.cdf(at)) - tail - DELTA

    if excess(0.0) <= 0:
        return 0.0
    return float(scipy.optimize.brentq(excess, 0.0, mu**2 + 20 * mu + 20))


def kinds(noise: float) -> list[Round]:
    """Returns rounds of all kinds, some of which span rounds."""
    sums = (GaussianSum("sum", 1.0, noise),)
    first, second = DisjointBatches("first"), DisjointBatches("second")
    return [
        Round(FullDataset(), sums),
        Round(UnverifiedSampling(), sums),
        Round(first, sums),
        Round(second, sums),
    ]


def some(generator, most: int) -> list[tuple[Round, int]]:
    chosen = generator.integers(1, most + 1)
    menu = kinds(2.0) + kinds(4.0)
    return [
        (menu[generator.integers(len(menu))], int(generator.integers(1, 4)))
        for _ in range(chosen)
    ]


def altered(generator, rounds) -> list[tuple[Round, int]]:
    """Returns rounds in the place of others: fewer, more, renamed, moved."""
    found = []
    for each, count in rounds:
        change = generator.integers(5)
        if change == 0:
            continue
        if change == 1:
            count = int(generator.integers(1, count + 1))
        elif change == 2:
            each = some(generator, 1)[0][0]
        elif change == 3:
            noise = each.queries[0].noise_stddev
            near = [kind for z in (1.0, 2.0, 4.0) for kind in kinds(z)]
            near = [k for k in near if k.queries[0].noise_stddev == noise]
            each = near[generator.integers(len(near))]
        found.append((each, count))
    return found


def is_below(found: float, truth: float) -> bool:
    return found < truth * (1 - 1e-9)


@pytest.mark.parametrize(
    "neighbours",
    [
        None,
        pytest.param("zero_out", marks=pytest.mark.full),
        pytest.param("replace_one", marks=pytest.mark.full),
    ],
)
def test_the_cost_of_plans_is_a_bound(neighbours) -> None:
    """As a control, the cost of the plans alone is often none."""
    generator = np.random.default_rng(11)
    kept = too_low = 0
    for _ in range(150):
        ledger = PrivacyLedger.in_memory(dataset="d")
        planned = []
        runs = [
            ledger.start_run(f"run {number}")
            for number in range(generator.integers(1, 3))
        ]
        for run in runs:
            plan = some(generator, 3)
            run.plan(plan)
            planned += plan
        for run in runs:
            plan = ledger.runs[runs.index(run)].plan
            for each, count in altered(generator, plan):
                run.record(each.sampling, each.queries, count)

        found = budgets.guarantee(ledger, delta=DELTA, neighbours=neighbours)
        relation = found.claim.neighbours
        truth = true_epsilon(ledger.rounds, relation)

        assert not is_below(found.claim.epsilon, truth)
        again = budgets.guarantee(ledger, delta=DELTA, neighbours=relation)
        assert again.claim == found.claim
        costs = run_costs(ledger, delta=DELTA, neighbours=neighbours)
        assert costs[-1].total_epsilon == pytest.approx(found.claim.epsilon)
        for number, cost in enumerate(costs, start=1):
            ran = [pair for run in ledger.runs[:number] for pair in run.rounds]
            truth = true_epsilon(ran, relation)
            assert not is_below(cost.total_epsilon, truth)
        kept += found.basis != "as if fixed"
        too_low += is_below(true_epsilon(planned, relation), truth)

    assert kept > 10
    assert too_low > 10


def spend(generator, ledger, name, rounds) -> None:
    """Runs what the account has room for of the rounds and of others."""
    run = ledger.start_run(name, limits=RunLimits(ledger, account=name))
    for each, count in altered(generator, rounds):
        with contextlib.suppress(BudgetExceededError, UnsupportedEventError):
            run.record(each.sampling, each.queries, count)


def a_budget(generator, relation):
    """Returns a budget, and rounds for which it may have room."""
    rounds = some(generator, 3)
    if generator.integers(3):
        return budgets.FixedPlan(rounds, 1e4, DELTA / 4, relation), rounds
    return budgets.RenyiFilter(8.0, DELTA / 4, neighbours=relation), rounds


@pytest.mark.parametrize("is_checked", [True, False])
def test_the_promise_of_accounts_is_a_bound(is_checked) -> None:
    """As a control, the promises of accounts that were not checked are none.

    Such ledgers are read all the same, and say no less than what ran.
    """
    generator = np.random.default_rng(12)
    promised = too_low = 0
    for _ in range(150):
        ledger = PrivacyLedger.in_memory(dataset="d")
        relations = ["zero_out", "replace_one", "add_or_remove_one"]
        relation = relations[generator.integers(3)]
        if generator.integers(2):
            for each, count in some(generator, 2):
                ledger.record(each.sampling, each.queries, count)
        for name in "abc"[: generator.integers(1, 4)]:
            if generator.integers(4) == 0:
                relation = relations[generator.integers(3)]
            # A plan, or a filter, that cannot pay for what is drawn or held.
            with contextlib.suppress(
                BudgetExceededError, UnsupportedEventError, ValueError
            ):
                budget, rounds = a_budget(generator, relation)
                if is_checked:
                    budgets.open_account(ledger, name, budget)
                else:
                    terms = canonical(budget.terms())
                    ledger.open_account(Account(name, budget.capacities, terms))
                spend(generator, ledger, name, rounds)

        found = budgets.guarantee(ledger, delta=DELTA)
        truth = true_epsilon(ledger.rounds, found.claim.neighbours)
        assert not is_below(found.claim.epsilon, truth)
        promised += found.basis == "account" and len(ledger) > 0
        if not is_checked:
            top = [budgets.budget_of(each.account) for each in ledger.accounts]
            named = sum(each.promise(DELTA / len(top)) for each in top)
            too_low += (
                is_below(
                    named,
                    max(true_epsilon(ledger.rounds, r.neighbours) for r in top),
                )
                if top
                else 0
            )
        elif ledger.accounts:
            budgets.verify_prices(ledger)

    assert promised > 10
    assert (too_low > 10) == (not is_checked)
