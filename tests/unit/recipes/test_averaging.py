"""Averaged weights, where they are made and where they are seen."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.recipes.learning_rate import choose_average

ROUNDS = 40


def data():
    x = np.random.default_rng(0).normal(size=(400, 5)).astype("float32")
    return x, (x.sum(1) > 0).astype("float32")[:, np.newaxis]


def model():
    return keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])


def private_of(given, **changes):
    arguments = {
        "ledger": keras_dp.PrivacyLedger.in_memory(dataset="doc"),
        "target_epsilon": 2.0,
        "epochs": 4,
        "batch_size": 40,
        "delta": 1e-4,
        "loss": "mse",
        "verbose": False,
    }
    return keras_dp.make_private(given, data(), **(arguments | changes))


class Weights(keras.callbacks.Callback):
    """Notes the weights at the end of each round and of each epoch."""

    def __init__(self, of) -> None:
        super().__init__()
        self._of = of
        self.rounds, self.epochs = [], []

    def on_train_batch_end(self, batch, logs=None) -> None:
        self.rounds.append(self._of.get_weights()[0])

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.epochs.append(self._of.get_weights()[0])


def averaged(rounds, momentum):
    average = rounds[0]
    for each in rounds[1:]:
        average = momentum * average + (1 - momentum) * each
    return average


class TestAveraging:
    @pytest.mark.parametrize(
        "epochs",
        [4, pytest.param(3, marks=pytest.mark.full)],
        ids=["to the end", "short"],
    )
    def test_is_left_in_the_model_and_seen_by_validation(self, epochs) -> None:
        """It also is if training ends before the plan."""
        given = model()
        private = private_of(given, optimizer="sgd")
        seen = Weights(given)

        history = private.fit(
            epochs=epochs, verbose=0, callbacks=[seen], validation_data=data()
        ).history

        expected = averaged(seen.rounds, 1 - 10 / ROUNDS)
        np.testing.assert_allclose(given.get_weights()[0], expected, rtol=1e-4)
        np.testing.assert_array_equal(seen.epochs[-1], given.get_weights()[0])
        assert np.any(np.abs(seen.rounds[-1] - expected) > 1e-3)
        after = private.evaluate(*data(), verbose=0)
        assert history["val_loss"][-1] == pytest.approx(after, rel=1e-5)
        # The first round of an epoch is one step from the weights before,
        # which are not the averages.
        steps = np.abs(np.diff(np.array(seen.rounds), axis=0)).max((1, 2))
        assert steps[9] < 3 * np.median(steps)
        assert np.abs(seen.rounds[10] - seen.epochs[0]).max() > 0

    @pytest.mark.parametrize("rounds", [1, 5, 10, 1000])
    def test_is_over_a_tenth_of_the_rounds(self, rounds) -> None:
        samples = keras_dp.PoissonBatches(data(), sampling_probability=0.1)
        settings = keras_dp.recipes.Settings(
            model(),
            {},
            epochs=rounds / samples.rounds_per_epoch,
            samples=samples,
            optimizer=keras.optimizers.SGD(),
            average="auto",
        )

        settings = choose_average(settings)

        (choice,) = settings.choices
        assert f"about {max(1, rounds // 10):,} rounds" in choice.value
        assert settings.optimizer.ema_momentum == max(0.0, 1 - 10 / rounds)
