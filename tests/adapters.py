"""What the tests of private preprocessing ask of every adapter."""

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from keras_dp.ledger import PrivacyLedger
from keras_dp.noise import grid

# Numbers that reach past every bound, or are none.
EXTREMES = (0.0, -0.0, 1e-320, 1e-9, 1.0, -1e9, 1e308, np.inf, -np.inf, np.nan)


def records_of(width):
    """One to five records of numbers, some of which are extreme."""
    numbers = st.sampled_from(EXTREMES) | st.floats(allow_nan=True)
    record = st.lists(numbers, min_size=width, max_size=width)
    return st.lists(record, min_size=1, max_size=5)


def without_noise(monkeypatch):
    def draws(like, stddev, seed):
        return [tf.zeros(each.shape, tf.int32) for each in like], seed

    monkeypatch.setattr(grid, "draws", draws)


def adapted(adapter, data):
    """Returns the layer, after a look at what the ledger holds."""
    ledger = PrivacyLedger.in_memory(dataset="d")
    layer = adapter.adapt(data, ledger)
    assert ledger.rounds == ((adapter.planned_round(), 1),)
    assert ledger.runs[0].outcome == "finished"
    return layer
