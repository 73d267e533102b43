"""Writes rounds in the formats of other programs.

This package does not import TensorFlow.
"""

from keras_dp.interchange.csv_rounds import write_csv
from keras_dp.interchange.dp_events import to_dp_event

__all__ = ["to_dp_event", "write_csv"]
