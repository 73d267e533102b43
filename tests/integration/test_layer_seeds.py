"""Nobody knows which row of a batch a layer gives which randomness."""

import keras
import numpy as np
import pytest
from keras import layers

import keras_dp
from keras_dp import _reproducible
from keras_dp.keras_internals import seed_generators_of
from keras_dp.training.step import layer_states
from tests.private_models import private_of

WIDTH, CLIP = 8, 1.0


@pytest.fixture(autouse=True)
def _without_chosen_seeds():
    """As in a user's program; tests run inside `reproducible()` otherwise."""
    token = _reproducible._is_on.set(False)
    yield
    _reproducible._is_on.reset(token)


def private_model(model=None, **options):
    keras.utils.set_random_seed(7)
    if model is None:
        model = keras.Sequential(
            [
                keras.Input((WIDTH,)),
                layers.Dropout(0.5, seed=3),
                layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
            ]
        )
    return private_of(
        model,
        keras_dp.GaussianAverageQuery(CLIP, 0.0, denominator=1.0),
        rate=1.0,
        loss=lambda y_true, y_pred: y_pred,
        **options,
    )


def released_sum(x):
    """Returns the sum of one round: what the weights move by at rate 1."""
    private = private_model()
    private.train_on_batch(x, np.zeros([len(x), 1], "float32"))
    return -private.model.get_weights()[0][:, 0]


def foretold_sum(x):
    """Returns what an adversary computes who knows the script's seeds."""
    keras.utils.set_random_seed(7)
    gradients = layers.Dropout(0.5, seed=3)(x, training=True).numpy()
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return (gradients / np.maximum(norms, CLIP)).sum(axis=0)


def records(count=40):
    generator = np.random.default_rng(0)
    return generator.normal(size=(count, WIDTH)).astype("float32")


class TestAnAdversaryWhoKnowsTheSeeds:
    def test_cannot_foretell_a_sum(self) -> None:
        x = records()

        assert np.linalg.norm(released_sum(x) - foretold_sum(x)) > CLIP

    def test_could_without_new_seeds(self, monkeypatch) -> None:
        """Control: and the sums of neighbours lie further apart than a clip."""
        monkeypatch.setattr(
            layer_states.LayerSeeds, "renew", lambda self, rounds: None
        )
        x = records()

        # float32 rounding of sums of order 10.
        np.testing.assert_allclose(released_sum(x), foretold_sum(x), atol=1e-5)
        moved = released_sum(x) - released_sum(x[1:])
        assert np.linalg.norm(moved) > 2 * CLIP


@keras.saving.register_keras_serializable(package="tests")
class HoldsAGenerator(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.inner = [layers.GaussianNoise(0.1, seed=5)]

    def build(self, shape):
        self.late = keras.random.SeedGenerator(11)
        self.built = True

    def call(self, x, training=False):
        x = self.inner[0](x, training=training)
        return keras.random.dropout(x, 0.1, seed=self.late)


def every_kind():
    return keras.Sequential(
        [
            layers.RandomFlip(seed=1),
            layers.Reshape((4, 4)),
            layers.LSTM(
                3, dropout=0.2, recurrent_dropout=0.2, seed=2, trainable=False
            ),
            HoldsAGenerator(),
            layers.Dense(1),
        ]
    )


def states_of(private):
    return [
        tuple(int(word) for word in generator.state.numpy())
        for generator in seed_generators_of(private.model)
    ]


class TestNewSeeds:
    @pytest.mark.full
    def test_reach_every_generator_and_are_wide(self) -> None:
        private = private_model(every_kind())
        x, y = np.zeros([8, 4, 2, 2], "float32"), np.zeros([8, 1], "float32")

        states = []
        for _ in range(3):
            private.fit(x, y, verbose=0)
            states += states_of(private)

        assert len(set(states)) == len(states) >= 3 * 4
        # A word below 2^40 has a chance of 2^-22.
        assert all(min(words) > 2**40 for words in states)

    def test_differ_from_those_that_a_checkpoint_saw(self, tmp_path) -> None:
        seen = []

        class Looks(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None):
                seen.extend(states_of(self.model))

            def on_train_batch_begin(self, batch, logs=None):
                seen.extend(states_of(self.model))

        private = private_model()
        x = records()
        private.fit(
            x,
            np.zeros([40, 1]),
            batch_size=40,
            epochs=3,
            callbacks=[Looks()],
            verbose=0,
        )
        seen.extend(states_of(private))

        assert len(set(seen)) == 7
