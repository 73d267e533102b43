"""Reads and writes rounds in the formats of other programs.

This package does not import TensorFlow.
"""

from keras_dp.interchange.csv_rounds import write_csv
from keras_dp.interchange.dp_events import from_dp_event, to_dp_event
from keras_dp.interchange.formatted_ledgers import (
    GaussianSumQueryEntry,
    SampleEntry,
    from_formatted_ledger,
    to_formatted_ledger,
)
from keras_dp.interchange.registry import (
    TO_BE_FILLED_IN,
    registry_entry,
    write_registry_entry,
)

__all__ = [
    "TO_BE_FILLED_IN",
    "GaussianSumQueryEntry",
    "SampleEntry",
    "from_dp_event",
    "from_formatted_ledger",
    "registry_entry",
    "to_dp_event",
    "to_formatted_ledger",
    "write_csv",
    "write_registry_entry",
]
