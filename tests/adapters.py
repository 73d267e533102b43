"""What the tests of private preprocessing ask of every adapter."""

import subprocess
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_dp.ledger import PrivacyLedger
from keras_dp.noise import grid
from tests.waiting import HUNG_SECONDS

# Numbers that reach past every bound, or are none.
EXTREMES = (0.0, -0.0, 1e-320, 1e-9, 1.0, -1e9, 1e308, np.inf, -np.inf, np.nan)


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


def answers_in_another_process(layer, inputs, folder):
    """Returns what the saved layer answers where only Keras is imported."""
    symbol = keras.Input(inputs.shape[1:], dtype=inputs.dtype)
    model = keras.Model(symbol, layer(symbol))
    model.save(folder / "model.keras")
    np.save(folder / "inputs.npy", inputs)
    script = (
        "import sys, keras, numpy as np\n"
        f"model = keras.saving.load_model({str(folder / 'model.keras')!r})\n"
        f"inputs = np.load({str(folder / 'inputs.npy')!r})\n"
        "answers = keras.ops.convert_to_numpy(model(inputs))\n"
        f"np.save({str(folder / 'answers.npy')!r}, answers)\n"
        "assert 'keras_dp' not in sys.modules\n"
    )
    command = [sys.executable, "-c", script]
    subprocess.run(command, check=True, timeout=HUNG_SECONDS)
    return np.load(folder / "answers.npy")
