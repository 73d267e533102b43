"""Conditions under which a training is refused, or warned of."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from absl import logging


class Condition(NamedTuple):
    """A condition that must not hold, and what is said where it does.

    It is about privacy or about a loss of accuracy that was measured. What
    Keras says well is left to Keras.

    Attributes:
        when: Returns what was found; something false where all is well.
        error: The error that is raised; `None` for a warning.
        text: It is formatted with what was found; if that is a tuple, with each
            of its values.
    """

    when: Callable[..., Any]
    error: type[Exception] | None
    text: str


class Said:
    """The warnings of a private model since it was compiled."""

    def __init__(self) -> None:
        self._texts: set[str] = set()

    def warn(self, text: str, *values: Any) -> None:
        """Logs a warning with public values, unless it was logged before."""
        if text not in self._texts:
            self._texts.add(text)
            logging.warning("%s", text.format(*values))


def judge(
    conditions: Iterable[Condition],
    *looked_at: Any,
    said: Said | None = None,
) -> None:
    """Raises the first error of a table, and logs the warnings before it.

    Warnings that were `said` before are not repeated.

    >>> negative = Condition(lambda x: x < 0 and x, ValueError, "Received: {}.")
    >>> judge([negative], 1)
    >>> judge([negative], -1)
    Traceback (most recent call last):
    ValueError: Received: -1.
    """
    said = said or Said()
    for when, error, text in conditions:
        found = when(*looked_at)
        if not found:
            continue
        values = found if isinstance(found, tuple) else (found,)
        if error is not None:
            raise error(text.format(*values))
        said.warn(text, *values)
