"""A layer, a training and its metrics: reports show one epsilon over all."""

import json
import re

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import preprocessing
from keras_dp.accountants import Fourier
from keras_dp.experimental.feature_space import FeatureSpace
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
SHARE = 8.0 * np.sqrt(2)  # Two features in one round of multiplier 8.
METRIC = GaussianSum("metrics/accuracy", 1.0, 10.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the path of the ledger, and the noise of its gradients."""
    generator = np.random.default_rng(0)
    towns = generator.choice(["Bonn", "Kiel", "Ulm"], 1000)
    table = {"town": towns, "age": generator.uniform(20, 60, 1000)}
    labels = (towns == "Ulm")[:, np.newaxis].astype("float32")
    path = tmp_path_factory.mktemp("one") / "people.ledger"
    with PrivacyLedger.open(path, dataset="people", unit="person") as ledger:
        space = FeatureSpace(
            {
                "age": preprocessing.Normalization((0, 100), 1.0),
                "town": preprocessing.StringLookup(1.0, threshold_delta=1e-6),
            },
            noise_multiplier=8.0,
        ).adapt(table, ledger, run="columns")
        x = np.asarray(space(table))
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
    threshold = preprocessing.StringLookup(SHARE, 1e-6).events()[0].threshold
    columns = (
        GaussianSum("age", 1.0, SHARE),
        ThresholdedSum("town", 1.0, SHARE, 1, threshold),
    )
    gradients = GaussianSum("gradients", 1.0, trained[1])
    samples = PoissonSampling(0.1)

    def epsilon(*rounds):
        return Fourier().epsilon(rounds, delta=DELTA)

    layer = (Round(FullDataset(), columns), 1)
    training = (Round(samples, (gradients, METRIC)), 20)
    return {
        "columns": epsilon(layer),
        "model": epsilon(training),
        "gradients": epsilon((Round(samples, (gradients,)), 20)),
        "metrics/accuracy": epsilon((Round(samples, (METRIC,)), 20)),
        "all": epsilon(layer, training),
    }


def answer(capsys, path, *options):
    assert main(["report", str(path), "--delta", str(DELTA), *options]) == 0
    return capsys.readouterr().out


def test_the_numbers_of_the_json_are_those_of_a_replay(
    trained, by_hand, capsys
) -> None:
    found = json.loads(answer(capsys, trained[0], "--json"))

    def is_near(epsilon):
        return pytest.approx(epsilon, rel=1e-6)

    whole = found["guarantee"]["epsilon"]
    assert whole == is_near(by_hand["all"])
    assert 1.999 < whole <= 2.0
    columns, model = found["runs"]
    assert (columns["name"], columns["purpose"]) == ("columns", "preprocessing")
    assert (model["name"], model["purpose"]) == ("model", "training")
    assert columns["epsilon"] == is_near(by_hand["columns"])
    assert columns["total_epsilon"] == columns["epsilon"]
    assert model["epsilon"] == is_near(by_hand["model"])
    assert model["total_epsilon"] == whole


def test_the_text_has_one_epsilon_and_a_cost_for_each_run(
    trained, by_hand, capsys
) -> None:
    text = answer(capsys, trained[0])

    def shown(run):
        """Returns the rounds of a run, its epsilon and that so far."""
        cells = re.search(rf"^ +\d+  {run} .*$", text, re.M)[0].split()
        return [float(each) for each in cells[-3:]]

    (claimed,) = re.findall(r"^epsilon <= (\S+) at delta", text, re.M)
    assert float(claimed) == pytest.approx(by_hand["all"], abs=1.1e-4)
    for run, rounds, total in (
        ("columns", 1, by_hand["columns"]),
        ("model", 20, by_hand["all"]),
    ):
        assert shown(run) == [
            rounds,
            pytest.approx(by_hand[run], abs=1.1e-4),
            pytest.approx(total, abs=1.1e-4),
        ]


def test_the_page_has_a_cost_for_each_run(
    trained, by_hand, capsys, tmp_path
) -> None:
    page = tmp_path / "report.html"

    answer(capsys, trained[0], "--html", str(page))

    text = page.read_text("utf-8")
    rows = {
        run: (float(alone), float(so_far))
        for run, alone, so_far in re.findall(
            r'data-title="run"><span>(\w+)<.*?data-title="alone"><span>(.*?)<'
            r'.*?data-title="so far"><span>(.*?)<',
            text,
        )
    }
    for run, total in (("columns", "columns"), ("model", "all")):
        assert rows[run] == (
            pytest.approx(by_hand[run], abs=1.1e-4),
            pytest.approx(by_hand[total], abs=1.1e-4),
        )
