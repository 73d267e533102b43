"""Image classification with a wide residual network, WRN-16.

The network has no batch normalization: each convolution has a standardized
kernel, and a group normalization before it. With a GPU it is the WRN-16-4 of De
et al. (2022); on a CPU it is as deep, and a quarter as wide.

The images are a part of CIFAR-10, 12,000 to train on, where `KERAS_DP_DATA`
names a folder with `cifar10_subset.npz`. Else they are synthetic: noisy waves
in ten directions, drawn with a fixed seed.
"""

import os
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from keras_dp.layers import StandardizedConv2D

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS, EPOCHS, DEPTH = (512, 1, 10) if QUICK else (12_000, 4, 16)
WIDTH = 4 if tf.config.list_physical_devices("GPU") else 1


def draw(count, seed):
    """Returns noisy waves in ten directions, and their labels."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(10, size=count)
    angles = np.pi / 10 * (labels + generator.uniform(-0.3, 0.3, count))
    across, down = np.mgrid[:32, :32]
    phases = np.multiply.outer(np.cos(angles), across)
    phases += np.multiply.outer(np.sin(angles), down)
    phases += generator.uniform(0, 6, size=(count, 1, 1))
    images = 0.5 + 0.3 * np.sin(phases)[..., np.newaxis]
    images = images + generator.normal(0, 0.2, (count, 32, 32, 3))
    return np.clip(images, 0, 1), labels


def load():
    """Returns the images and labels to train on, and those to test on."""
    if "KERAS_DP_DATA" not in os.environ:
        return draw(4_000, seed=1), draw(1_000, seed=2)
    with np.load(f"{os.environ['KERAS_DP_DATA']}/cifar10_subset.npz") as file:
        return tuple(
            (file[f"x_{split}"] / 255, file[f"y_{split}"])
            for split in ("train", "test")
        )


def convolution(x, filters, size, stride=1):
    """Normalizes images, and convolves their positive parts."""
    x = layers.ReLU()(layers.GroupNormalization(16)(x))
    return StandardizedConv2D(filters, size, stride, padding="same")(x)


def wide_resnet(depth, width):
    """Returns WRN-`depth`-`width`: three groups of residual blocks."""
    inputs = keras.Input((32, 32, 3))
    x = StandardizedConv2D(16, 3, padding="same")(inputs)
    for filters, first_stride in ((16, 1), (32, 2), (64, 2)):
        for block in range((depth - 4) // 6):
            stride = first_stride if block == 0 else 1
            y = convolution(x, filters * width, 3, stride)
            y = convolution(y, filters * width, 3)
            if x.shape != y.shape:
                x = convolution(x, filters * width, 1, stride)
            x = x + y
    x = layers.ReLU()(layers.GroupNormalization(16)(x))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10)(x))


(x, y), (x_test, y_test) = load()
x, y = x[:RECORDS].astype("float32") * 2 - 1, y[:RECORDS]
x_test = x_test.astype("float32") * 2 - 1
os.chdir(tempfile.mkdtemp())  # Files are written there.

model = wide_resnet(DEPTH, WIDTH)
model.compile(
    keras.optimizers.SGD(1.0),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(x, y, batch_size=128, epochs=EPOCHS)

model.save("model.keras")
_, accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
print(f"accuracy {accuracy:.3f}")
