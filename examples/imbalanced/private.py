"""Classification of imbalanced classes: who earns above 50,000 dollars.

A quarter of the people in the UCI Adult census data do. Their examples weigh
three times as much. The data is embedded in this repository.

Public are the list of categories, the ranges of the numbers, and the weights.
"""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np

import keras_dp

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS = 512 if QUICK else 32_561
WEIGHTS = {1: 3.0}  # The others weigh 1.
DATA = Path(__file__).resolve().parents[2] / "data" / "adult.npz"
# In the order of `num_names`: age, final weight, years of education, ...
HIGHEST = [90, 1_500_000, 16, 100_000, 5_000, 99]


def load(split):
    """Returns features `[n, 108]` and labels `[n, 1]`."""
    with np.load(DATA) as file:
        numbers = np.log1p(file[f"x_num_{split}"]) / np.log1p(HIGHEST)
        codes = file[f"x_cat_{split}"].T
        columns = [
            np.eye(size)[code]
            for size, code in zip(file["cat_sizes"], codes, strict=True)
        ]
        labels = file[f"y_{split}"][:, np.newaxis]
    return np.concatenate([numbers, *columns], 1).astype("float32"), labels


x, y = (array[:RECORDS] for array in load("train"))
x_test, y_test = load("test")
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
    metrics=[keras.metrics.AUC(from_logits=True, name="auc")],
    weighted_metrics=[],
)
private = keras_dp.make_private(model, (x, y), target_epsilon=3)
private.fit(class_weight=WEIGHTS)

model.save("model.keras")
_, auc = model.evaluate(x_test, y_test, batch_size=4096, verbose=0)
print(f"auc {auc:.3f}")
