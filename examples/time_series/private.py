"""A forecast of the next value of a series, by an LSTM.

The series are synthetic, drawn with a fixed seed: noisy waves, one a person.
"""

import os
import tempfile

import keras
import numpy as np
from keras import layers

import keras_dp

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS = 512 if QUICK else 8_000


def draw(count, seed):
    """Returns series `[count, 24, 1]`, and the value that follows each."""
    generator = np.random.default_rng(seed)
    phases, lengths = generator.uniform([[0], [8]], [[6.28], [16]], (2, count))
    waves = np.sin(phases + 6.28 * np.outer(np.arange(25), 1 / lengths)).T
    waves += generator.normal(0, 0.05, waves.shape)
    return waves[:, :-1, np.newaxis].astype("float32"), waves[:, -1:]


x, y = draw(RECORDS, seed=1)
x_test, y_test = draw(2_000, seed=2)
os.chdir(tempfile.mkdtemp())  # Files are written there.

model = keras.Sequential(
    [keras.Input((24, 1)), layers.LSTM(16), layers.Dense(1)]
)
model.compile(keras.optimizers.Adam(1e-2), loss="mse")
private = keras_dp.make_private(model, (x, y), target_epsilon=3)
private.fit()

model.save("model.keras")
error = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
print(f"error {error:.4f}")
