"""Statements stand in a ledger beside rounds: runs, accounts, seals, audits.

Each is a row of its own, is never folded or changed, and stands in the chain of
hashes like the rounds. Its text is canonical JSON. As in rounds, what is not
known is refused, not skipped.
"""

import dataclasses
import json
from typing import Any, ClassVar, Literal, NamedTuple, cast

from keras_dp import _check
from keras_dp.errors import LedgerFormatError
from keras_dp.ledger.audits import Commitment, Opening, Verdict
from keras_dp.ledger.author import Author
from keras_dp.ledger.canonical import canonical, parsed
from keras_dp.ledger.charges import opened
from keras_dp.ledger.codec import content_from_round, round_from_content
from keras_dp.ledger.events import Round

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


class CountedRound(NamedTuple):
    """Equal rounds that happened one after the other."""

    round: Round
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.


@dataclasses.dataclass(frozen=True, slots=True)
class RunStart:
    """A run begins: a training, a trial, preprocessing, statistics.

    Attributes:
        name: People call it so; several runs may have one name.
        purpose: One of `PURPOSES`.
        description: Free text. Nothing secret.
        account: The account that pays for its rounds, if any.
        model: SHA-256 of the model's summary; empty without a model.
        author: The process that started it.
    """

    kind: ClassVar[str] = "run"

    name: str
    purpose: str
    description: str
    account: str | None
    model: str
    author: Author

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        _check.one_of(PURPOSES, purpose=self.purpose)
        _check.kind(str, description=self.description, model=self.model)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The most that a run will do, written before its first round.

    Attributes:
        rounds: Rounds with how often they happen at most.
    """

    kind: ClassVar[str] = "plan"

    rounds: tuple[CountedRound, ...]

    def __post_init__(self) -> None:
        for each in self.rounds:
            _check.integer_at_least(1, count=each.count)


@dataclasses.dataclass(frozen=True, slots=True)
class RunEnd:
    """A run ended, and will release nothing more.

    Attributes:
        outcome: One of `OUTCOMES`.
    """

    kind: ClassVar[str] = "end"

    outcome: str

    def __post_init__(self) -> None:
        _check.one_of(OUTCOMES, outcome=self.outcome)


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
    """A share of the data set's privacy, which no run can exceed.

    Attributes:
        name: By which runs choose it.
        capacities: The most it may spend in each slot; see `ledger.charges`.
        terms: A JSON object as canonical text. It says what the slots mean and
            which guarantee follows.
        parent: The account of which it is a share, if any.
    """

    kind: ClassVar[str] = "account"

    name: str
    capacities: tuple[int, ...]
    terms: str
    parent: str | None = None

    def __post_init__(self) -> None:
        _check.non_empty_text(name=self.name)
        opened(self.capacities)
        if not isinstance(parsed(self.terms), dict):
            raise ValueError(
                "`terms` must be a JSON object. Received: "
                f"terms={self.terms!r}."
            )


@dataclasses.dataclass(frozen=True, slots=True)
class Seal:
    """A mark: no row before it is ever changed.

    Attributes:
        note: Free text. Nothing secret.
    """

    kind: ClassVar[str] = "seal"

    note: str = ""

    def __post_init__(self) -> None:
        _check.kind(str, note=self.note)


Statement = RunStart | Plan | RunEnd | Account | Seal | Commitment | Verdict

_CLASSES: dict[str, type[Any]] = {
    each.kind: each
    for each in (RunStart, Plan, RunEnd, Account, Seal, Commitment, Verdict)
}
KINDS = frozenset(_CLASSES)
# Their rows belong to no run.
KINDS_WITHOUT_RUN = KINDS - {Plan.kind, RunEnd.kind}


def text_from_statement(statement: Statement) -> str:
    """Returns the canonical text of a statement."""
    if isinstance(statement, Plan):
        content: dict[str, Any] = {
            "rounds": [
                [content_from_round(round_), count]
                for round_, count in statement.rounds
            ]
        }
    else:
        content = dataclasses.asdict(statement)
    if isinstance(statement, RunStart):
        content["author"]["versions"] = dict(statement.author.versions)
    if isinstance(statement, Account):
        content["terms"] = json.loads(statement.terms)
    return canonical(content)


def statement_from_text(kind: str, text: str) -> Statement:
    """Inverts `text_from_statement`.

    Args:
        kind: One of `KINDS`.
        text: As the row holds it.

    Raises:
        LedgerFormatError: No statement of this kind is written as this text.
    """
    try:
        statement = _statement(kind, parsed(text))
        if text_from_statement(statement) != text:
            raise ValueError("it is not as this version writes it")
    except (
        TypeError,
        ValueError,
        KeyError,
        AttributeError,
        ArithmeticError,
        MemoryError,
        RecursionError,
    ) as error:
        raise LedgerFormatError(
            f"A row of kind {kind!r} cannot be read: {error}"
        ) from error
    return statement


def account_from_text(text: str) -> Account:
    """Returns the account of a row's text."""
    return cast(Account, statement_from_text(Account.kind, text))


def commitment_from_text(text: str) -> Commitment:
    """Returns the commitment of a row's text."""
    return cast(Commitment, statement_from_text(Commitment.kind, text))


def verdict_from_text(text: str) -> Verdict:
    """Returns the verdict of a row's text."""
    return cast(Verdict, statement_from_text(Verdict.kind, text))


def _statement(kind: str, content: Any) -> Statement:
    if kind == "plan":
        (rounds,) = content.values()
        return Plan(
            tuple(
                CountedRound(round_from_content(each), count)
                for each, count in rounds
            )
        )
    if kind == "run":
        author = content["author"]
        author["versions"] = tuple(sorted(author["versions"].items()))
        content["author"] = Author(**author)
    if kind == "account":
        content["capacities"] = tuple(content["capacities"])
        content["terms"] = canonical(content["terms"])
    if kind == "verdict":
        opening = content["opening"]
        content["opening"] = None if opening is None else Opening(**opening)
        content["assumptions"] = tuple(content["assumptions"])
        content["runs"] = tuple(content["runs"])
    return cast(Statement, _CLASSES[kind](**content))
