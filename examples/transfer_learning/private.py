"""Transfer learning: a new head on a frozen convolutional base.

The base is trained on the first five of ten classes, which are public here, and
the head on the others. The base is called with `training=False`, so that its
BatchNormalization takes the statistics of the public images.

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
RECORDS, EPOCHS = (512, 1) if QUICK else (60_000, 5)


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


def pretrained_base(images, labels):
    """Returns a base without its head, trained on public images."""
    base = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 5, 2, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(32, 5, 2, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
        ]
    )
    whole = keras.Sequential([base, layers.Dense(5)])
    whole.compile(
        keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    whole.fit(images, labels, batch_size=256, epochs=EPOCHS, verbose=0)
    return base


(x, y), (x_test, y_test) = load()
x = x[..., np.newaxis].astype("float32")
x_test = x_test[..., np.newaxis].astype("float32")
base = pretrained_base(x[y < 5][:RECORDS], y[y < 5][:RECORDS])
base.trainable = False
x, y = x[y >= 5][:RECORDS], y[y >= 5][:RECORDS] - 5
x_test, y_test = x_test[y_test >= 5], y_test[y_test >= 5] - 5
os.chdir(tempfile.mkdtemp())  # Files are written there.

images = keras.Input((28, 28, 1))
logits = layers.Dense(5)(base(images, training=False))
model = keras.Model(images, logits)
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
