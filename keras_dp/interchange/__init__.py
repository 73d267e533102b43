"""Writes rounds in the formats of other programs.

This package does not import TensorFlow.
"""

from keras_dp.interchange.csv_rounds import write_csv
from keras_dp.interchange.dp_events import to_dp_event
from keras_dp.interchange.registry import (
    TO_BE_FILLED_IN,
    registry_entry,
    write_registry_entry,
)

__all__ = [
    "TO_BE_FILLED_IN",
    "registry_entry",
    "to_dp_event",
    "write_csv",
    "write_registry_entry",
]
