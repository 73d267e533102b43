"""Reports of a ledger: who spent what privacy, and which theorem covers it."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from keras_dp import _check
from keras_dp.accountants import Accountant, available_accountants
from keras_dp.accountants.claim import Claim, rounded_up
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import Guarantee, guarantee
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CountedRound,
    PrivacyLedger,
    RunRecord,
    Stated,
)
from keras_dp.ledger.rows.codec import text_from_round
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.ledger.rows.statements import Seal
from keras_dp.reporting import tables
from keras_dp.reporting.account_state import AccountState, account_states
from keras_dp.reporting.cautions import cautions
from keras_dp.reporting.explanation import Explanation, explain, plain_words
from keras_dp.reporting.run_costs import RunCost, json_number, run_costs
from keras_dp.reporting.tables import Table
from keras_dp.reporting.wording import (
    counted,
    finite_precision,
    on_one_line,
    proven_rounds,
    rounds_of_whole_units,
    wrapped,
)

# The runs of a ledger with accounts cost less than the accounts promise.
SO_FAR = (
    "These are composed as if fixed in advance. The promise of the accounts "
    "holds in any case."
)
BEFORE = "Before you believe it"
# Runs that are listed; `keras-dp runs` lists all.
_MOST_RUNS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The epsilon that one accountant computes.

    Attributes:
        accountant: The name of the accountant.
        epsilon: An upper bound on epsilon, possibly `inf`. If `is_bound` is
            false, it is an approximation, which may be too small.
        is_bound: Whether `epsilon` is an upper bound.
    """

    accountant: str
    epsilon: float
    is_bound: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Details:
    """The parts of a report that take a while to compute.

    Attributes:
        explanation: The meaning of the guarantee of the whole ledger.
        rows: The number of rows of the ledger, all of which were verified.
        head: The hash over all rows, in hex.
    """

    explanation: Explanation
    rows: int
    head: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """The content of `keras-dp report`.

    Attributes:
        dataset: The name of the data set.
        unit: The privacy unit.
        rows_per_unit: The largest number of records that one unit has, as
            declared.
        place: The path of the ledger's file or its URL; `None` in memory.
        plain_words: The guarantee as a sentence for people who know no epsilon.
        guarantee: The claim to publish and its theorem, for the whole ledger.
        rounds: All rounds in order; equal rounds in a row are counted together,
            and reserved rounds are included.
        unsettled: The number of rounds that are reserved and not settled. They
            count. If their process died, some of them may never have run.
        delta: The delta of the guarantee, the costs and the runs.
        neighbours: The adjacency relation of `costs`; `None` if all rounds
            support no common one.
        costs: The epsilon of all rounds by each accountant that was asked for.
            By default, these are all accountants that can replay the rounds, in
            the order of `available_accountants`.
        runs: All runs, each with its epsilon and the running total.
        accounts: All accounts, each with the part that is left.
        seals: All seals, in the order of their writing.
        cautions: Sentences that say what the numbers assume or leave open.
        versions: The versions of libraries in all runs, by the library's name.
        units: The number of units that the guarantee and the costs protect
            together.
        details: The parts that take a while to compute; `None` unless asked
            for.
    """

    dataset: str
    unit: str
    rows_per_unit: int
    place: str | None
    plain_words: str
    guarantee: Guarantee
    rounds: tuple[CountedRound, ...]
    unsettled: int
    delta: float
    neighbours: Neighbours | None
    costs: tuple[Cost, ...]
    runs: tuple[RunCost, ...]
    accounts: tuple[AccountState, ...]
    seals: tuple[Stated[Seal], ...]
    cautions: tuple[str, ...]
    versions: Mapping[str, tuple[str, ...]]
    units: int = 1
    details: Details | None = None

    @property
    def claim(self) -> Claim:
        """The claim to publish, with what it depends on."""
        return self.guarantee.claim

    @property
    def total_rounds(self) -> int:
        """The number of reported rounds, including reserved ones."""
        return sum(count for _, count in self.rounds)

    @property
    def records_together(self) -> int:
        """The number of records that are protected together."""
        return self.rows_per_unit * self.units

    @property
    def seeded_rounds(self) -> int:
        """The number of reported rounds whose seed the caller chose."""
        return sum(each.count for each in self.rounds if each.round.seeded)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The claim to publish and its theorem.

        A line follows the theorem if the rounds that ran cost less.
        """
        return self.guarantee.sentences(on_one_line(self.unit))

    @property
    def summary(self) -> tuple[str, ...]:
        """The data set with its unit, and the number of rounds and runs."""
        lines = [
            f"Data set {on_one_line(self.dataset)}, privacy unit: "
            f"{self._unit()}"
        ]
        runs = sum(1 for each in self.runs if each.run.number)
        size = counted(self.total_rounds, "round")
        if runs:
            size += f" in {counted(runs, 'run')}"
        lines.append(size)
        if self.total_rounds:
            proven = proven_rounds(self.rounds)
            lines.append(finite_precision(self.total_rounds, proven))
        return tuple(lines)

    def required_details(self) -> Details:
        """Returns the details.

        Raises:
            ValueError: The report was made without them.
        """
        if self.details is None:
            raise ValueError(
                "`report` must have its details. Received: a report without "
                "details. Make it with `make_report(..., details=True)`."
            )
        return self.details

    def as_json(self) -> str:
        """Returns a JSON object; an infinite epsilon is the text `inf`.

        Rounds are as in the ledger.
        """
        found, ex_post = self.guarantee, self.guarantee.ex_post
        content = {
            "dataset": self.dataset,
            "unit": self.unit,
            "rows_per_unit": self.rows_per_unit,
            "units": self.units,
            "ledger": self.place,
            "guarantee": {
                **_json_claim(found.claim),
                "plain_words": self.plain_words,
                "sentence": found.claim.sentence(on_one_line(self.unit)),
                "basis": found.basis,
                "theorem": found.theorem,
                "ex_post": None if ex_post is None else _json_claim(ex_post),
            },
            "total_rounds": self.total_rounds,
            "unsettled_rounds": self.unsettled,
            "seeded_rounds": self.seeded_rounds,
            "proven_rounds": proven_rounds(self.rounds),
            "delta": self.delta,
            "neighbours": self.neighbours,
            "epsilon": {
                cost.accountant: json_number(cost.epsilon)
                for cost in self.costs
                if cost.is_bound
            },
            "approximate_epsilon": {
                cost.accountant: json_number(cost.epsilon)
                for cost in self.costs
                if not cost.is_bound
            },
            "cautions": list(self.cautions),
            "runs": [each.as_dict() for each in self.runs],
            "accounts": [each.as_dict() for each in self.accounts],
            "seals": [
                {
                    "number": each.number,
                    "hash": each.hash,
                    "time": each.time,
                    "note": each.statement.note,
                }
                for each in self.seals
            ],
            "versions": {name: [*each] for name, each in self.versions.items()},
        }
        if self.details is not None:
            content |= _json_details(self.details)
        # One round on each line: 10^5 kinds as objects would take seconds.
        rounds = ",\n    ".join(
            f'{{"count":{count},{text_from_round(each)[1:]}'
            for each, count in self.rounds
        )
        head = json.dumps(content, indent=2).removesuffix("\n}")
        return f'{head},\n  "rounds": [\n    {rounds}\n  ]\n}}'

    def as_text(self, *, every_accountant: bool = False) -> str:
        """Returns the report as lines of text, with epsilon rounded up.

        Args:
            every_accountant: Whether to print the epsilon of each accountant in
                `costs`, too.
        """
        lines = [*wrapped(self.plain_words), ""]
        lines += [line for each in self.sentences for line in wrapped(each)]
        lines += ["", *(x for each in self.summary for x in wrapped(each))]
        titled = self.tables()
        last, rounds = titled.popitem()
        cautions = [x for each in self.cautions for x in wrapped(each, "  - ")]
        for title, table in titled.items():
            lines += ["", f"{title}:", *table.lines()]
        if cautions:
            lines += ["", f"{BEFORE}:", *cautions]
        lines += ["", f"{last}:", *rounds.lines()]
        if every_accountant:
            lines += ["", *self._epsilons()]
        return "\n".join(lines)

    def tables(self) -> dict[str, Table]:
        """Returns the tables that have rows by their titles, rounds last."""
        runs = tables.run_table(self.runs[-_MOST_RUNS:])
        left_out = len(self.runs) - len(runs.rows)
        notes = runs.notes
        if left_out:
            earlier = counted(left_out, "earlier run")
            notes = (f"{earlier}, which `keras-dp runs` lists", *notes)
        if self.guarantee.basis == "account":
            notes = (*notes, SO_FAR)
        found = {
            "Accounts, which no run exceeds": tables.account_table(
                self.accounts
            ),
            "Seals, before which no row changes": tables.seal_table(self.seals),
        }
        if any(each.run.number for each in self.runs):
            title = "Runs, epsilon alone and of all so far"
            found = {title: runs._replace(notes=notes), **found}
        found = {title: each for title, each in found.items() if each.rows}
        return {**found, "Rounds": tables.round_table(self.rounds)}

    def _unit(self) -> str:
        """Returns the unit, with the number of its rows as declared."""
        unit = on_one_line(self.unit)
        if self.unit in UNITS_OF_ROWS:
            return unit
        whole = rounds_of_whole_units(self.rounds)
        if whole and whole == self.total_rounds:
            return f"{unit} (with all its rows)"
        rows = (
            "one row"
            if self.rows_per_unit == 1
            else (f"at most {self.rows_per_unit:,} rows")
        )
        some = f"with all its rows in {whole:,} rounds, else " if whole else ""
        return f"{unit} ({some}{rows} each, as declared)"

    def _epsilons(self) -> Iterator[str]:
        yield f"Epsilon of these rounds at delta = {self.delta!r}:"
        if self.neighbours is None:
            yield "  none: no adjacency relation is supported by all rounds"
            return
        relation = relation_of(self)
        if not self.costs:
            yield (
                "  none: no accountant has a sound bound for these rounds "
                f"({relation})"
            )
        width = max((len(cost.accountant) for cost in self.costs), default=0)
        for cost in self.costs:
            epsilon = f"epsilon <= {rounded_up(cost.epsilon)}"
            if math.isinf(cost.epsilon):
                epsilon = "no bound"
            elif not cost.is_bound:
                epsilon = (
                    f"epsilon is about {rounded_up(cost.epsilon)}, which is "
                    "no bound"
                )
            yield f"  {cost.accountant:<{width}}  {epsilon} ({relation})"


def relation_of(report: Report) -> str:
    """Returns the relation of the costs and the records together, in words."""
    relation = str(report.neighbours).replace("_", " ")
    if report.records_together > 1:
        relation += f", {report.records_together:,} records together"
    return relation


def make_report(
    ledger: PrivacyLedger,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    accountants: tuple[Accountant, ...] | None = None,
    units: int = 1,
    details: bool = False,
) -> Report:
    """Returns the report of a ledger.

    Args:
        ledger: The ledger, with its runs, plans and accounts.
        delta: The delta of each epsilon, in (0, 1).
        neighbours: The adjacency relation; by default the strongest that all
            rounds support. Promises of accounts have their own relation.
        accountants: The accountants of `costs`; by default all that can replay
            the rounds. The guarantee always comes from the tightest accountant,
            or from the promises of accounts.
        units: The number of units that are protected together, >= 1.
        details: Whether to compute what takes a while: the explanation, and a
            check of every row.

    Raises:
        UnsupportedEventError: One of the given `accountants` has no bound for a
            round. By default, the report says so instead.
        ValueError: An argument is out of its range.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="paper")
    >>> ledger.record(PoissonSampling(0.01, drawn_by_library=True),
    ...               [GaussianSum("gradients", 1.0, 4.0)], count=10_000)
    >>> report = make_report(ledger, delta=1e-5)
    >>> report.sentences[0]
    'epsilon <= 0.9469 at delta = 1e-05, add or remove one example, certified...
    >>> report.as_text().splitlines()[-1]
    '      gradients: Gaussian sum, bound 1, noise stddev 4 (multiplier 4)'
    """
    _check.integer_at_least(1, units=units)
    replay = Replay(ledger)
    question: dict[str, Any] = {
        "delta": delta,
        "neighbours": neighbours,
        "units": units,
    }
    found = guarantee(replay, **question)
    relation = found.claim.neighbours
    if found.basis == "account":
        relation = _relation(replay, neighbours)
    if accountants is None:
        accountants = _available(replay, relation)
    costs = tuple(
        Cost(
            each.name,
            replay.epsilon(each, delta=delta, neighbours=relation, units=units),
            each.is_bound,
        )
        for each in accountants
    )
    return Report(
        dataset=ledger.header.dataset,
        unit=ledger.header.unit,
        rows_per_unit=ledger.header.rows_per_unit,
        place=ledger.name,
        plain_words=plain_words(replay, **question),
        guarantee=found,
        rounds=replay.rounds,
        unsettled=ledger.unsettled,
        delta=float(delta),
        neighbours=relation,
        costs=costs,
        runs=run_costs(replay, **question),
        accounts=account_states(ledger),
        seals=ledger.seals,
        cautions=cautions(ledger.header, replay.runs, replay.rounds, found),
        versions=_versions(replay.runs),
        units=int(units),
        details=_details(ledger, explain(replay, **question))
        if details
        else None,
    )


def _relation(
    replay: Replay, neighbours: Neighbours | None
) -> Neighbours | None:
    """Returns the relation of the costs; `None` if there is none."""
    try:
        return replay.relation(neighbours)
    except UnsupportedEventError:
        return None


def _available(
    replay: Replay, relation: Neighbours | None
) -> tuple[Accountant, ...]:
    """Returns all accountants that have a bound under a relation."""
    if relation is None:
        return ()
    return available_accountants(replay, neighbours=relation)


def _details(ledger: PrivacyLedger, explanation: Explanation) -> Details:
    verified = ledger.verify()
    return Details(explanation, verified.rows, verified.head)


def _versions(runs: tuple[RunRecord, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        if run.start is not None:
            for name, version in run.start.author.versions:
                found.setdefault(name, {})[version] = None
    return {name: tuple(each) for name, each in sorted(found.items())}


def _json_claim(found: Claim) -> dict[str, Any]:
    return {
        **dataclasses.asdict(found),
        "epsilon": json_number(found.epsilon),
    }


def _json_details(details: Details) -> dict[str, Any]:
    return {
        "explanation": {
            title: list(sentences)
            for title, sentences in details.explanation.paragraphs
        },
        "rows": details.rows,
        "head": details.head,
    }
