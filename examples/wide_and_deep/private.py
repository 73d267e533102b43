"""Wide and deep: a linear model and a network over embeddings, added.

It says who earns above 50,000 dollars in the UCI Adult census data, which is
embedded in this repository. The categories are public, and the ranges of the
numbers; one epsilon covers means, variances, weights and metrics.
"""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers

import keras_dp
from keras_dp import preprocessing

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS, EPOCHS, BATCH = (512, 1, 64) if QUICK else (32_561, 20, 1024)
DATA = Path(__file__).resolve().parents[2] / "data" / "adult.npz"
# In the order of `num_names`: age, final weight, years of education, ...
HIGHEST = [90, 1_500_000, 16, 100_000, 5_000, 99]


def load(split):
    """Returns numbers `[n, 6]`, codes `[n, 8]` and labels `[n, 1]`."""
    with np.load(DATA) as file:
        features = {
            "numbers": np.log1p(file[f"x_num_{split}"], dtype="float32"),
            "codes": file[f"x_cat_{split}"].astype("int32"),
        }
        return features, file[f"y_{split}"][:, np.newaxis]


def make_model(sizes, normalize):
    """Returns the model for categorical columns of these sizes.

    Numbers are normalized by a layer that was adapted.
    """
    numbers = keras.Input((6,), name="numbers")
    codes = keras.Input((len(sizes),), dtype="int32", name="codes")
    # Every category of every column has a row in one table.
    rows = codes + np.cumsum([0, *sizes[:-1]], dtype="int32")
    wide = layers.Embedding(sum(sizes), 1)(rows)
    wide = keras.ops.sum(wide, axis=1)
    deep = layers.Flatten()(layers.Embedding(sum(sizes), 8)(rows))
    deep = layers.Concatenate()([normalize(numbers), deep])
    deep = layers.Dense(32, activation="tanh")(deep)
    logits = layers.Add()([wide, layers.Dense(1)(deep)])
    return keras.Model({"numbers": numbers, "codes": codes}, logits)


x, y = keras.tree.map_structure(lambda leaf: leaf[:RECORDS], load("train"))
x_test, y_test = load("test")
os.chdir(tempfile.mkdtemp())  # Files are written there.

ledger = keras_dp.PrivacyLedger.open("people.ledger", dataset="people")
normalize = preprocessing.Normalization(
    (0.0, np.log1p(HIGHEST)), noise_multiplier=10.0
).adapt(x["numbers"], ledger)
with np.load(DATA) as file:
    model = make_model(file["cat_sizes"].tolist(), normalize)
model.compile(
    keras.optimizers.Adam(5e-3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
)
private = keras_dp.make_private(
    model,
    (x, y),
    target_epsilon=3,
    epochs=EPOCHS,
    batch_size=BATCH,
    ledger=ledger,
    private_metrics={
        "accuracy": keras_dp.PrivateMean(
            keras_dp.GaussianAverageQuery(
                1.0, noise_multiplier=20.0, denominator=BATCH
            ),
            lambda y, logit: (logit > 0) == (y > 0),
        )
    },
)
private.fit()

model.save("model.keras")
_, accuracy = model.evaluate(x_test, y_test, batch_size=4096, verbose=0)
print(f"accuracy {accuracy:.3f}")
