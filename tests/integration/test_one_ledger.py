"""Layers, a training and its metrics: reports show one epsilon over all."""

import json

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import preprocessing
from keras_dp.accountants import Fourier
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    ThresholdedSum,
)
from keras_dp.reporting.cli import main

pytestmark = pytest.mark.full

DELTA = 1e-4
# What the program below releases, written down by hand.
NOISE = 8.0 * np.sqrt(2)  # Of each layer: both cost as much as one of 8.
METRIC = GaussianSum("metrics/accuracy", 1.0, 10.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the path of the ledger, and the noise of its gradients."""
    generator = np.random.default_rng(0)
    towns = generator.choice(["Bonn", "Kiel", "Ulm"], 1000)
    ages = generator.uniform(20, 60, [1000, 1])
    labels = (towns == "Ulm")[:, np.newaxis].astype("float32")
    path = tmp_path_factory.mktemp("one") / "people.ledger"
    with PrivacyLedger.open(path, dataset="people", unit="person") as ledger:
        normalize = preprocessing.Normalization((0, 100), NOISE).adapt(
            ages, ledger, run="age"
        )
        lookup = preprocessing.StringLookup(
            NOISE, threshold_delta=1e-6, output_mode="one_hot"
        ).adapt(towns, ledger, run="town")
        x = np.hstack([normalize(ages), lookup(towns[:, np.newaxis])])
        model = keras.Sequential(
            [keras.Input(x.shape[1:]), keras.layers.Dense(1)]
        )
        model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
        private = keras_dp.make_private(
            model,
            (x, labels),
            target_epsilon=2.0,
            delta=DELTA,
            epochs=2,
            batch_size=100,
            ledger=ledger,
            run="model",
            verbose=False,
            private_metrics={
                "accuracy": keras_dp.PrivateMean(
                    keras_dp.GaussianAverageQuery(1.0, 10.0, denominator=100),
                    lambda y, logit: (logit > 0) == (y > 0),
                )
            },
        )
        history = private.fit(verbose=0).history
    assert {"accuracy", "epsilon"} <= set(history)
    assert "loss" not in history  # It would be of bare records.
    return path, private.optimizer.query.noise_multiplier


@pytest.fixture(scope="module")
def by_hand(trained):
    """Returns the epsilon of each part, of rounds that no ledger counted."""
    threshold = preprocessing.StringLookup(NOISE, 1e-6).events()[0].threshold
    words = ThresholdedSum("town", 1.0, NOISE, 1, threshold)
    gradients = GaussianSum("gradients", 1.0, trained[1])

    def epsilon(*rounds):
        return Fourier().epsilon(rounds, delta=DELTA)

    age = (Round(FullDataset(), (GaussianSum("age", 1.0, NOISE),)), 1)
    town = (Round(FullDataset(), (words,)), 1)
    training = (Round(PoissonSampling(0.1), (gradients, METRIC)), 20)
    return {
        "age": epsilon(age),
        "town": epsilon(town),
        "layers": epsilon(age, town),
        "model": epsilon(training),
        "all": epsilon(age, town, training),
    }


def answer(capsys, path, *options):
    assert main(["report", str(path), "--delta", str(DELTA), *options]) == 0
    return capsys.readouterr().out


def test_the_numbers_of_the_json_are_those_of_a_replay(
    trained, by_hand, capsys
) -> None:
    found = json.loads(answer(capsys, trained[0], "--format", "json"))

    def is_near(epsilon):
        return pytest.approx(epsilon, rel=1e-6)

    whole = found["guarantee"]["epsilon"]
    assert whole == is_near(by_hand["all"])
    assert 1.999 < whole <= 2.0
    for run, (name, purpose, total) in zip(
        found["runs"],
        (
            ("age", "preprocessing", "age"),
            ("town", "preprocessing", "layers"),
            ("model", "training", "all"),
        ),
        strict=True,
    ):
        assert (run["name"], run["purpose"]) == (name, purpose)
        assert run["epsilon"] == is_near(by_hand[name])
        assert run["total_epsilon"] == is_near(by_hand[total])
