"""What `make_private` chooses by itself is good at every epsilon."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp._reproducible import reproducible

EPSILONS = (1.0, 8.0)
# Accuracies on 4,000 records have a standard error of 0.7 %, and trainings
# differ by about as much.
WITHIN_NOISE = 0.02


def data():
    """Returns 20 features and three classes, to train on and to test on."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(8000, 20)).astype("float32")
    hidden = np.tanh(x @ generator.normal(size=(20, 8)) / 2)
    y = (hidden @ generator.normal(size=(8, 3))).argmax(1)
    return (x[:4000], y[:4000]), (x[4000:], y[4000:])


def network(optimizer):
    model = keras.Sequential(
        [
            keras.Input((20,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(
        optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def accuracies(optimizer, **options):
    """Returns the accuracy at each epsilon."""
    train, test = data()
    found = []
    for epsilon in EPSILONS:
        keras.utils.set_random_seed(1)
        model = network(optimizer)
        with reproducible():
            keras_dp.make_private(
                model,
                train,
                target_epsilon=epsilon,
                epochs=10,
                ledger=keras_dp.PrivacyLedger.in_memory(dataset="drawn"),
                verbose=False,
                **options,
            ).fit(verbose=0)
        found.append(model.evaluate(*test, batch_size=4000, verbose=0)[1])
    return found


@pytest.mark.full
class TestMoreEpsilon:
    @pytest.mark.parametrize(
        "optimizer", ["sgd", pytest.param("adam", marks=pytest.mark.nightly)]
    )
    def test_is_never_worse(self, optimizer) -> None:
        """The law: accuracy does not fall as epsilon grows."""
        found = accuracies(optimizer)

        assert np.all(np.diff(found) > -WITHIN_NOISE)
        assert found[0] > 0.6
        assert found[-1] > 0.78

    def test_is_worse_with_the_rate_of_the_script(self) -> None:
        """A control: the batch grows with epsilon, and the rate does not."""
        found = accuracies("sgd", learning_rate="keep")

        assert found[-1] < found[0] - WITHIN_NOISE
