"""Two processes that train one model on loopback."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_dp
from tests.private_models import private_of
from tests.slow_loop import flat
from tests.waiting import HUNG_SECONDS

SCRIPT = Path(__file__).with_name("worker_training.py")
WORKERS = 2

pytestmark = pytest.mark.full


def _free_ports() -> int:
    """Returns a port that is free, as is the next."""
    for port in range(23000, 32000, 2):
        try:
            for each in (port, port + 1):
                with socket.socket() as one:
                    one.bind(("localhost", each))
        except OSError:
            continue
        return port
    raise OSError("no two ports are free")


def _run(folder: Path, scenario: str):
    port = _free_ports()
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                *map(str, (SCRIPT, index, port, folder)),
                scenario,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(WORKERS)
    ]
    try:
        for process in processes:
            _, said = process.communicate(timeout=HUNG_SECONDS)
            assert process.returncode == 0, said[-4000:]
    finally:
        for process in processes:
            process.kill()
    return [
        json.loads((folder / f"{index}.json").read_text())
        for index in range(WORKERS)
    ]


@pytest.fixture(scope="module")
def noised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("noised")
    return folder, _run(folder, "noised")


class TestTwoWorkers:
    def test_the_chief_alone_keeps_a_ledger(self, noised) -> None:
        folder, (chief, other) = noised

        assert chief["rounds"] == 16
        assert not other["keeps_ledger"]
        assert [path.name for path in folder.glob("*.ledger")] == ["0.ledger"]
        with keras_dp.PrivacyLedger.open(folder / "0.ledger", mode="r") as file:
            ((round_, count),) = file.rounds
        assert count == 16
        assert round_.sampling.probability == 0.125

    def test_weights_and_seeds_are_those_of_the_chief(self, noised) -> None:
        """Each made its own; what the scope creates is the chief's."""
        _, (chief, other) = noised

        assert chief["initial"] == other["initial"]
        assert chief["seed"] == other["seed"]

    def test_updates_are_equal_bit_by_bit(self, noised) -> None:
        _, (chief, other) = noised

        assert chief["weights"] == other["weights"]
        assert chief["weights"] != chief["initial"]

    def test_metrics_are_those_of_all_workers(self, noised) -> None:
        """Of training, and where Keras 3.15 evaluates on several workers."""
        _, (chief, other) = noised
        shown = dict(chief["history"])

        assert shown.pop("epsilon")  # The chief alone has the ledger.
        assert shown == other["history"]
        of_keras = {"accuracy", "loss", "val_accuracy", "val_loss"}
        assert set(shown) == of_keras | {"signal_to_noise"}
        assert chief["evaluated"] == other["evaluated"]

    def test_nothing_is_traced_twice(self, noised) -> None:
        """The parts of a sample, and the release."""
        _, results = noised

        assert [result["traces"] for result in results] == [2, 2]


def test_two_workers_compute_what_one_process_does(tmp_path) -> None:
    """Without noise, and with samples of all records, which are no chance.

    Sums in another order differ by a few units of rounding a round.
    """
    chief, other = _run(tmp_path, "exact")

    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, kernel_regularizer="l2"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    shapes = [w.shape for w in model.get_weights()]
    pairs = zip(chief["initial"], shapes, strict=True)
    model.set_weights([np.reshape(w, shape) for w, shape in pairs])
    private = private_of(
        model,
        keras_dp.GaussianAverageQuery(1.0, 0.0, denominator=32),
        rate=0.5,
        loss="binary_crossentropy",
        metrics=["accuracy"],
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 6)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    history = private.fit(
        keras_dp.sampling.PoissonBatches(
            (x, y), sampling_probability=1.0, rounds_per_epoch=8
        ),
        epochs=2,
        verbose=0,
    )

    for got in (chief["weights"], other["weights"]):
        np.testing.assert_allclose(
            np.concatenate(got), flat(model), rtol=0, atol=1e-5
        )
    np.testing.assert_allclose(
        chief["history"]["loss"], history.history["loss"], rtol=1e-4
    )


def test_misuse_is_refused_on_every_worker(tmp_path) -> None:
    """Where one of them only refused, the others would wait."""
    chief, other = _run(tmp_path, "refused")

    for result in (chief, other):
        for case in ("whole_data", "wrong_shard", "arrays"):
            assert "a shard of its own" in result[case], case
        assert "All workers must train" in result["rounds_differ"]
    assert "LedgerOfChief on a worker" in other["two_ledgers"]
    assert "a shard of its own" in other["one_has_all_data"]
    for case in ("two_ledgers", "one_has_all_data"):
        assert "a refusal on another worker" in chief[case]
    assert chief["rounds"] == 0
