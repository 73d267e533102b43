"""Events and rounds as canonical JSON, and back.

Each value has one text, which can be compared and hashed. The ledger stores,
compares and hashes the text of a round. Kinds and fields never change their
meaning. An unknown kind or field is refused, not skipped.
"""

import contextlib
import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any

from keras_dp.errors import LedgerFormatError
from keras_dp.ledger.events import noise_families, rounds
from keras_dp.ledger.events.coordinate_bounds import CoordinateBounds
from keras_dp.ledger.events.selection import (
    Selection,
    TruncatedNegativeBinomial,
)
from keras_dp.ledger.events.strategies import BandedToeplitz, BinaryTree

# Code that reads content of another form raises one of these.
UNREADABLE = (
    *(TypeError, ValueError, KeyError, AttributeError),
    *(ArithmeticError, MemoryError, RecursionError),
)
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False
)
_KINDS: dict[str, type[Any]] = {
    **{each.kind: each for each in (*rounds.ALL, Selection)},
    TruncatedNegativeBinomial.kind: TruncatedNegativeBinomial,
    # Values inside events.
    "coordinate_bounds": CoordinateBounds,
    **noise_families.ALL,
    **{each.kind: each for each in (BandedToeplitz, BinaryTree)},
}
_ROUND = "A round of the ledger"
_NAMES = {kind: name for name, kind in _KINDS.items()}
# A ledger is read many times, and may have 10^5 kinds of rounds.
_REMEMBERED = 2**17


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Names what is read inside, where it has another form."""
    try:
        yield
    except UNREADABLE as error:
        raise LedgerFormatError(
            f"{what} cannot be read: {error}. Restore the ledger from a copy."
        ) from error


def canonical(content: Any) -> str:
    """Returns JSON with sorted keys and no spaces; floats are exact."""
    return _ENCODER.encode(content)


def decoded(text: str) -> Any:
    """Returns the value of a JSON text that has only one.

    An object with a field twice is refused, and one that is nested too deeply.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed(text: str) -> Any:
    """Returns the value of a canonical text; refuses another one."""
    content = decoded(text)
    if canonical(content) != text:
        raise LedgerFormatError(
            "A text of the ledger must be canonical JSON: sorted keys, no "
            "spaces, and numbers as Python writes them."
        )
    return content


@functools.cache
def names_of(kind: Any) -> tuple[str, ...]:
    """Returns the names of the fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(kind))


def check_names(what: str, kind: Any, content: dict[str, Any]) -> None:
    """Raises unless an object has the fields of a class of this version."""
    known, given = set(names_of(kind)), set(content)
    if unknown := sorted(given - known):
        raise LedgerFormatError(
            f"{what} has the fields {unknown!r}, which this version of "
            "keras_dp does not know. Read the ledger with the version that "
            "wrote it."
        )
    if missing := sorted(known - given):
        raise LedgerFormatError(
            f"{what} must have the fields {sorted(known)!r}. Received: an "
            f"object without {missing!r}. Restore the ledger from a copy."
        )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError(
            "An object must have each field once. "
            f"Received: {[name for name, _ in pairs]!r}."
        )
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats)


def text_from_round(round_: rounds.Round) -> str:
    """Returns the canonical text of a round."""
    return canonical(content_from_round(round_))


def content_from_round(round_: rounds.Round) -> dict[str, Any]:
    """Returns a round as dictionaries, lists, texts and numbers, for JSON."""
    return {
        "sampling": content_from_value(round_.sampling),
        "queries": [content_from_value(query) for query in round_.queries],
        "seeded": round_.seeded,
    }


@functools.lru_cache(maxsize=_REMEMBERED)
def round_from_text(text: str) -> rounds.Round:
    """Returns the round that a text describes.

    A text that is not canonical is refused, and a kind, a field or a value that
    this version does not know.
    """
    with readable(_ROUND):
        return _round(parsed(text))


def round_from_content(content: Any) -> rounds.Round:
    """Inverts `content_from_round`."""
    with readable(_ROUND):
        return _round(content)


def value_from_content(content: Any) -> Any:
    """Inverts `content_from_value`."""
    with readable(_ROUND):
        return _event(content)


def _round(content: Any) -> rounds.Round:
    check_names(_ROUND, rounds.Round, content)
    sampling = content["sampling"]
    return rounds.Round(
        _same_event(tuple(sampling), *sampling.values()),
        tuple(_event(query) for query in content["queries"]),
        content["seeded"],
    )


def content_from_value(event: Any) -> dict[str, Any]:
    """Returns an event, or a value inside one, for JSON."""
    kind = _NAMES.get(type(event))
    if kind is None:
        raise TypeError(
            "Events must be of a class that the ledger can store. "
            f"Received: {event!r}. Use the events and noise families of "
            "`keras_dp.ledger`."
        )
    fields = {name: getattr(event, name) for name in names_of(event.__class__)}
    for name, value in fields.items():
        if dataclasses.is_dataclass(value):
            fields[name] = content_from_value(value)
    if isinstance(event, Selection):
        fields["plans"] = [
            [[content_from_round(each), count] for each, count in plan]
            for plan in event.plans
        ]
    return {"kind": kind, **fields}


def _event(content: dict[str, Any]) -> Any:
    fields = dict(content)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise LedgerFormatError(
            f"The kind of an event must be one of {sorted(_KINDS)!r}. "
            f"Received: {kind!r}. A newer version of the library may know it."
        )
    check_names(f"An event of kind {kind!r}", _KINDS[kind], fields)
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = _event(value)
    if kind == Selection.kind:
        fields["plans"] = [
            [(_round(each), count) for each, count in plan]
            for plan in fields["plans"]
        ]
    return _KINDS[kind](**fields)


@functools.lru_cache(maxsize=1024, typed=True)
def _same_event(names: tuple[str, ...], *values: Any) -> Any:
    """Returns an event, made once: many rounds have equal sampling events."""
    return _event(dict(zip(names, values, strict=True)))
