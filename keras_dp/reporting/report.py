"""Reports of a ledger: who spent what privacy, and which theorem covers it."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from keras_dp import _check
from keras_dp._version import __version__
from keras_dp.accountants import Accountant, available_accountants
from keras_dp.accountants.claim import Claim, rounded_up
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.replay import Replay
from keras_dp.budgets import Guarantee, guarantee
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CountedRound,
    PrivacyLedger,
    RunRecord,
    Stated,
)
from keras_dp.ledger.rows.codec import content_from_round
from keras_dp.ledger.rows.header import UNITS_OF_ROWS
from keras_dp.ledger.rows.statements import Seal
from keras_dp.reporting.account_state import (
    AccountState,
    account_states,
    account_table,
)
from keras_dp.reporting.cautions import cautions
from keras_dp.reporting.document import Document, Part, Table, Text
from keras_dp.reporting.explanation import (
    Explanation,
    explanation_of,
    plain_words,
)
from keras_dp.reporting.renderers import render
from keras_dp.reporting.run_costs import (
    RunCost,
    json_number,
    run_costs,
    run_table,
)
from keras_dp.reporting.wording import (
    counted,
    finite_precision,
    moment,
    proven_rounds,
    round_table,
    rounds_of_whole_units,
)

# The runs of a ledger with accounts cost less than the accounts promise.
SO_FAR = (
    "These are composed as if fixed in advance. The promise of the accounts "
    "holds in any case."
)
# Runs that are listed; `keras-dp runs` lists all.
_MOST_RUNS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """The epsilon that one accountant computes.

    Attributes:
        accountant: The name of the accountant.
        epsilon: An upper bound on epsilon, possibly `inf`.
    """

    accountant: str
    epsilon: float

    @property
    def bound(self) -> str:
        """The bound in words, rounded up."""
        if math.isinf(self.epsilon):
            return "no bound"
        return f"<= {rounded_up(self.epsilon)}"


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
    def seeded_rounds(self) -> int:
        """The number of reported rounds whose seed the caller chose."""
        return sum(each.count for each in self.rounds if each.round.seeded)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The claim to publish and its theorem.

        A line follows the theorem if the rounds that ran cost less.
        """
        return self.guarantee.sentences(self.unit)

    @property
    def summary(self) -> tuple[str, ...]:
        """The data set with its unit, and the number of rounds and runs."""
        lines = [f"Data set {self.dataset}, privacy unit: {self._unit()}"]
        runs = sum(1 for each in self.runs if each.run.number)
        size = counted(self.total_rounds, "round")
        if runs:
            size += f" in {counted(runs, 'run')}"
        lines.append(size)
        if self.total_rounds:
            proven = proven_rounds(self.rounds)
            lines.append(finite_precision(self.total_rounds, proven))
        return tuple(lines)

    def document(self) -> Document:
        """Returns the report as a document."""
        return Document(
            f"Privacy report of the data set {self.dataset}",
            tuple(self._parts()),
            self._facts(),
        )

    def __str__(self) -> str:
        """Returns the report as text, with epsilon rounded up."""
        return render(self.document())

    def _parts(self) -> Iterator[Part]:
        yield Text("", (self.plain_words, *self.sentences), "claim")
        yield Text("", self.summary)
        if self.cautions:
            yield Text("Before you believe it", self.cautions, "warning")
        if any(each.run.number for each in self.runs):
            yield self._last_runs()
        if self.accounts:
            yield account_table(self.accounts)
        if self.seals:
            yield _seal_table(self.seals)
        if self.details is not None:
            yield from self.details.explanation.parts
        yield round_table(self.rounds)
        if self.costs:
            yield self._cost_table()
        if self.details is not None:
            yield from _about(self.details, self.versions)

    def _last_runs(self) -> Table:
        """Returns the last runs; `keras-dp runs` has all."""
        notes: tuple[str, ...] = ()
        left_out = len(self.runs) - _MOST_RUNS
        if left_out > 0:
            earlier = counted(left_out, "earlier run")
            notes = (f"{earlier}, which `keras-dp runs` lists",)
        if self.guarantee.basis == "account":
            notes = (*notes, SO_FAR)
        return run_table(self.runs[-_MOST_RUNS:], notes)

    def _cost_table(self) -> Table:
        relation = str(self.neighbours).replace("_", " ")
        together = self.rows_per_unit * self.units
        if together > 1:
            relation += f", {together:,} records together"
        return Table(
            f"Epsilon of these rounds at delta = {self.delta!r}, {relation}",
            ("accountant", "epsilon"),
            tuple((each.accountant, each.bound) for each in self.costs),
            short=2,
        )

    def _unit(self) -> str:
        """Returns the unit, with the number of its rows as declared."""
        if self.unit in UNITS_OF_ROWS:
            return self.unit
        whole = rounds_of_whole_units(self.rounds)
        if whole and whole == self.total_rounds:
            return f"{self.unit} (with all its rows)"
        rows = (
            "one row"
            if self.rows_per_unit == 1
            else (f"at most {self.rows_per_unit:,} rows")
        )
        some = f"with all its rows in {whole:,} rounds, else " if whole else ""
        return f"{self.unit} ({some}{rows} each, as declared)"

    def _facts(self) -> dict[str, Any]:
        """Returns what programs read; an infinite epsilon is the text `inf`.

        Rounds are as in the ledger.
        """
        found, ex_post = self.guarantee, self.guarantee.ex_post
        facts: dict[str, Any] = {
            "dataset": self.dataset,
            "unit": self.unit,
            "rows_per_unit": self.rows_per_unit,
            "units": self.units,
            "ledger": self.place,
            "guarantee": {
                **json_claim(found.claim),
                "plain_words": self.plain_words,
                "sentence": found.claim.sentence(self.unit),
                "basis": found.basis,
                "theorem": found.theorem,
                "ex_post": None if ex_post is None else json_claim(ex_post),
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
            facts["explanation"] = self.details.explanation.facts()
            facts["rows"] = self.details.rows
            facts["head"] = self.details.head
        facts["rounds"] = [
            {"count": count, **content_from_round(each)}
            for each, count in self.rounds
        ]
        return facts


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
    >>> print(report)
    With all that was released, a bet on whether the data of one example are ...
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
        )
        for each in accountants
    )
    return Report(
        dataset=ledger.header.dataset,
        unit=ledger.header.unit,
        rows_per_unit=ledger.header.rows_per_unit,
        place=ledger.name,
        plain_words=plain_words(replay, found),
        guarantee=found,
        rounds=replay.rounds,
        unsettled=ledger.unsettled,
        delta=float(delta),
        neighbours=relation,
        costs=costs,
        runs=run_costs(replay, **question),
        accounts=account_states(ledger),
        seals=ledger.seals,
        cautions=cautions(replay, found),
        versions=_versions(replay.runs),
        units=int(units),
        details=_details(ledger, explanation_of(replay, found))
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


def json_claim(found: Claim) -> dict[str, Any]:
    """Returns a claim as values that JSON can hold."""
    return {
        **dataclasses.asdict(found),
        "epsilon": json_number(found.epsilon),
    }


def _seal_table(seals: tuple[Stated[Seal], ...]) -> Table:
    return Table(
        "Seals, before which no row changes",
        ("row", "when (UTC)", "hash", "note"),
        tuple(
            (
                f"{seal.number:,}",
                moment(seal.time),
                seal.hash,
                seal.statement.note,
            )
            for seal in seals
        ),
        short=2,
        numbers=(0,),
    )


def _about(
    details: Details, versions: Mapping[str, tuple[str, ...]]
) -> Iterator[Part]:
    """Yields who made the report, and of what."""
    yield Text(
        "About this report",
        (
            f"It was made by keras_dp {__version__}, which verified "
            f"{counted(details.rows, 'row')}: the ledger is as it was written, "
            "unless somebody computed all hashes anew.",
            f"The head of the ledger is {details.head}. A head or a "
            "certificate that was kept elsewhere shows whether the ledger is "
            "the same.",
        ),
    )
    if versions:
        yield Table(
            "Versions in the runs",
            ("library", "version"),
            tuple((name, ", ".join(each)) for name, each in versions.items()),
            short=2,
        )
