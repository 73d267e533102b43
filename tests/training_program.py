"""What an installation with one of the extras for training does.

Tests run it in an environment of its own.
"""

import keras
import numpy as np

import keras_dp


def main() -> None:
    """Trains a small model for an epoch."""
    x = np.random.default_rng(0).normal(size=(2000, 4)).astype("float32")
    y = (x[:, 0] > 0).astype("int32")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(
        keras.optimizers.Adam(0.05),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    private = keras_dp.make_private(model, (x, y), target_epsilon=3.0, epochs=1)
    private.fit(verbose=2)


if __name__ == "__main__":
    main()
