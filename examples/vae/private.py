"""A variational autoencoder, whose loss is computed for each example.

The loss is a function of the outputs, among which are the mean and the log
variance of the code. `add_loss` takes one number for a whole batch, which has
no gradients per example.

The images are MNIST where `KERAS_DP_DATA` names a folder with `mnist.npz`,
else synthetic: noisy bars in ten directions, drawn with a fixed seed.
"""

import os
import tempfile

import keras
import numpy as np
from keras import layers, ops

import keras_dp

QUICK = "KERAS_DP_QUICK" in os.environ
RECORDS = 512 if QUICK else 60_000
CODE = 8


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


class Sample(layers.Layer):
    """Draws codes with the given means and log variances in training.

    Elsewhere the code is its mean, as `Dropout` does nothing there.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator()

    def call(self, mean, log_variance, training=False):
        """Returns one code for each example, `[batch, code]`."""
        if not training:
            return mean
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(log_variance / 2) * noise


def negative_elbo(images, outputs):
    """Returns the loss of each example in nats, `[batch]`."""
    pixels, mean, log_variance = ops.split(outputs, [784, 784 + CODE], axis=1)
    error = 784 * keras.losses.binary_crossentropy(
        images, pixels, from_logits=True
    )
    excess = ops.square(mean) + ops.exp(log_variance) - log_variance - 1
    return error + ops.sum(excess, axis=1) / 2


(x, _), (x_test, _) = load()
x = x[:RECORDS].reshape(-1, 784).astype("float32")
x_test = x_test.reshape(-1, 784).astype("float32")
os.chdir(tempfile.mkdtemp())  # Files are written there.

images = keras.Input((784,))
hidden = layers.Dense(128, activation="tanh")(images)
mean, log_variance = layers.Dense(CODE)(hidden), layers.Dense(CODE)(hidden)
hidden = layers.Dense(128, activation="tanh")(Sample()(mean, log_variance))
pixels = layers.Dense(784)(hidden)
outputs = layers.Concatenate()([pixels, mean, log_variance])
model = keras.Model(images, outputs)
model.compile(keras.optimizers.Adam(3e-3), loss=negative_elbo)
private = keras_dp.make_private(model, (x, x), target_epsilon=3)
private.fit()

model.save("model.keras")
error = model.evaluate(x_test, x_test, batch_size=500, verbose=0)
print(f"error {error:.1f}")
