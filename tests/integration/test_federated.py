"""Federated averaging: a user's own training is the record."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.errors import PrivateTrainingError
from keras_dp.experimental.federation import FederatedModel, LocalTraining
from keras_dp.ledger import GaussianSum, PoissonUserSampling, PrivacyLedger
from tests.slow_loop import flat

DENOMINATOR, CLIP, RATE = 2.0, 0.05, 0.02


def data(users=6, records=17):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(records, 3)).astype("float32")
    y = generator.normal(size=(records, 1)).astype("float32")
    return x, y, generator.permutation(np.arange(records) % users)


def linear():
    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


def federated(model, local, *, query=None, ledger=None, **compiled):
    made = FederatedModel(model, local)
    made.compile(
        keras_dp.DPSGD(
            1.0,
            query=query
            or keras_dp.GaussianAverageQuery(
                CLIP, noise_multiplier=0.0, denominator=DENOMINATOR
            ),
            ledger=ledger or PrivacyLedger.in_memory(dataset="d", unit="user"),
        ),
        **({"loss": "mse"} | compiled),
    )
    return made


def samples(x, y, users, **changes):
    arguments = {
        "user_ids": users,
        "sampling_probability": 1.0,
        "records_per_user": 4,
        "rounds_per_epoch": 1,
    }
    return keras_dp.UserBatches((x, y), **(arguments | changes))


def change(made, before):
    return flat(made.model) - before


def alone(model, x, y, local):
    """Returns what Keras's own fit changes on the records of one user."""
    before = flat(model)
    model.compile(keras.optimizers.SGD(local.learning_rate), loss="mse")
    model.fit(
        x,
        y,
        epochs=local.epochs,
        batch_size=local.batch_size or len(x),
        shuffle=False,
        verbose=0,
    )
    return flat(model) - before


class TestTheUpdateOfAUser:
    """Against Keras's fit on each user's records, one after another."""

    @pytest.mark.parametrize(
        ("epochs", "rows", "jit_compile"),
        [
            (1, None, False),
            pytest.param(1, 4, True, marks=pytest.mark.full),
            pytest.param(3, None, True, marks=pytest.mark.nightly),
            (3, 4, False),
        ],
    )
    def test_is_clipped_and_summed(self, epochs, rows, jit_compile) -> None:
        x, y, users = data()
        local = LocalTraining(RATE, epochs=epochs)
        made = federated(linear(), local, jit_compile=jit_compile)
        before = flat(made.model)
        expected = 0.0
        for user in range(6):
            update = alone(linear(), x[users == user], y[users == user], local)
            norm = np.linalg.norm(update)
            expected = expected + update * min(1, CLIP / norm)

        made.fit(samples(x, y, users, physical_batch_size=rows), verbose=0)

        np.testing.assert_allclose(
            change(made, before), expected / DENOMINATOR, rtol=2e-4, atol=1e-7
        )

    @pytest.mark.parametrize(
        "layers",
        [
            [keras.Input((6, 1)), keras.layers.LSTM(3), keras.layers.Dense(1)],
            [
                keras.Input((6, 1)),
                keras.layers.Conv1D(2, 3, activation="relu"),
                keras.layers.GlobalMaxPooling1D(),
                keras.layers.Dense(1),
            ],
        ],
        ids=["recurrent", "convolution"],
    )
    def test_is_that_of_other_layers(self, layers) -> None:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(4, 6, 1)).astype("float32")
        y = generator.normal(size=(4, 1)).astype("float32")
        local = LocalTraining(0.3, epochs=2)
        keras.utils.set_random_seed(0)
        first = keras.Sequential(layers)
        second = keras.models.clone_model(first)
        second.set_weights(first.get_weights())
        made = federated(
            first,
            local,
            query=keras_dp.GaussianAverageQuery(1e6, 0.0, denominator=1.0),
        )
        before = flat(made.model)

        made.fit(samples(x, y, np.zeros(4, int)), verbose=0)

        np.testing.assert_allclose(
            change(made, before),
            alone(second, x, y, local),
            rtol=1e-3,
            atol=1e-6,
        )

    def test_of_huge_records_moves_the_sum_by_the_clip(self) -> None:
        x, y, users = data()
        x[users == 2] *= 1e5
        changes = []
        for kept in (users == users, users != 2):
            made = federated(linear(), LocalTraining(RATE, epochs=2))
            before = flat(made.model)
            made.fit(samples(x[kept], y[kept], users[kept]), verbose=0)
            changes.append(change(made, before) * DENOMINATOR)

        assert np.isfinite(changes[0]).all()
        moved = np.linalg.norm(changes[0] - changes[1])
        assert moved <= CLIP * (1 + 1e-4)


class TestTraining:
    def test_learns_and_records_each_round(self) -> None:
        generator = np.random.default_rng(0)
        x = generator.normal(size=(3000, 3)).astype("float32")
        y = x @ np.array([[1.0], [-2.0], [0.5]], "float32")
        ledger = PrivacyLedger.in_memory(dataset="d", unit="patient")
        made = federated(
            linear(),
            LocalTraining(0.05, epochs=2, batch_size=4),
            query=keras_dp.GaussianAverageQuery(
                1.0, noise_multiplier=0.8, denominator=100
            ),
            ledger=ledger,
            metrics=["mae"],
        )
        drawn = samples(
            x,
            y,
            np.arange(3000) % 1000,
            sampling_probability=0.1,
            rounds_per_epoch=10,
        )

        history = made.fit(drawn, epochs=4, verbose=0).history

        assert history["mae"][-1] < 0.3 * history["mae"][0]
        assert made.evaluate(drawn, verbose=0)[0] < 0.2
        ((round_, count),) = ledger.rounds
        assert count == 40
        assert round_.sampling == PoissonUserSampling(0.1, True)
        assert round_.queries == (GaussianSum("gradients", 1.0, 0.8),)

    def test_is_saved_and_loaded(self, tmp_path) -> None:
        x, y, users = data()
        made = federated(linear(), LocalTraining(RATE, epochs=3, batch_size=2))
        made.fit(samples(x, y, users), verbose=0)

        made.save(tmp_path / "a.keras")
        loaded = keras.saving.load_model(tmp_path / "a.keras")

        assert isinstance(loaded, FederatedModel)
        assert loaded.local == made.local
        np.testing.assert_array_equal(
            loaded.predict(x, verbose=0), made.predict(x, verbose=0)
        )


class TestWhatIsRefused:
    def test_data_without_users(self) -> None:
        x, y, _ = data()
        made = federated(linear(), LocalTraining(RATE))

        for source in (
            x,
            keras_dp.PoissonBatches((x, y), sampling_probability=0.5),
        ):
            with pytest.raises(TypeError, match="`x` must be UserBatches"):
                made.fit(source, y if source is x else None, verbose=0)
        with pytest.raises(TypeError, match="`x` must be UserBatches"):
            made.train_on_batch(x, y)
        assert not len(made.optimizer.ledger)

    def test_replicas_which_would_cut_users_apart(self) -> None:
        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            made = federated(linear(), LocalTraining(RATE))

        with pytest.raises(PrivateTrainingError, match="train on one device"):
            made.fit(samples(*data()), verbose=0)

        assert not len(made.optimizer.ledger)

    @pytest.mark.parametrize(
        "changes", [{"learning_rate": 0.0}, {"epochs": 0}, {"batch_size": 0}]
    )
    def test_numbers_out_of_range(self, changes) -> None:
        with pytest.raises(ValueError, match=f"`{next(iter(changes))}`"):
            LocalTraining(**({"learning_rate": 0.1} | changes))
