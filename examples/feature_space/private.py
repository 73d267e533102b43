"""Columns of several kinds, encoded by `keras.utils.FeatureSpace`.

It says who earns above 50,000 dollars in the UCI Adult census data, which is
embedded in this repository. `FeatureSpace.adapt` remembers what it sees. So it
sees a table of every category and of values in the public ranges, of no person.
"""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras.utils import FeatureSpace

import keras_dp

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS, EPOCHS = (512, 1) if QUICK else (32_561, 20)
DATA = Path(__file__).resolve().parents[2] / "data" / "adult.npz"
RANGES = {
    "age": (17, 90),
    "education-num": (1, 16),
    "hours-per-week": (1, 99),
    "capital-gain": (1, 100_000),
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
    return {name: columns[name] for name in (*RANGES, *CATEGORIES)}, labels


def zip_columns(names, table):
    """Returns the columns of a table by name."""
    return dict(zip(names.tolist(), table.T.astype("int32"), strict=True))


def make_feature_space():
    """Returns an encoding that is adapted to public values alone."""
    space = FeatureSpace(
        {
            **{name: FeatureSpace.float_discretized(10) for name in RANGES},
            **{
                name: FeatureSpace.integer_categorical(num_oov_indices=0)
                for name in CATEGORIES
            },
        },
        output_mode="concat",
    )
    table = {name: np.geomspace(*RANGES[name], 100) for name in RANGES}
    with np.load(DATA) as file:
        sizes = dict(zip(file["cat_names"], file["cat_sizes"], strict=True))
    for name in CATEGORIES:
        table[name] = np.arange(100) % sizes[name]
    space.adapt(tf.data.Dataset.from_tensor_slices(table).batch(100))
    return space


encode = make_feature_space()
train, y = keras.tree.map_structure(lambda leaf: leaf[:RECORDS], load("train"))
test, y_test = load("test")
x, x_test = np.asarray(encode(train)), np.asarray(encode(test))
os.chdir(tempfile.mkdtemp())  # Files are written there.

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
private = keras_dp.make_private(model, (x, y), target_epsilon=3, epochs=EPOCHS)
private.fit()

model.save("model.keras")
_, accuracy = model.evaluate(x_test, y_test, batch_size=4096, verbose=0)
print(f"accuracy {accuracy:.3f}")
