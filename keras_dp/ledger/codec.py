"""Events and rounds as canonical JSON, and back.

The ledger stores, compares and hashes the text of a round. Kinds and fields
never change their meaning. An unknown kind or field is refused, not skipped.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from keras_dp.errors import LedgerFormatError
from keras_dp.ledger import events, noise_families
from keras_dp.ledger.canonical import UNREADABLE, canonical, parsed
from keras_dp.ledger.coordinate_bounds import CoordinateBounds

_KINDS: dict[str, type[Any]] = {
    "poisson": events.PoissonSampling,
    "poisson_users": events.PoissonUserSampling,
    "truncated_poisson": events.TruncatedPoissonSampling,
    "fixed_size_without_replacement": events.FixedSizeWithoutReplacement,
    "fixed_size_with_replacement": events.FixedSizeWithReplacement,
    "disjoint_batches": events.DisjointBatches,
    "random_allocation": events.RandomAllocation,
    "full_dataset": events.FullDataset,
    "unverified": events.UnverifiedSampling,
    "gaussian_sum": events.GaussianSum,
    "non_private_sum": events.NonPrivateSum,
    "discrete_gaussian_sum": events.DiscreteGaussianSum,
    "tree_sum": events.TreeSum,
    "encoded_sum": events.EncodedSum,
    "thresholded_sum": events.ThresholdedSum,
    # Values inside events.
    "coordinate_bounds": CoordinateBounds,
    **{
        f"{family}_noise": noise for family, noise in noise_families.ALL.items()
    },
}
_T = TypeVar("_T")
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {
    name: {field.name for field in dataclasses.fields(kind)}
    for name, kind in _KINDS.items()
}
# A ledger is read many times, and may have 10^5 kinds of rounds.
_REMEMBERED = 2**17


def text_from_round(round_: events.Round) -> str:
    """Returns the canonical text of a round.

    >>> text_from_round(events.Round(
    ...     events.FullDataset(), (events.NonPrivateSum("loss"),)))
    '{"queries":[{"kind":"non_private_sum","name":"loss"}],"sampling":...}'
    """
    return canonical(content_from_round(round_))


def content_from_round(round_: events.Round) -> dict[str, Any]:
    """Returns a round as dictionaries, lists, texts and numbers, for JSON."""
    return {
        "sampling": _content(round_.sampling),
        "queries": [_content(query) for query in round_.queries],
        "seeded": round_.seeded,
    }


@functools.lru_cache(maxsize=_REMEMBERED)
def round_from_text(text: str) -> events.Round:
    """Returns the round that a text describes.

    Raises:
        LedgerFormatError: The text is not canonical JSON; or it has a kind or a
            field that this version does not know, or a value that no event can
            have.
    """
    return round_from_content(_reading(parsed, text))


def round_from_content(content: Any) -> events.Round:
    """Inverts `content_from_round`.

    Raises:
        LedgerFormatError: See `round_from_text`.
    """
    return _reading(_round, content)


def _reading(read: Callable[[Any], _T], content: Any) -> _T:
    """Returns `read(content)`; errors become `LedgerFormatError`."""
    try:
        return read(content)
    except UNREADABLE as error:
        raise LedgerFormatError(
            f"A round of the ledger cannot be read: {error}"
        ) from error


def _round(content: Any) -> events.Round:
    if set(content) != {"sampling", "queries", "seeded"}:
        raise LedgerFormatError(
            "A round must have the fields sampling, queries and seeded. "
            f"Received: {sorted(content)!r}."
        )
    sampling = content["sampling"]
    return events.Round(
        _same_event(tuple(sampling), *sampling.values()),
        tuple(_event(query) for query in content["queries"]),
        content["seeded"],
    )


def _content(event: Any) -> dict[str, Any]:
    kind = _NAMES.get(type(event))
    if kind is None:
        raise TypeError(
            "Events must be of a class that the ledger can store. "
            f"Received: {event!r}. Use the events and noise families of "
            "`keras_dp.ledger`."
        )
    fields = {
        field.name: getattr(event, field.name)
        for field in dataclasses.fields(event)
    }
    for name, value in fields.items():
        if dataclasses.is_dataclass(value):
            fields[name] = _content(value)
    return {"kind": kind, **fields}


def _event(content: dict[str, Any]) -> Any:
    fields = dict(content)
    kind = fields.pop("kind", None)
    if kind not in _KINDS:
        raise LedgerFormatError(
            f"The kind of an event must be one of {sorted(_KINDS)!r}. "
            f"Received: {kind!r}. A newer version of the library may know it."
        )
    if fields.keys() != _FIELDS[kind]:
        raise LedgerFormatError(
            f"An event of kind {kind!r} must have the fields "
            f"{sorted(_FIELDS[kind])!r}. Received: {sorted(fields)!r}."
        )
    for name, value in fields.items():
        if isinstance(value, dict):
            fields[name] = _event(value)
    return _KINDS[kind](**fields)


@functools.lru_cache(maxsize=1024, typed=True)
def _same_event(names: tuple[str, ...], *values: Any) -> Any:
    """Returns an event, made once: many rounds have equal sampling events."""
    return _event(dict(zip(names, values, strict=True)))
