"""The benchmark of steps, with workers that need no framework."""

import sys
from pathlib import Path

import keras
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def peers(monkeypatch):
    """Returns the modules of the benchmark by name, and forgets them after."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("comparison", "driver", "protocol", "table", "environments")
    before = set(sys.modules)
    package = __import__("peers", fromlist=names)
    for name in names:
        __import__(f"peers.{name}")
    yield package
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("peers", "workloads"):
            del sys.modules[name]


@pytest.fixture
def workloads(peers):
    return sys.modules["workloads"]


class TestWorkloads:
    @pytest.mark.parametrize("name", ["t1", "t2", "w1", "w2", "w3", "w4", "w5"])
    def test_models_have_the_parameters_that_are_stated(
        self, workloads, name
    ) -> None:
        workload = workloads.WORKLOADS[name]

        model = workload.make()

        assert isinstance(model, keras.Model)
        assert model.count_params() == workload.parameters
        assert model.input_shape == (None, *workload.shape)
        assert model.output_shape == (None, workload.classes)

    def test_an_epoch_is_a_turn(self, workloads) -> None:
        for workload in workloads.WORKLOADS.values():
            x, y = workloads.data(workload)

            assert len(x) == len(y) == workload.batch * workload.steps
            assert x.shape[1:] == workload.shape
            assert y.max() == workload.classes - 1


def results_of(peers, seconds):
    """Returns results whose turns took so long, by name of the way."""
    made = []
    for way in peers.comparison.WAYS:
        if way.name in seconds:
            turns = [
                peers.driver.Turn(each, 100.0 * (1 + len(made)))
                for each in seconds[way.name]
            ]
            made.append(
                peers.comparison.Result(
                    way, way.modes[0], alone=turns[0], turns=turns
                )
            )
    return made


class TestTable:
    def test_ratios_are_medians_over_turns(self, peers) -> None:
        results = results_of(
            peers,
            {
                "Keras": [0.010, 0.020, 0.010],
                "keras_dp": [0.020, 0.040, 0.030],
                "Opacus, ghost": [0.040, 0.050, 0.060],
                "JAX": [0.001, 0.001, 0.001],
                "JAX Privacy": [0.080, 0.200, 0.100],
            },
        )

        rows = peers.table.rows("w1", results)

        assert rows[0].startswith("| w1 | Keras | keras | 10.0 | 1.00 |")
        assert rows[1] == (
            "| w1 | keras_dp | private | 30.0 | 2.00 |  | 200 | 2.00 |"
        )
        assert rows[2] == (
            "| w1 | **Opacus, ghost** | ghost | 50.0 | 4.00 "
            "| 0.50 (0.50-0.80) | 300 | 3.00 |"
        )
        # Without privacy, so it is no peer, fast as it is.
        assert "| JAX | jax | 1.0 | 0.10 |  |" in rows[3]


class TestEnvironments:
    @pytest.mark.parametrize("name", ["opacus", "tf_privacy", "jax_privacy"])
    def test_every_requirement_is_pinned(self, peers, name) -> None:
        files = peers.environments.requirements(name)

        lines = [
            line
            for file in files
            for line in file.read_text().splitlines()
            if line and not line.startswith("#")
        ]
        assert lines
        assert all("==" in line or line == "setuptools<81" for line in lines)


@pytest.mark.nightly
def test_the_search_for_settings_trains(monkeypatch) -> None:
    """Its loop takes gradients and sums from within the library."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    trainer = __import__("defaults").Trainer("tabular300")
    setting = {
        "batch_size": 64,
        "l2_norm_clip": 1.0,
        "epochs": 20,
        "factor": 1.0,
    }

    found = trainer.train(1e3, setting)

    assert found["rounds"] == 20 * round(240 / 64)
    assert found["last"] > 0.5  # The most frequent of three classes: 0.39.
