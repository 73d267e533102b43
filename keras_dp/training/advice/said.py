"""Warnings of a training, each of which is said once."""

from typing import Any

from absl import logging


class Said:
    """The warnings of a private model since it was compiled."""

    def __init__(self) -> None:
        """Begins with none."""
        self._texts: set[str] = set()

    def warn(self, text: str, *values: Any) -> None:
        """Logs a warning, unless the same text was logged before.

        Args:
            text: The text, with a place for each of the values.
            *values: As in `logging.warning`.
        """
        if text not in self._texts:
            self._texts.add(text)
            logging.warning(text, *values)
