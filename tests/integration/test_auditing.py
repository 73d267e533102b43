"""An audit of a training by canaries of the user's own."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import auditing
from keras_dp.accountants import Fourier
from keras_dp.ledger import PrivacyLedger

CLASSES, DELTA = 4, 1e-5
LOSS = keras.losses.SparseCategoricalCrossentropy(
    from_logits=True, reduction="none"
)


def network():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((32,)),
            keras.layers.Dense(128, "tanh"),
            keras.layers.Dense(CLASSES),
        ]
    )


def records(seed):
    """Returns noise with random labels."""
    noise = np.random.Generator(np.random.Philox(seed))
    x = noise.normal(size=(400, 32)).astype(np.float32)
    return x, noise.integers(0, CLASSES, 400).astype(np.int32)


def scores(model, canaries, coins):
    """Minus the loss of each canary."""
    x, y = canaries
    losses = np.asarray(LOSS(y, model.predict(x, verbose=0)))
    return auditing.Scores.from_coins(-losses, coins)


def trained(ledger, data):
    """Trains privately, and returns the model."""
    private = keras_dp.make_private(
        network(),
        data,
        ledger=ledger,
        target_epsilon=1.0,
        delta=DELTA,
        epochs=2,
        batch_size=100,
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        verbose=False,
    )
    private.fit(verbose=0)
    return private.model


@pytest.mark.full
def test_a_training_beside_the_ledger_is_found() -> None:
    """The ledger says epsilon 1; the weights are of ordinary training."""
    ledger = PrivacyLedger.in_memory(dataset="noise")
    canaries = records(0)
    coins = np.random.Generator(np.random.Philox(2)).random(400) < 0.5
    data = tuple(
        np.concatenate([own, canary[coins]])
        for own, canary in zip(records(1), canaries, strict=True)
    )
    private = trained(ledger, data)
    ordinary = network()
    ordinary.compile(
        keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    ordinary.fit(*data, epochs=30, batch_size=100, verbose=0)

    kept, broken = (
        auditing.OneRun().epsilon(
            scores(model, canaries, coins), delta=DELTA, confidence=0.999
        )
        for model in (private, ordinary)
    )

    assert kept.epsilon < Fourier().epsilon(ledger, delta=DELTA) < 1.01
    assert broken.epsilon > 1.01
