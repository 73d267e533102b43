"""Canonical JSON: each value has one text, which can be compared and hashed."""

import json
from typing import Any

from keras_dp.errors import LedgerFormatError

# Code that reads content of another form raises one of these.
UNREADABLE = (
    *(TypeError, ValueError, KeyError, AttributeError),
    *(ArithmeticError, MemoryError, RecursionError),
)
_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False
)


def canonical(content: Any) -> str:
    """Returns JSON with sorted keys and no spaces; floats are exact."""
    return _ENCODER.encode(content)


def decoded(text: str) -> Any:
    """Returns the value of a JSON text that has only one.

    Raises:
        ValueError: The text is not JSON, an object in it has a field twice, or
            it is nested too deeply.
    """
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed(text: str) -> Any:
    """Returns the value of a canonical text.

    Raises:
        LedgerFormatError: The text is not canonical.
        ValueError: It is not JSON; see `decoded`.
    """
    content = decoded(text)
    if canonical(content) != text:
        raise LedgerFormatError(
            "A text of the ledger must be canonical JSON: sorted keys, no "
            "spaces, and numbers as Python writes them."
        )
    return content


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns the object of some pairs; refuses a field that occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError(
            "An object must have each field once. "
            f"Received: {[name for name, _ in pairs]!r}."
        )
    return content


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats)
