"""DP-SGD on MNIST: a convolutional network to 96 % at epsilon <= 3.

The network of TensorFlow Privacy's tutorial, with tanh, which clips better
than relu (Papernot et al. 2020, arXiv:2007.14191).

    python tutorials/mnist_dpsgd.py --data mnist.npz [--epochs 20]

The data is an `.npz` file with `x_train`, `y_train`, `x_test`, `y_test`: the
option, else `mnist.npz` in the folder `$KERAS_DP_DATA`, else what
`keras.datasets.mnist` downloads.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import keras
import numpy as np
from keras import layers

import keras_dp
from keras_dp.reporting import make_report

DELTA = 1e-5
TARGET_EPSILON = 2.9


def load(path: Path | None) -> tuple[np.ndarray, ...]:
    """Returns x_train, y_train, x_test, y_test; pixels in [-1, 1]."""
    if path is None and "KERAS_DP_DATA" in os.environ:
        path = Path(os.environ["KERAS_DP_DATA"]) / "mnist.npz"
    if path is None:
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    else:
        with np.load(path) as file:
            x_train, y_train = file["x_train"], file["y_train"]
            x_test, y_test = file["x_test"], file["y_test"]

    def pixels(images: np.ndarray) -> np.ndarray:
        return images[..., np.newaxis].astype(np.float32) / 127.5 - 1

    return pixels(x_train), y_train, pixels(x_test), y_test


def make_model() -> keras.Model:
    """Returns the network, new."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, 2, padding="same", activation="tanh"),
            layers.MaxPooling2D(2, 1),
            layers.Conv2D(32, 4, 2, activation="tanh"),
            layers.MaxPooling2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10),
        ],
        name="mnist",
    )


def main() -> None:
    """Trains, and prints the accuracy and the bill."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--records", type=int, help="use only the first ones")
    options = parser.parse_args()
    x, y, x_test, y_test = load(options.data)
    x, y = x[: options.records], y[: options.records]

    scratch = tempfile.mkdtemp(prefix="mnist-")
    ledger = keras_dp.PrivacyLedger.open(
        options.ledger or Path(scratch) / "mnist.ledger", dataset="mnist"
    )
    with ledger:
        private = keras_dp.make_private(
            make_model(),
            (x, y),
            ledger=ledger,
            target_epsilon=TARGET_EPSILON,
            delta=DELTA,
            epochs=options.epochs,
            batch_size=options.batch,
            optimizer=keras.optimizers.SGD(
                0.2, momentum=0.9, use_ema=True, ema_momentum=0.95
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        start = time.perf_counter()
        private.fit(
            epochs=options.epochs, validation_data=(x_test, y_test), verbose=2
        )
        seconds = time.perf_counter() - start
        accuracy = private.evaluate(x_test, y_test, verbose=0)[1]
        print(f"Test accuracy {accuracy:.2%} after {seconds:.0f} s.")
        report = make_report(ledger, delta=DELTA)
        print(report)
        print(f"Ledger: {ledger.path}")


if __name__ == "__main__":
    main()
