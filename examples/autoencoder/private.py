"""An autoencoder that compresses images to 16 numbers.

The loss is a sum over pixels. Gradients of their mean would be far below the
bound that private training clips them to, and below its noise.

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


def squared_error(images, outputs):
    """Returns the loss of each example, `[batch]`."""
    return keras.ops.sum(keras.ops.square(images - outputs), axis=1)


(x, _), (x_test, _) = load()
x = x[:RECORDS].reshape(-1, 784).astype("float32")
x_test = x_test.reshape(-1, 784).astype("float32")
os.chdir(tempfile.mkdtemp())  # Files are written there.

model = keras.Sequential(
    [
        keras.Input((784,)),
        layers.Dense(128, activation="tanh"),
        layers.Dense(16, name="code"),
        layers.Dense(128, activation="tanh"),
        layers.Dense(784, activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(3e-3), loss=squared_error, metrics=["mse"])
private = keras_dp.make_private(model, (x, x), target_epsilon=3)
private.fit()

model.save("model.keras")
_, error = model.evaluate(x_test, x_test, batch_size=500, verbose=0)
print(f"error {error:.4f}")
