"""Statements: the rows of a ledger about runs, accounts and seals.

Each statement has a row of its own, which is never folded or changed, and which
is part of the chain of hashes. The text of the row is canonical JSON. As in
rounds, an unknown kind or field is refused, not skipped.
"""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self, TypeVar, cast

from keras_dp import _check
from keras_dp.ledger.events.rounds import CountedRound, Round, checked_pairs
from keras_dp.ledger.rows.author import Author
from keras_dp.ledger.rows.charges import opened
from keras_dp.ledger.rows.codec import (
    canonical,
    check_names,
    content_from_round,
    decoded,
    names_of,
    parsed,
    readable,
    round_from_content,
)

# The purpose of a run. A "trial" is a training whose result only guides others.
PURPOSES = (
    "training",
    "trial",
    "preprocessing",
    "statistics",
    "audit",
    "other",
)

# How a run ended: as planned; because a target or an account left no room;
# stopped earlier, perhaps because of what was seen; or by an exception.
Outcome = Literal["finished", "budget", "stopped", "failed"]
OUTCOMES = ("finished", "budget", "stopped", "failed")


@dataclasses.dataclass(frozen=True, slots=True)
class RunStart:
    """The beginning of a run: a training, a trial, preprocessing, a statistic.

    In a row that names a run, another process continues that run.

    Attributes:
        name: A name for people; several runs may share one.
        purpose: One of `PURPOSES`.
        description: Free text. It must hold nothing secret.
        account: The name of the account that pays for the rounds of the run;
            `None` for none.
        model: SHA-256 hash of the model's summary; empty without a model.
        author: The process that started or continued the run.
        library: The other library that draws the samples, clips and adds the
            noise, with its version. Then the ledger holds what that library
            was set to do. Empty where this library does it.
    """

    kind: ClassVar[str] = "run"

    name: str
    purpose: str
    description: str
    account: str | None
    model: str
    author: Author
    library: str = ""

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _check.one_of(PURPOSES, purpose=self.purpose)
        _check.kind(
            str,
            description=self.description,
            model=self.model,
            library=self.library,
        )
        if self.account is not None:
            _check.kind(str, account=self.account)


@dataclasses.dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run: the most that it will do.

    Attributes:
        rounds: Rounds, each with the largest number of times that it will run.
        delta: The delta that its epsilon will be published with, in (0, 1);
            `None` if nobody said it.
    """

    kind: ClassVar[str] = "plan"

    rounds: tuple[CountedRound, ...]
    delta: float | None = None

    def __post_init__(self) -> None:
        if self.delta is not None:
            _check.share("(0, 1)", delta=self.delta)
        tuple(checked_pairs("plan", self.rounds))  # Raises for others.

    @classmethod
    def of(
        cls, rounds: Iterable[tuple[Round, int]], delta: float | None
    ) -> Self:
        """Returns the plan of pairs of a round and a number."""
        return cls(tuple(checked_pairs("plan", rounds)), delta)


@dataclasses.dataclass(frozen=True, slots=True)
class RunEnd:
    """The end of a run, which will release nothing more."""

    kind: ClassVar[str] = "end"

    outcome: str

    def __post_init__(self) -> None:
        _check.one_of(OUTCOMES, outcome=self.outcome)


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """A share of the data set's privacy, which its rounds cannot exceed.

    Use `keras_dp.budgets.open_account` to open one.

    Attributes:
        name: The name, unique in the ledger. Runs name the account that pays.
        capacities: The largest amount that may be spent from each slot; see
            `Charge`.
        terms: A JSON object as canonical text. It says what the slots mean and
            which guarantee follows.

    >>> Account("clinic", capacities=(1000,), terms="{}").capacities
    (1000,)
    """

    kind: ClassVar[str] = "account"

    name: str
    capacities: tuple[int, ...]
    terms: str

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        opened(self.capacities)
        if not isinstance(parsed(self.terms), dict):
            raise ValueError(
                "`terms` must be a JSON object as text, such as '{}'. "
                f"Received: terms={self.terms!r}."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Seal:
    """A mark in the ledger: no row before it is ever changed."""

    kind: ClassVar[str] = "seal"

    note: str = ""

    def __post_init__(self) -> None:
        _check.kind(str, note=self.note)


_Kind = TypeVar("_Kind", RunStart, Account, Seal)
Statement = RunStart | RunPlan | RunEnd | Account | Seal

_CLASSES: dict[str, type[Any]] = {
    each.kind: each for each in (RunStart, RunPlan, RunEnd, Account, Seal)
}
KINDS = frozenset(_CLASSES)
# Their rows belong to no run; only a start may continue one.
KINDS_WITHOUT_RUN = KINDS - {RunPlan.kind, RunEnd.kind}


def text_from_statement(statement: Statement) -> str:
    """Returns the canonical text of a statement."""
    if isinstance(statement, RunPlan):
        content: dict[str, Any] = {
            "rounds": [
                [content_from_round(round_), count]
                for round_, count in statement.rounds
            ]
        }
        if statement.delta is not None:
            content["delta"] = statement.delta
    else:
        content = _fields(statement)
    if isinstance(statement, RunStart):
        content["author"]["versions"] = dict(statement.author.versions)
    if isinstance(statement, Account):
        content["terms"] = parsed(statement.terms)
    return canonical(content)


def _fields(value: Any) -> dict[str, Any]:
    """Returns `dataclasses.asdict`, without its copies, which take longer."""
    found = {}
    for name in names_of(value.__class__):
        each = getattr(value, name)
        found[name] = _fields(each) if dataclasses.is_dataclass(each) else each
    return found


# Many runs end with the same words.
@functools.lru_cache(maxsize=1024)
def statement_from_text(kind: str, text: str) -> Statement:
    """Inverts `text_from_statement`; the kind is one of `KINDS`."""
    with readable(f"A row of kind {kind!r}"):
        statement = _statement(kind, decoded(text))
        # So it is canonical, too.
        if text_from_statement(statement) != text:
            raise ValueError("it is not as this version writes it")
    return statement


def statement_of(kind: type[_Kind], text: str) -> _Kind:
    """Returns the statement of a class that a row's text holds."""
    return cast(_Kind, statement_from_text(kind.kind, text))


# One program makes many runs.
@functools.lru_cache(maxsize=1024)
def _author(*fields: tuple[str, Any]) -> Author:
    content = dict(fields)
    check_names("The author of a run", Author, content)
    return Author(**content)


def _statement(kind: str, content: Any) -> Statement:
    if kind == "plan":
        content = {"delta": None, **content}
    check_names(f"A row of kind {kind!r}", _CLASSES[kind], content)
    if kind == "plan":
        content["rounds"] = tuple(
            CountedRound(round_from_content(each), count)
            for each, count in content["rounds"]
        )
    if kind == "run":
        author = content["author"]
        author["versions"] = tuple(sorted(author["versions"].items()))
        content["author"] = _author(*author.items())
    if kind == "account":
        content["capacities"] = tuple(content["capacities"])
        content["terms"] = canonical(content["terms"])
    return cast(Statement, _CLASSES[kind](**content))
