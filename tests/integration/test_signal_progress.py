"""Signal beside noise: in the logs, and what is said at the end."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.dp_queries import (
    GaussianAverageQuery,
    GaussianSumQuery,
    NestedQuery,
    NormalizedQuery,
)
from keras_dp.optimizers.answer_sizes import Sizes
from keras_dp.training.callbacks.signal_progress import advice_on_layers
from tests.private_models import private_of

RECORDS, BATCH = 400, 40
X = np.random.default_rng(0).normal(size=[RECORDS, 5]).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def average(noise):
    return GaussianAverageQuery(1.0, noise_multiplier=noise, denominator=BATCH)


def private_model(query, **options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(6, activation="tanh", name="stem"),
            keras.layers.Dense(1, name="head"),
        ]
    )
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    return private_of(model, query, seed=2, loss=loss, **options)


def samples(**options):
    return keras_dp.PoissonBatches(
        (X, Y), sampling_probability=BATCH / RECORDS, **options
    )


class Steps(keras.callbacks.Callback):
    """Notes the weights after each round, from which SGD's answers follow."""

    def on_train_begin(self, logs=None):
        self.weights = [self.now()]

    def on_train_batch_end(self, batch, logs=None):
        self.weights.append(self.now())

    def now(self):
        return [w.numpy().astype(float) for w in self.model.trainable_variables]

    def squared_answers(self):
        """Shape `[rounds, variables]`, at the learning rate 0.1."""
        pairs = zip(self.weights, self.weights[1:], strict=False)
        return np.array(
            [
                [
                    np.sum(((b - a) / 0.1) ** 2)
                    for a, b in zip(one, two, strict=True)
                ]
                for one, two in pairs
            ]
        )


def of_groups():
    query = NestedQuery(
        {
            "stem": average(0.5),
            "head": NormalizedQuery(
                GaussianSumQuery(1.0, noise_multiplier=2.0), BATCH
            ),
        }
    )
    stddevs = np.array([0.5, 0.5, 2.0, 2.0]) / BATCH
    return query, {"stem": "stem", "head": "head"}, stddevs


class TestLogs:
    @pytest.mark.full
    @pytest.mark.parametrize(
        ("physical_batch_size", "jit_compile"),
        [(None, False), (16, False), (16, True)],
    )
    def test_are_as_computed_from_the_steps_of_sgd(
        self, physical_batch_size, jit_compile
    ):
        query, groups, stddevs = of_groups()
        private = private_model(query, groups=groups, jit_compile=jit_compile)
        steps = Steps()

        history = private.fit(
            samples(physical_batch_size=physical_batch_size),
            epochs=2,
            verbose=0,
            callbacks=[steps],
        ).history

        counts = [w.size for w in steps.weights[0]]
        noise = 10 * np.sum(counts * stddevs**2)  # In the rounds of an epoch.
        squares = steps.squared_answers()
        for epoch, logged in enumerate(history["signal_to_noise"]):
            of_epoch = squares[10 * epoch : 10 * (epoch + 1)].sum()
            expected = max(0, of_epoch / noise - 1)
            # Weights are float32: their differences lose digits.
            assert logged**2 == pytest.approx(expected, rel=1e-3, abs=1e-3)

    def test_are_without_it_if_there_is_no_noise(self):
        history = private_model(average(0.0)).fit(samples(), verbose=0).history

        assert "signal_to_noise" not in history


def sizes(rounds, *layers):
    """Returns sizes of layers of (name, coordinates, signal / noise)."""
    names, coordinates, ratios = zip(*layers, strict=True)
    noise = rounds * np.array(coordinates, float)
    return Sizes(
        tuple(f"model/{name}/kernel" for name in names),
        np.array(coordinates),
        rounds,
        noise * (1 + np.array(ratios) ** 2),
        noise,
    )


class TestAdvice:
    @pytest.mark.parametrize(
        ("rounds", "layers", "words"),
        [
            (
                100,
                [("table", 10**6, 0.03), ("head", 100, 0.5)],
                [
                    "weights of model/table (1,000,000 weights) further",
                    "may do better",
                ],
            ),
            # The signals of 100 rounds may add up to 3 times the noise.
            (100, [("stem", 10**6, 0.3)], []),
            # Without any signal the estimate of ten weights is too uncertain.
            (1000, [("bias", 10, 0.0)], []),
        ],
    )
    def test_names_layers_that_noise_moved_further(self, rounds, layers, words):
        text = advice_on_layers(sizes(rounds, *layers))

        assert bool(text) == bool(words)
        assert all(word in text for word in words)
