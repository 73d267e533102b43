"""A recommender: the taste of a user times the style of a film.

The ratings are synthetic, drawn with a fixed seed. A record is one rating.
`Records(unit_ids=, rows_per_unit=)` protects all ratings of a user together.
"""

import os
import tempfile

import keras
import numpy as np
from keras import layers

import keras_dp

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS = 512 if QUICK else 40_000
USERS, FILMS, WIDTH = 100, 100, 2


def load():
    """Returns users and films `[n]`, and ratings `[n, 1]` of mean 0."""
    generator = np.random.default_rng(0)
    count = RECORDS + 2_000
    tastes = generator.normal(size=(USERS, WIDTH))
    styles = generator.normal(size=(FILMS, WIDTH))
    users = generator.integers(USERS, size=count).astype("int32")
    films = generator.integers(FILMS, size=count).astype("int32")
    ratings = (tastes[users] * styles[films]).sum(1, keepdims=True)
    return users, films, ratings + generator.normal(0, 0.3, ratings.shape)


users, films, ratings = load()
x, y = (users[:RECORDS], films[:RECORDS]), ratings[:RECORDS]
x_test, y_test = (users[RECORDS:], films[RECORDS:]), ratings[RECORDS:]
os.chdir(tempfile.mkdtemp())  # Files are written there.

user = keras.Input((), dtype="int32")
film = keras.Input((), dtype="int32")
taste = layers.Embedding(USERS, WIDTH, "random_normal")(user)
style = layers.Embedding(FILMS, WIDTH, "random_normal")(film)
model = keras.Model((user, film), layers.Dot(axes=1)([taste, style]))
model.compile(keras.optimizers.Adam(2e-2), loss="mse")
private = keras_dp.make_private(model, (x, y), target_epsilon=3)
private.fit()

model.save("model.keras")
error = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
print(f"error {error:.3f}")
