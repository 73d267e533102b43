"""Writes rounds as events of Google's dp_accounting.

This package does not import TensorFlow.
"""

from keras_dp.interchange.dp_events import to_dp_event

__all__ = ["to_dp_event"]
