"""Private preprocessing and a private training share one ledger."""

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp.accountants import Fourier
from keras_dp.optimizers import DPSGD
from keras_dp.preprocessing import PCA, Normalization
from keras_dp.reporting import make_report

pytestmark = pytest.mark.full


def training(model, ledger, x, y):
    private = keras_dp.PrivateModel(model, self_check_examples=0)
    query = keras_dp.GaussianAverageQuery(
        1.0, noise_multiplier=1.0, denominator=20
    )
    private.compile(
        DPSGD(learning_rate=0.1, query=query, ledger=ledger), loss="mse"
    )
    samples = keras_dp.PoissonBatches((x, y), sampling_probability=0.1)
    private.fit(samples, epochs=1, verbose=0)
    return private


def test_one_epsilon_covers_layers_and_weights(tmp_path, caplog) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(3.0, 2.0, (200, 6)).astype(np.float32)
    y = x[:, :1]
    path = tmp_path / "people.ledger"

    with keras_dp.PrivacyLedger.open(path, dataset="people") as ledger:
        scales = Normalization((-10, 10), 20.0).adapt(x, ledger, run="scales")
        directions = PCA(3, 20.0).adapt(scales(x), ledger, run="directions")
        model = keras.Sequential(
            [keras.Input((6,)), scales, directions, keras.layers.Dense(1)]
        )
        before = directions.get_weights()[0].copy()
        with caplog.at_level("WARNING", logger="absl"):
            training(model, ledger, x, y)
        rounds, runs = ledger.rounds, ledger.runs
        report = make_report(ledger, delta=1e-5)

    assert [run.name for run in runs][:2] == ["scales", "directions"]
    assert [len(run) for run in runs] == [1, 1, 10]
    assert not [r for r in caplog.records if "`adapt`" in r.message]
    np.testing.assert_array_equal(directions.get_weights()[0], before)
    price = Fourier()
    whole = price.epsilon(rounds, delta=1e-5)
    assert whole > price.epsilon(runs[2].rounds, delta=1e-5)
    assert f"{whole:.2f}"[:3] in str(report)
