"""Writes rounds in the format of another program.

This package does not import TensorFlow.
"""

from keras_dp.interchange.dp_events import to_dp_event

__all__ = ["to_dp_event"]
