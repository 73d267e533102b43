"""The epsilon of a ledger, and the theorem that covers it.

Composition theorems hold for mechanisms that are fixed in advance. A run that
was planned before its first round may stop at any time, for any reason: its
releases are a part of the plan, and the cost of the plan is a guarantee. The
cost of the rounds that ran is no guarantee if answers may have decided when to
stop. It describes only what happened, *ex post*.

If a run was planned after the answers of an earlier run were seen, a budget
that was opened before both covers them. Without a budget, their composition
assumes that no plan depended on an answer.
"""

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.claim import Claim, claim
from keras_dp.accountants.normalize.adjacency import (
    RELATIONS,
    Neighbours,
    supported_neighbours,
)
from keras_dp.accountants.normalize.normalize import normalized
from keras_dp.accountants.normalize.normalized_rounds import (
    NormalizedRounds,
)
from keras_dp.budgets.accounts import budget_of, why_not_covered
from keras_dp.budgets.coverage import covers, is_part, spans_of
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    AccountRecord,
    CountedRound,
    PrivacyLedger,
    RunRecord,
)

Basis = Literal["account", "plan", "plans", "as if fixed"]

_PLAN = (
    "composition of rounds that were planned before the first of them ran; the "
    "guarantee holds whenever and why ever training stopped"
)
_PLANS = (
    "composition of plans that were all written before the first round of any"
)
AS_IF_FIXED = (
    "composed as if fixed in advance: it takes for granted that no answer "
    "decided which other rounds ran, how many, or with how much noise"
)
_EARLIER = (
    "; rounds ran before an account was opened: they and its budget count as "
    "if fixed in advance"
)
# More than the errors of two accountants.
_TOLERANCE = 1 + 1e-4
_EX_POST = "the rounds that ran, known after the fact (ex post); no guarantee"


@dataclasses.dataclass(frozen=True, slots=True)
class Guarantee:
    """The epsilon of a ledger, with the theorem that makes it a guarantee.

    Attributes:
        claim: Epsilon, delta, adjacency relation and accountant.
        basis: "account" if accounts pay for the rounds; "plan" if one run was
            planned in advance; "plans" if several runs were, all of them before
            the first round of any run; "as if fixed" otherwise.
        theorem: A phrase for people that says why the claim holds.
        ex_post: The claim for the rounds that ran, which is no guarantee;
            `None` if it equals `claim`.
        is_unconditional: Whether the theorem needs no assumption about how the
            rounds were chosen.
        ran: The rounds that ran, normalized, for further questions; `None` if
            no adjacency relation has a bound for them.
        most: The rounds that `claim` is about, normalized; `None` if no
            adjacency relation has a bound for them, or if `claim` is the
            promise of accounts.
    """

    claim: Claim
    basis: Basis
    theorem: str
    ex_post: Claim | None
    is_unconditional: bool
    ran: NormalizedRounds | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    most: NormalizedRounds | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    def sentences(self, unit: str) -> tuple[str, ...]:
        """Returns lines for people: the claim, the theorem, the ex post claim.

        Args:
            unit: The privacy unit, such as "patient".
        """
        lines = [self.claim.sentence(unit), f"Theorem: {self.theorem}"]
        if self.ex_post is not None:
            lines.append(f"Ran: {self.ex_post.sentence(unit)}: {_EX_POST}")
        return tuple(lines)


def guarantee(
    ledger: PrivacyLedger,
    *,
    delta: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    group_size: int | None = None,
) -> Guarantee:
    """Returns the epsilon of a ledger, with the theorem that covers it.

    If the ledger has accounts, the claim is what these promise. Without
    accounts, or if the ledger breaks their promises, it is the cost of the
    plans of those runs that kept to their plan, and of the rounds of the other
    runs.

    Args:
        ledger: The ledger, with its runs, plans and accounts.
        delta: The delta of the claim, in (0, 1).
        accountant: The accountant; by default the tightest that can replay the
            ledger.
        neighbours: The adjacency relation; by default the strongest that all
            rounds support. Promises of accounts have their own relation.
        group_size: The number of records that are protected together; by
            default `rows_per_unit` of the ledger. With another number, the
            promises of accounts are not used.

    Raises:
        ValueError: `delta` or `neighbours` is not a possible one.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> with ledger.start_run("training") as run:
    ...     run.plan([(step, 10_000)])
    ...     run.record(step.sampling, step.queries, 4_000)
    >>> found = guarantee(ledger, delta=1e-5)
    >>> round(found.claim.epsilon, 3), round(found.ex_post.epsilon, 3)
    (0.947, 0.575)
    """
    if group_size is None:
        group_size = ledger.header.rows_per_unit

    def cost(
        rounds: tuple[CountedRound, ...], neighbours: Neighbours | None
    ) -> tuple[Claim, NormalizedRounds | None]:
        try:
            together = normalized(rounds, neighbours)
        except UnsupportedEventError:
            together = None
        found = claim(
            rounds if together is None else together,
            delta=delta,
            accountant=accountant,
            neighbours=neighbours,
            group_size=group_size,
        )
        return found, together

    runs = tuple(run for run in ledger.runs if len(run) or run.plan)
    happened = tuple(pair for run in runs for pair in run.rounds)
    ran, ran_rounds = cost(happened, neighbours)
    accounts, broken = ledger.accounts, ""
    if accounts and group_size == ledger.header.rows_per_unit:
        promised = _of_accounts(accounts, runs, ran, delta)
        broken = why_not_covered(ledger)
        if not broken and _cost_more(happened, ran, promised.claim):
            broken = "the rounds that ran cost more"
        if not broken:
            return dataclasses.replace(promised, ran=ran_rounds)
    counted = rounds_that_count(runs, neighbours)
    differs = counted.together != happened
    most, most_rounds = ran, ran_rounds
    if differs:
        most, most_rounds = cost(counted.together, counted.neighbours)
    basis, theorem = _basis(runs, counted.kept)
    if broken:
        theorem += f". The ledger breaks the promises of its accounts: {broken}"
    ex_post = ran if differs and ran.epsilon != most.epsilon else None
    unconditional = basis != "as if fixed"
    return Guarantee(
        *(most, basis, theorem, ex_post, unconditional),
        ran=ran_rounds,
        most=most_rounds,
    )


