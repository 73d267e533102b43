"""Wide and deep: a linear model and a network over embeddings, added.

It says who earns above 50,000 dollars in the UCI Adult census data, which is
embedded in this repository. The categories are public.
"""

import os
import tempfile
from pathlib import Path

import keras
import numpy as np
from keras import layers

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS, EPOCHS, BATCH = (512, 1, 64) if QUICK else (32_561, 20, 1024)
DATA = Path(__file__).resolve().parents[2] / "data" / "adult.npz"


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

normalize = layers.Normalization()
normalize.adapt(x["numbers"])
with np.load(DATA) as file:
    model = make_model(file["cat_sizes"].tolist(), normalize)
model.compile(
    keras.optimizers.Adam(5e-3),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)],
)
model.fit(x, y, batch_size=BATCH, epochs=EPOCHS)

model.save("model.keras")
_, accuracy = model.evaluate(x_test, y_test, batch_size=4096, verbose=0)
print(f"accuracy {accuracy:.3f}")
