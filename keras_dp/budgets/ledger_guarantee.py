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

import dataclasses
import math
from typing import Literal

from keras_dp.accountants.accountant import Accountant
from keras_dp.accountants.claim import Claim
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.replay import Replay, replay_of
from keras_dp.budgets.accounts import budget_of, why_not_covered
from keras_dp.ledger import PrivacyLedger, RunRecord

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
        covers: The rounds that count: those of kept plans, and those that ran.
    """

    claim: Claim
    basis: Basis
    theorem: str
    ex_post: Claim | None
    is_unconditional: bool
    covers: Replay = dataclasses.field(repr=False, compare=False)

    def sentences(self, unit: str) -> tuple[str, ...]:
        """Returns the claim, its theorem and the ex post claim, for people."""
        lines = [self.claim.sentence(unit), f"Theorem: {self.theorem}"]
        if self.ex_post is not None:
            lines.append(f"Ran: {self.ex_post.sentence(unit)}: {_EX_POST}")
        return tuple(lines)


def guarantee(
    ledger: PrivacyLedger | Replay,
    *,
    delta: float,
    accountant: Accountant | None = None,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> Guarantee:
    """Returns the epsilon of a ledger, with the theorem that covers it.

    If the ledger has accounts, the claim is what these promise. Without
    accounts, or if the ledger breaks their promises, it is the cost of the
    plans of those runs that kept to their plan, and of the rounds of the other
    runs.

    Args:
        ledger: The ledger, with its runs, plans and accounts, or its replay.
        delta: The delta of the claim, in (0, 1).
        accountant: The accountant; by default the tightest that can replay the
            ledger.
        neighbours: The adjacency relation; by default the strongest that all
            rounds support. Promises of accounts have their own relation.
        units: The number of units that are protected together, >= 1. The
            promises of accounts are for one unit, and are not used for more.

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
    replay = replay_of(ledger)
    ran = replay.claim(
        delta=delta, accountant=accountant, neighbours=neighbours, units=units
    )
    that_count = replay.that_count(neighbours)
    broken = ""
    if replay.accounts and units == 1:
        promised = _of_accounts(replay, ran, delta, that_count.together)
        broken = why_not_covered(replay)
        if not broken and _cost_more(replay, ran, promised.claim):
            broken = "the rounds that ran cost more"
        if not broken:
            return promised
    most = that_count.together.claim(
        delta=delta,
        accountant=accountant,
        neighbours=that_count.neighbours,
        units=units,
    )
    basis, theorem = _basis(replay.runs, that_count.kept)
    if broken:
        theorem += f". The ledger breaks the promises of its accounts: {broken}"
    return Guarantee(
        most,
        basis,
        theorem,
        ex_post=None if ran.epsilon == most.epsilon else ran,
        is_unconditional=basis != "as if fixed",
        covers=that_count.together,
    )


def _basis(
    runs: tuple[RunRecord, ...], kept: tuple[bool, ...]
) -> tuple[Basis, str]:
    found = [
        (run, is_kept)
        for run, is_kept in zip(runs, kept, strict=True)
        if len(run) or run.plan
    ]
    runs = tuple(run for run, _ in found)
    if not all(is_kept for _, is_kept in found):
        return "as if fixed", AS_IF_FIXED
    if len(runs) == 1:
        return "plan", _PLAN
    first = min((run.first_row for run in runs if run.first_row), default=0)
    if first and any(run.plan_row > first for run in runs):
        return "as if fixed", AS_IF_FIXED
    return "plans", _PLANS


def _cost_more(replay: Replay, ran: Claim, promised: Claim) -> bool:
    if ran.neighbours != promised.neighbours:
        ran = dataclasses.replace(ran, epsilon=math.inf)
    if ran.epsilon <= promised.epsilon:
        return False
    again = replay.claim(delta=promised.delta, neighbours=promised.neighbours)
    return again.epsilon > promised.epsilon * _TOLERANCE


def _of_accounts(
    replay: Replay, ran: Claim, delta: float, covers: Replay
) -> Guarantee:
    whole = [budget_of(each.account) for each in replay.accounts]
    share = delta / len(whole)
    one_relation = len({budget.neighbours for budget in whole}) == 1
    total = Claim(
        sum(budget.promise(share) for budget in whole)
        if one_relation
        else math.inf,
        delta,
        whole[0].neighbours if one_relation else None,
        "the accounts",
        rows_per_unit=replay.rows_per_unit,
    )
    theorem = whole[0].theorem
    if len(whole) > 1:
        theorem = (
            "the promises of the accounts added up (arXiv:2309.05901), each at "
            f"delta = {share!r}"
        )
    ex_post = ran if ran.epsilon < total.epsilon else None
    # Which account was opened may depend on answers of earlier rounds.
    last = replay.accounts[-1].number
    earlier = any(len(run) and run.first_row < last for run in replay.runs)
    if earlier:
        theorem += _EARLIER
    return Guarantee(total, "account", theorem, ex_post, not earlier, covers)