class RoundsThatCount(NamedTuple):
    """The rounds of runs whose cost is a guarantee, see `rounds_that_count`.

    Attributes:
        neighbours: The adjacency relation of the cost; `None` if there is none
            that all rounds support.
        of_runs: The rounds of each run.
        kept: Whether each run kept to its plan.
    """

    neighbours: Neighbours | None
    of_runs: tuple[tuple[CountedRound, ...], ...]
    kept: tuple[bool, ...]

    @property
    def together(self) -> tuple[CountedRound, ...]:
        """The rounds of all runs."""
        return tuple(pair for rounds in self.of_runs for pair in rounds)


def rounds_that_count(
    runs: Sequence[RunRecord], neighbours: Neighbours | None
) -> RoundsThatCount:
    """Returns the rounds of each run whose cost is a guarantee.

    They are the plan of a run that did only what was planned before its first
    round. They are the rounds of every other run.

    Args:
        runs: Runs of one ledger.
        neighbours: The adjacency relation of the cost; by default the strongest
            that all rounds support which then count.
    """
    for relation in RELATIONS if neighbours is None else (neighbours,):
        kept = _kept_plans(runs, relation)
        rounds = tuple(
            run.plan if run.plan is not None and is_kept else run.rounds
            for run, is_kept in zip(runs, kept, strict=True)
        )
        found = RoundsThatCount(relation, rounds, kept)
        with contextlib.suppress(UnsupportedEventError):
            if relation in supported_neighbours(found.together):
                return found
    return found._replace(neighbours=neighbours)


def _kept_plans(
    runs: Sequence[RunRecord], neighbours: Neighbours
) -> tuple[bool, ...]:
    """Returns whether each run did only what was planned before."""
    spans = [
        {
            name
            for round_, _ in (*run.rounds, *(run.plan or ()))
            for name in spans_of(round_)
        }
        for run in runs
    ]
    seen = Counter(name for each in spans for name in each)
    return tuple(
        run.plan is not None
        and not (run.first_row and run.plan_row > run.first_row)
        # Runs with a tree or an epoch in common do exactly what was planned.
        and (
            is_part(run.rounds, run.plan)
            if any(seen[name] > 1 for name in each)
            else covers(run.plan, run.rounds, neighbours)
        )
        for run, each in zip(runs, spans, strict=True)
    )


def _basis(
    runs: tuple[RunRecord, ...], kept: tuple[bool, ...]
) -> tuple[Basis, str]:
    if not all(kept):
        return "as if fixed", AS_IF_FIXED
    if len(runs) == 1:
        return "plan", _PLAN
    first = min((run.first_row for run in runs if run.first_row), default=0)
    if first and any(run.plan_row > first for run in runs):
        return "as if fixed", AS_IF_FIXED
    return "plans", _PLANS


def _cost_more(
    happened: tuple[CountedRound, ...], ran: Claim, promised: Claim
) -> bool:
    """Returns whether the rounds that ran cost more than was promised."""
    if ran.neighbours != promised.neighbours or not ran.is_bound:
        ran = dataclasses.replace(ran, epsilon=math.inf)
    if ran.epsilon <= promised.epsilon:
        return False
    again = claim(
        happened,
        delta=promised.delta,
        neighbours=promised.neighbours,
        group_size=promised.group_size,
    )
    return again.epsilon > promised.epsilon * _TOLERANCE


def _of_accounts(
    accounts: tuple[AccountRecord, ...],
    runs: tuple[RunRecord, ...],
    ran: Claim,
    delta: float,
) -> Guarantee:
    """Returns the promise of all accounts that are not shares of others."""
    accounts = tuple(each for each in accounts if each.account.parent is None)
    whole = [budget_of(each.account) for each in accounts]
    share = delta / len(whole)
    one_relation = len({budget.neighbours for budget in whole}) == 1
    total = Claim(
        sum(budget.promise(share) for budget in whole)
        if one_relation
        else math.inf,
        delta,
        whole[0].neighbours if one_relation else None,
        "the accounts",
        group_size=ran.group_size,
    )
    theorem = whole[0].theorem
    if len(whole) > 1:
        theorem = (
            "the promises of the accounts added up (arXiv:2309.05901), each at "
            f"delta = {share!r}"
        )
    ex_post = ran if ran.epsilon < total.epsilon else None
    # Which account was opened may depend on answers of earlier rounds.
    last = accounts[-1].number
    earlier = any(len(run) and run.first_row < last for run in runs)
    if earlier:
        theorem += _EARLIER
    return Guarantee(total, "account", theorem, ex_post, not earlier)
