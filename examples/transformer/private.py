"""A transformer block that finds a word among others in a sequence.

The sequences are synthetic, drawn with a fixed seed: 24 words of 50. Those of
the second class hold three or more of the first five words.
"""

import os
import tempfile

import keras
import numpy as np
from keras import layers

import keras_dp

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS = 512 if QUICK else 8_000
LENGTH, WORDS, WIDTH = 24, 50, 16


def draw(count, seed):
    """Returns words `[count, 24]` and labels `[count, 1]`."""
    words = np.random.default_rng(seed).integers(WORDS, size=(count, LENGTH))
    labels = (words < 5).sum(1, keepdims=True) > 2
    return words.astype("int32"), labels.astype("int32")


def make_model():
    """Returns one block over words and their positions."""
    words = keras.Input((LENGTH,), dtype="int32")
    # The positions are repeated along the batch, as layers are called on.
    places = keras.ops.cumsum(keras.ops.ones_like(words), axis=1) - 1
    x = layers.Embedding(WORDS, WIDTH)(words)
    x = x + layers.Embedding(LENGTH, WIDTH)(places)
    x = layers.LayerNormalization()(
        x + layers.MultiHeadAttention(2, WIDTH // 2)(x, x)
    )
    forward = layers.Dense(WIDTH, activation="gelu")(x)
    x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(forward))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(words, layers.Dense(1)(x))


x, y = draw(RECORDS, seed=1)
x_test, y_test = draw(2_000, seed=2)
os.chdir(tempfile.mkdtemp())  # Files are written there.

model = make_model()
model.compile(
    keras.optimizers.Adam(5e-3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
)
private = keras_dp.make_private(model, (x, y), target_epsilon=3)
private.fit()

model.save("model.keras")
_, accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
print(f"accuracy {accuracy:.3f}")
