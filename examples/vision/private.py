"""Image classification with a small convolutional network.

The images are MNIST where `KERAS_DP_DATA` names a folder with `mnist.npz`,
else synthetic: noisy bars in ten directions, drawn with a fixed seed.
"""

import os
import tempfile

import keras
import numpy as np
from keras import layers

import keras_dp

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS = 512 if QUICK else 60_000


def draw(count, seed):
    """Returns noisy bars in ten directions, `[count, 28, 28]`, and labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(10, size=count)
    angles = np.pi / 10 * (labels + generator.uniform(-0.3, 0.3, count))
    across, down = np.mgrid[-14:14, -14:14]
    distance = np.multiply.outer(np.cos(angles), across)
    distance += np.multiply.outer(np.sin(angles), down)
    distance += generator.uniform(-4, 4, size=(count, 1, 1))
    images = np.exp(-(distance**2) / 8)
    images += generator.normal(0, 0.3, images.shape)
    return np.clip(images, 0, 1), labels


def load():
    """Returns the images and labels to train on, and those to test on."""
    if "KERAS_DP_DATA" not in os.environ:
        return draw(10_000, seed=1), draw(2_000, seed=2)
    with np.load(f"{os.environ['KERAS_DP_DATA']}/mnist.npz") as file:
        return tuple(
            (file[f"x_{split}"] / 255, file[f"y_{split}"])
            for split in ("train", "test")
        )


(x, y), (x_test, y_test) = load()
x, y = x[:RECORDS, ..., np.newaxis].astype("float32"), y[:RECORDS]
x_test = x_test[..., np.newaxis].astype("float32")
os.chdir(tempfile.mkdtemp())  # Files are written there.

model = keras.Sequential(
    [
        keras.Input((28, 28, 1)),
        layers.Conv2D(16, 8, 2, padding="same", activation="tanh"),
        layers.MaxPooling2D(2, 1),
        layers.Conv2D(32, 4, 2, activation="tanh"),
        layers.MaxPooling2D(2, 1),
        layers.Flatten(),
        layers.Dense(32, activation="tanh"),
        layers.Dense(10),
    ]
)
model.compile(
    keras.optimizers.Adam(3e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
private = keras_dp.make_private(model, (x, y), target_epsilon=3)
private.fit()

model.save("model.keras")
_, accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
print(f"accuracy {accuracy:.3f}")
