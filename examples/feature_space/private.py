"""Columns of several kinds, encoded by `keras.utils.FeatureSpace`.

It says who earns above 50,000 dollars in the UCI Adult census data, which is
embedded in this repository. `FeatureSpace.adapt` of Keras remembers what it
sees: quantiles and means, and every category, however few people are in it.
Here noise is added to all of them, and one epsilon covers the encoding, the
weights and the metrics of the training. The ranges are public.
"""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_dp
from keras_dp import preprocessing
from keras_dp.experimental.feature_space import FeatureSpace

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS, EPOCHS, BATCH = (2048, 1, 256) if QUICK else (32_561, 20, 1024)
DATA = Path(__file__).resolve().parents[2] / "data" / "adult.npz"
RANGES = {
    "age": (17, 90),
    "education-num": (1, 16),
    "hours-per-week": (1, 99),
}
CATEGORIES = ["workclass", "marital-status", "occupation", "relationship"]


def load(split):
    """Returns columns `[n]` by name, and labels `[n, 1]`."""
    with np.load(DATA) as file:
        columns = {
            **zip_columns(file["num_names"], file[f"x_num_{split}"]),
            **zip_columns(file["cat_names"], file[f"x_cat_{split}"]),
        }
        labels = file[f"y_{split}"][:, np.newaxis]
    table = {name: columns[name] for name in (*RANGES, *CATEGORIES)}
    table["capital-gain"] = np.log1p(columns["capital-gain"], dtype="float32")
    return table, labels


def zip_columns(names, table):
    """Returns the columns of a table by name."""
    return dict(zip(names.tolist(), table.T.astype("int32"), strict=True))


train, y = keras.tree.map_structure(lambda leaf: leaf[:RECORDS], load("train"))
test, y_test = load("test")
os.chdir(tempfile.mkdtemp())  # Files are written there.

ledger = keras_dp.PrivacyLedger.open("people.ledger", dataset="people")
encode = FeatureSpace(
    {
        **{
            name: preprocessing.Discretization(RANGES[name], 10, 1.0)
            for name in RANGES
        },
        "capital-gain": preprocessing.Normalization((0.0, 12.0), 1.0),
        **{
            name: preprocessing.IntegerLookup(1.0, threshold_delta=1e-7)
            for name in CATEGORIES
        },
    },
    noise_multiplier=5.0,
).adapt(train, ledger)
x, x_test = np.asarray(encode(train)), np.asarray(encode(test))

model = keras.Sequential(
    [
        keras.Input((x.shape[1],)),
        keras.layers.Dense(32, activation="tanh"),
        keras.layers.Dense(1),
    ]
)
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
