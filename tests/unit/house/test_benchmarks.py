"""The benchmark of steps, with workers that need no framework."""

import os
import sys
from pathlib import Path

import keras
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
# Answers as a worker does, in an interpreter that starts at once: steps of
# 10 ms, as many parameters as its mode says, and errors as its name says.
FAKE = """
import json, sys
mode = sys.argv[1]
if mode == "unbuilt":
    print(json.dumps({"error": "ValueError: no rule"}))
    raise SystemExit(1)
if mode == "dead":
    raise SystemExit("ran out of luck")
print(json.dumps({"parameters": 7, "versions": "fake 1.0"}), flush=True)
block = bytearray(b"x") * (200_000_000 if mode == "large" else 1)
if mode == "silent":
    sys.stdin.read()  # Until it is ended.
for line in sys.stdin:
    steps = int(line.split()[1])
    if mode == "fails":
        print(json.dumps({"error": "RuntimeError: step"}), flush=True)
        break
    if mode == "large":
        sys.stdin.read()
    print(
        json.dumps(
            {"seconds": 0.01 * steps, "steps": steps, "peak_megabytes": 5.0}
        ),
        flush=True,
    )
"""


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


@pytest.fixture
def start(peers):
    """Returns a function that starts fake workers, and ends them after."""
    started = []

    def started_worker(mode, **limits):
        command = [sys.executable, "-S", "-c", FAKE, mode]
        started.append(peers.driver.Worker(command, **limits))
        return started[-1]

    yield started_worker
    for worker in started:
        worker.close()


class TestWorkloads:
    @pytest.mark.parametrize("name", ["adult", "w1", "w2", "w3", "w4", "w5"])
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


class TestWorker:
    def test_says_what_it_built_and_runs(self, start) -> None:
        worker = start("plain")

        turn = worker.run(5)

        assert (worker.parameters, worker.versions) == (7, "fake 1.0")
        assert turn.seconds == pytest.approx(0.01)
        assert turn.peak_megabytes == 5.0

    @pytest.mark.parametrize(
        ("mode", "limits", "reason"),
        [
            ("unbuilt", {}, "ValueError: no rule"),
            ("dead", {}, "ended with status 1: ran out of luck"),
            ("fails", {}, "RuntimeError: step"),
            ("silent", {"patience_seconds": 0.0}, "no answer in 0 s"),
            ("large", {"most_bytes": 10**8}, "needs more than 0 GB"),
        ],
    )
    def test_what_fails_says_why(
        self, peers, start, mode, limits, reason
    ) -> None:
        with pytest.raises(peers.driver.WorkerError, match=reason):
            start(mode, **limits).run(1)


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

    def test_every_row_has_the_columns_of_the_header(self, peers) -> None:
        results = results_of(
            peers, {"Keras": [0.01], "keras_dp": [0.02], "JAX Privacy": [0.1]}
        )
        results[-1].turns = []
        results.append(
            peers.comparison.Result(peers.comparison.WAYS[2], "x", error="no")
        )

        header, rule = peers.table.HEADER.splitlines()
        for row in [rule, *peers.table.rows("w1", results)]:
            assert row.count("|") == header.count("|")


class TestComparison:
    """The stages, on fakes: one of ours, one of Keras, one peer."""

    def ways(self, peers, modes):
        peer = peers.comparison.Way("fake", "Peer", modes)
        return [peers.comparison.KERAS, peers.comparison.OURS, peer]

    def compare(self, peers, workloads, modes, parameters=7):
        def start(way, mode):
            fake = mode if way.framework == "fake" else "plain"
            command = [sys.executable, "-S", "-c", FAKE, fake]
            return peers.driver.Worker(command)

        size = workloads.WORKLOADS["w1"]._replace(parameters=parameters)
        ways = self.ways(peers, modes)
        return peers.comparison.compare(start, size, 2, ways)

    def test_everyone_has_as_many_turns(self, peers, workloads) -> None:
        results = self.compare(peers, workloads, ("plain",))

        assert [len(result.turns) for result in results] == [2, 2, 2]
        assert peers.comparison.best_peer(results) is results[-1]

    def test_a_mode_that_fails_leaves_the_others(
        self, peers, workloads
    ) -> None:
        results = self.compare(peers, workloads, ("unbuilt", "plain"))

        assert results[-1].mode == "plain"
        assert results[-1].others == {"unbuilt": "ValueError: no rule"}


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


@pytest.fixture
def examples(monkeypatch):
    """Returns the benchmark of the examples, and forgets it after."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("examples")
    del sys.modules["examples"]


class TestExamples:
    def test_ratios_are_those_of_each_turn(self, examples):
        """Not of the medians: a turn in which all was slow says as much."""
        pairs = [(1.0, 1.5), (10.0, 20.0), (2.0, 5.0)]

        assert examples.middle(pairs) == (2.0, 5.0, 2.0)

    def test_a_row_has_a_cell_for_each_column(self, examples):
        found = examples.Measured(256, [(0.002, 0.004)] * 3, [(1.0, 3.0)])

        row = examples.row("text", found)

        assert row == (
            "| text | 256 | 2.00 | 4.00 | 2.00 (2.00-2.00) | 1.0 | 3.0 | 3.00 |"
        )
        assert {line.count("|") for line in examples.HEAD.splitlines()} == {
            row.count("|")
        }

    @pytest.mark.full
    @pytest.mark.parametrize("side", ["plain", "private"])
    def test_scripts_are_run_up_to_their_fit(self, examples, monkeypatch, side):
        monkeypatch.setenv("KERAS_DP_QUICK", "1")

        reached = examples.reach("text", side, 256)

        assert reached.batch_size == (256 if side == "plain" else None)
        history = reached.fit(1, []).history
        # What the private side shows is noised, and holds no loss.
        assert len(history["loss" if side == "plain" else "accuracy"]) == 1


@pytest.fixture
def vocabularies(monkeypatch):
    """Returns the benchmark of vocabularies, and forgets it after."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield __import__("vocabularies")
    del sys.modules["vocabularies"]


@pytest.mark.full
class TestVocabularies:
    def test_few_private_words_do_nearly_as_well(self, vocabularies):
        messages = vocabularies.synthetic()

        bare = vocabularies.without_noise(messages)
        private = vocabularies.with_noise(messages, 5.0)

        assert round(private.epsilon, 4) == 0.7308
        assert private.words < bare.words / 50
        assert messages.spam.mean() < 0.14  # Never "spam": 0.86 is right.
        assert min(bare.right, private.right) > 0.92

    @pytest.mark.skipif("KERAS_DP_DATA" not in os.environ, reason="needs data")
    def test_the_sms_spam_collection_is_as_the_documents_say(
        self, vocabularies
    ):
        folder = Path(os.environ["KERAS_DP_DATA"])
        messages = vocabularies.load(folder / "sms_spam.csv.gz")

        bare = vocabularies.without_noise(messages)
        private = vocabularies.with_noise(messages, 5.0)

        assert (bare.words, round(bare.right, 3)) == (8657, 0.973)
        assert 80 < private.words < 110
        assert 0.945 < private.right < 0.97


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
