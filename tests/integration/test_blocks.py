"""Rounds that are one dispatch are the rounds that run one by one."""

import collections
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import BandedToeplitz
from keras_dp.ledger.rows import run_writer
from keras_dp.optimizers import DPAdam
from keras_dp.sampling import (
    CyclicPoissonBatches,
    PoissonBatches,
    RandomMicrobatches,
    ShuffledBatches,
)
from keras_dp.training import rounds_at_once
from keras_dp.training.data.batches import Batches
from keras_dp.training.loop import TrainingLoop
from keras_dp.training.metrics.private_metrics import PrivateLoss
from keras_dp.training.step.engine_check import EngineCheck
from keras_dp.training.step.training_step import TrainingStep
from tests.private_models import (
    adaptive_average,
    correlated_average,
    private_of,
)
from tests.query_table import assert_equal
from tests.slow_loop import flat

RECORDS, FEATURES, CLASSES = 200, 5, 3
ROUNDS = 10
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, generator.integers(0, CLASSES, size=RECORDS)


def model(hidden=(), head=None):
    keras.utils.set_random_seed(1)
    last = layers.Dense(CLASSES) if head is None else head
    return keras.Sequential([keras.Input((FEATURES,)), *hidden, last])


def average():
    return keras_dp.GaussianAverageQuery(1.0, 10.0, 20)


def compiled(steps=1, *, query=None, hidden=(), head=None, **options):
    defaults = {"seed": 3, "loss": LOSS, "metrics": ["accuracy"]}
    return private_of(
        model(hidden, head),
        query or average(),
        steps_per_execution=steps,
        **{**defaults, **options},
    )


def poisson(**options):
    return PoissonBatches(data(), sampling_probability=0.1, seed=2, **options)


def ended(private, sampler, **options):
    """Returns weights, ledger and history after two epochs."""
    history = private.fit(
        sampler, epochs=2, steps_per_epoch=ROUNDS, verbose=0, **options
    ).history
    rounds = [
        (type(each.sampling), each.queries[0].l2_norm_bound, count)
        for each, count in private.optimizer.ledger.rounds
    ]
    return flat(private.model), rounds, history


def is_equal(one, other) -> bool:
    return np.array_equal(one[0], other[0]) and one[1:] == other[1:]


def calls_of(monkeypatch):
    """Returns a list, to which each dispatch adds the places that it gets."""
    found = []
    traced = TrainingStep._traced_block

    def noting(self, *arguments):
        function, given = traced(self, *arguments)

        def noted(leaves, places, *more):
            found.append(places.numpy())
            return function(leaves, places, *more)

        return noted, given

    monkeypatch.setattr(TrainingStep, "_traced_block", noting)
    return found


def mean_output(y, output):
    return keras.ops.mean(output)


# How a private model is compiled; a sampler; and options of `fit`.
CASES = {
    "plain": lambda: {},
    "Adam and dropout": lambda: {
        "kind": DPAdam,
        "hidden": [layers.Dropout(0.5)],
    },
    "averages": lambda: {"inner": {"use_ema": True}},
    "a schedule": lambda: {
        "rate": keras.optimizers.schedules.CosineDecay(0.5, 2 * ROUNDS)
    },
    "weights of classes": lambda: {
        "weighted_metrics": ["accuracy"],
        "fit": {"class_weight": {0: 2.0}},
    },
    "metrics of the user": lambda: {"metrics": [mean_output]},
    "private metrics": lambda: {
        "private_metrics": {"of_loss": PrivateLoss(average())}
    },
    "correlated noise": lambda: {
        "query": correlated_average(
            model(), BandedToeplitz((1.0, 0.5)), 0.5, 2 * ROUNDS, 20
        ),
        "sampler": CyclicPoissonBatches(
            data(), classes=2, sampling_probability=0.2, seed=2
        ),
    },
    "microbatches": lambda: {
        "sampler": poisson(microbatches=RandomMicrobatches(2))
    },
    "some samples of two batches": lambda: {
        "sampler": poisson(physical_batch_size=20)
    },
    "shuffled": lambda: {
        "sampler": ShuffledBatches(data(), batch_size=20, seed=2)
    },
    "XLA": lambda: {"jit_compile": True},
    "XLA, metrics of the user": lambda: {
        "jit_compile": True,
        "metrics": [mean_output],
    },
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "plain" else pytest.mark.full)
        for name in CASES
    ],
)
def test_fifty_rounds_a_dispatch_are_as_one(name) -> None:
    def run(steps, seed=3):
        options = {"sampler": poisson(), "fit": {}} | CASES[name]()
        sampler, fit = options.pop("sampler"), options.pop("fit")
        return ended(compiled(steps, seed=seed, **options), sampler, **fit)

    alone = run(1)
    assert is_equal(run(50), alone)
    assert not is_equal(run(50, seed=4), alone)


@pytest.mark.full
def test_a_sample_of_several_batches_runs_once(monkeypatch) -> None:
    ran, batches_of = [], Batches.batches_of

    def noted(batches, sample, *words):
        ran.append(sample.rows.tobytes())
        return batches_of(batches, sample, *words)

    monkeypatch.setattr(Batches, "batches_of", noted)
    samples = poisson(physical_batch_size=4)
    compiled(4).fit(samples, steps_per_epoch=5, verbose=0)

    assert len(set(ran)) == len(ran) == 5


@pytest.mark.full
def test_fits_in_a_row_by_xla_are_as_with_one_round_a_dispatch() -> None:
    """Their last blocks are shorter than the others."""

    def run(steps):
        keras.utils.set_random_seed(1)
        private = compiled(
            steps,
            kind=DPAdam,
            hidden=[layers.Dense(4, "relu"), layers.Dropout(0.5)],
            inner={"use_ema": True},
            weighted_metrics=["accuracy"],
            jit_compile=True,
        )
        sampler = poisson()
        private.fit(sampler, steps_per_epoch=7, verbose=0)
        return ended(private, sampler, class_weight={0: 2.0})

    assert is_equal(run(50), run(1))


@pytest.mark.parametrize(
    ("jit_compile", "rounds"),
    [
        (False, [1, 4, 16, 29, 50]),
        pytest.param(True, [64] * 5, marks=pytest.mark.full),
    ],
)
def test_a_round_costs_four_bytes_a_row_and_a_part_of_a_dispatch(
    jit_compile, rounds, monkeypatch
) -> None:
    """The ledger covers 1, 4, 16, ... rounds ahead, up to the epoch's end."""
    monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
    calls = calls_of(monkeypatch)
    private, sampler = compiled(50, jit_compile=jit_compile), poisson()

    private.fit(sampler, steps_per_epoch=50, epochs=2, verbose=0)

    assert [len(each) for each in calls] == rounds
    for places in calls:
        assert places.nbytes == 4 * len(places) * sampler.physical_batch_size
    assert len(private.optimizer.ledger) == 100


def mapped():
    """Records of which one array stays in a file."""
    x, y = data()
    np.save("x.npy", x)
    x = np.load("x.npy", mmap_mode="r")
    return PoissonBatches((x, y), sampling_probability=0.1)


@pytest.mark.parametrize(
    ("given", "sampler", "why"),
    [
        ({}, data, "from the caller"),
        ({"run_eagerly": True}, poisson, "run_eagerly"),
        ({}, lambda: poisson(map=lambda x, y: (x, y)), "map"),
        (
            {"query": adaptive_average(0.5, 20)},
            poisson,
            "depends on the rounds before",
        ),
        ({}, mapped, "read from files"),
        ({}, poisson, "more than a third of the memory"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_needs_each_round_runs_one_by_one(
    given, sampler, why, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    calls = calls_of(monkeypatch)
    if "memory" in why:
        monkeypatch.setattr(rounds_at_once, "_most_bytes", lambda: 100.0)
    private = compiled(5, **given)
    lines: list[str] = []

    source = sampler()
    arrays = source if isinstance(source, tuple) else (source,)
    private.fit(*arrays, steps_per_epoch=3, verbose=0)
    private.summary(print_fn=lambda line, **_: lines.append(line))

    assert not calls
    assert len(private.optimizer.ledger) == 3
    assert why in lines[-1]


def test_another_size_of_batches_is_checked_anew(monkeypatch) -> None:
    """A first sample of few records may not show whether rows mix."""
    private = compiled(5)
    private.self_check_examples = 2
    private.fit(poisson(), steps_per_epoch=5, verbose=0)
    first = poisson().physical_batch_size
    assert private._step.check.is_done(first)
    assert not private._step.check.is_done(first + 8)
    calls = calls_of(monkeypatch)
    monkeypatch.setattr(EngineCheck, "run", lambda self, step: None)

    private.fit(
        poisson(physical_batch_size=first + 8), steps_per_epoch=5, verbose=0
    )

    assert [len(places) for places in calls] == [1] * 5


COUNTS = keras.metrics.AUC, keras.metrics.Precision, keras.metrics.Recall


@pytest.mark.parametrize(
    "kinds",
    [
        [keras.metrics.SparseCategoricalAccuracy],
        [
            lambda name: keras.metrics.SparseCategoricalCrossentropy(
                name, from_logits=True
            )
        ],
        [lambda name: keras.metrics.SparseTopKCategoricalAccuracy(2, name)],
        COUNTS,
    ],
    ids=["accuracy", "cross-entropy", "top 2", "counts"],
)
def test_metrics_by_weights_are_those_without_padding(kinds) -> None:
    """A metric of another class is not trusted with weights."""
    x, y = data()
    if kinds is COUNTS:
        y = (y > 0)[:, None].astype("float32")

    def logs(wrapped):
        keras.utils.set_random_seed(1)
        metrics = [kind(name=f"m{n}") for n, kind in enumerate(kinds)]
        if wrapped:
            own = type(metrics[0])
            metrics[0].__class__ = type("Own", (own,), {})
        options, fit = {"weighted_metrics": ["accuracy"]}, {0: 3.0}
        if kinds is COUNTS:
            head, fit = layers.Dense(1, activation="sigmoid"), None
            options = {"head": head, "loss": "binary_crossentropy"}
        sampler = PoissonBatches((x, y), sampling_probability=0.1, seed=2)
        private = compiled(5, metrics=metrics, **options)
        return ended(private, sampler, class_weight=fit)[2]

    by_weights, cut = logs(wrapped=False), logs(wrapped=True)
    assert list(by_weights) == list(cut)
    for name, values in by_weights.items():
        np.testing.assert_allclose(values, cut[name], rtol=1e-5)


def test_a_changed_state_is_withheld_in_all_rounds_of_a_block(
    monkeypatch, tmp_path
) -> None:
    monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
    low = compiled(query=keras_dp.GaussianAverageQuery(1.0, 0.1, 20))
    low.train_on_batch(*data())
    low.save_weights(tmp_path / "low.weights.h5")

    class Loads(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                self.model.load_weights(tmp_path / "low.weights.h5")

    private = compiled(5)
    with pytest.raises(PrivateTrainingError, match="withheld"):
        private.fit(
            poisson(), steps_per_epoch=10, callbacks=[Loads()], verbose=0
        )

    assert_equal(low.model.get_weights(), private.model.get_weights())
    counts = collections.Counter()
    for each, count in private.optimizer.ledger.rounds:
        counts[each.queries[0].noise_stddev] += count
    assert counts == {10.0: 10, 0.1: 5}


# Writes a byte at the end of each round, from inside the block.
_KILLED = """
import os, signal, sys
import keras, keras_dp, numpy as np, tensorflow as tf

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
ended, ledger, last = sys.argv[1], sys.argv[2], int(sys.argv[3])

def note(values):
    with open(ended, "ab") as file:
        file.write(b".")
    if os.path.getsize(ended) == last:
        os.kill(os.getpid(), signal.SIGKILL)
    return values

class Notes(keras.metrics.Mean):
    def update_state(self, y, output, sample_weight=None):
        noted = tf.py_function(note, [tf.reduce_sum(output)], tf.float32)
        noted.set_shape([])
        super().update_state(noted)

x = np.random.default_rng(0).normal(size=(100, 3)).astype("float32")
private = keras_dp.PrivateModel(
    keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
)
private.compile(
    keras_dp.optimizers.DPSGD(
        0.1,
        query=keras_dp.GaussianAverageQuery(1.0, 1.0, 10),
        ledger=keras_dp.PrivacyLedger.open(ledger, dataset="killed"),
    ),
    loss="mse", metrics=[Notes()], steps_per_execution=100,
)
samples = keras_dp.sampling.PoissonBatches(
    (x, x[:, :1]), sampling_probability=0.1)
private.fit(samples, steps_per_epoch=100, verbose=0)
"""


@pytest.mark.full
@pytest.mark.parametrize("last", [2, 9, 40])
def test_a_process_that_dies_inside_a_block_has_paid_for_it(
    last, tmp_path
) -> None:
    ended, path = tmp_path / "ended", tmp_path / "run.ledger"

    done = subprocess.run(
        [sys.executable, "-c", _KILLED, ended, path, str(last)],
        check=False,
        capture_output=True,
    )

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert ended.stat().st_size == last
    with keras_dp.PrivacyLedger.open(path) as ledger:
        assert last <= len(ledger) < 100


def test_all_rounds_of_a_block_are_covered_before_it_runs(monkeypatch) -> None:
    """And what fails then, such as for lack of memory, has paid for them."""
    monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
    private, left = compiled(5), []
    ledger, prepare = private.optimizer.ledger, TrainingStep.prepare_block

    def prepared(*arguments):
        run = prepare(*arguments)

        def runs(places):
            left.append(len(ledger) - sum(map(len, ran)) - len(places))
            ran.append(places)
            if len(ran) == 3:
                raise tf.errors.ResourceExhaustedError(None, None, "no memory")
            return run(places)

        return runs

    ran = []
    monkeypatch.setattr(TrainingStep, "prepare_block", prepared)

    with pytest.raises(PrivateTrainingError, match="`physical_batch_size`"):
        private.fit(poisson(), steps_per_epoch=20, verbose=0)

    assert [len(places) for places in ran] == [1, 4, 5]
    assert min(left) >= 0
    assert len(ledger) >= 10


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "many", None, 2**70])
def test_a_number_at_once_that_cannot_run_is_named(steps) -> None:
    """Where it is given, and where it is set on a compiled model."""
    named = {"match": "`steps_per_execution` must be an integer"}
    with pytest.raises((TypeError, ValueError), **named):
        compiled(steps)

    private = compiled(np.int64(2))
    assert type(private.steps_per_execution) is int
    private.steps_per_execution = steps
    with pytest.raises((TypeError, ValueError), **named):
        private.fit(poisson(), steps_per_epoch=2, verbose=0)
    assert not private.optimizer.ledger.runs


class TestAuto:
    @pytest.fixture
    def asked(self, monkeypatch):
        """The rounds that each call of the loop is asked for."""
        found, run = [], TrainingLoop.run

        def noting(self, iterator, rounds):
            found.append(rounds)
            return run(self, iterator, rounds)

        monkeypatch.setattr(TrainingLoop, "run", noting)
        return found

    def test_runs_an_epoch_of_a_small_model_at_once(self, asked) -> None:
        private = compiled("auto")
        private.fit(poisson(), steps_per_epoch=10, verbose=0)
        assert asked == [10]

    @pytest.mark.parametrize(
        ("callback", "steps"),
        [
            (keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None), 10),
            (
                keras.callbacks.LambdaCallback(
                    on_train_batch_end=lambda batch, logs: None
                ),
                1,
            ),
            (keras.callbacks.TerminateOnNaN(), 10),
        ],
    )
    def test_calls_a_callback_of_batches_after_each(
        self, callback, steps, asked
    ) -> None:
        private = compiled("auto")
        private.fit(
            poisson(), steps_per_epoch=10, verbose=0, callbacks=[callback]
        )
        assert asked == [steps] * (10 // steps)

    def test_is_one_for_batches_of_the_caller(self, asked) -> None:
        private = compiled("auto")
        private.fit(*data(), batch_size=50, verbose=0)
        assert asked == [1] * 4

    def test_does_not_change_how_records_are_evaluated(self) -> None:
        private = compiled("auto")
        x, y = data()
        before = private.predict(x, batch_size=4, verbose=0)

        private.fit(poisson(), steps_per_epoch=10, verbose=0)

        assert private.steps_per_execution == 1
        after = private.predict(x, batch_size=4, verbose=0)
        assert len(before) == len(after) == RECORDS
        loss, _ = private.evaluate(x, y, batch_size=4, verbose=0)
        expected = keras.ops.mean(LOSS(y, private.model(x)))
        np.testing.assert_allclose(loss, expected, rtol=1e-5)

    def test_is_saved(self, tmp_path) -> None:
        private = compiled("auto")
        private.fit(poisson(), steps_per_epoch=1, verbose=0)
        private.save(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert loaded.get_compile_config()["steps_per_execution"] == "auto"


class TestByXLA:
    @pytest.mark.parametrize(
        ("hidden", "epochs", "pays"),
        [
            ([layers.Dense(4, "relu"), layers.Dropout(0.5)], 200, True),
            ([layers.Dense(4, "relu"), layers.Dropout(0.5)], 199, False),
            ([layers.LayerNormalization()], 200, False),
            ([layers.Dense(40_000)], 200, False),
        ],
    )
    def test_pays_for_many_rounds_of_small_dense_networks(
        self, hidden, epochs, pays
    ) -> None:
        fit = {"steps_per_epoch": 100, "epochs": epochs}
        assert rounds_at_once.pays_by_xla(model(hidden), fit) is pays
        # A loop of one's own has no number of epochs.
        assert not rounds_at_once.pays_by_xla(model(hidden), {"epochs": 1})
        assert not rounds_at_once.pays_by_xla(
            model(hidden), {"steps_per_epoch": 10**6}
        )

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("options", "by_xla"),
        [
            ({}, True),
            ({"jit_compile": False}, False),
            ({"run_eagerly": True, "steps": 1}, False),
        ],
    )
    def test_is_chosen_unless_the_caller_chooses(
        self, options, by_xla, monkeypatch, capsys
    ) -> None:
        monkeypatch.setattr(rounds_at_once, "_LEAST_BY_XLA", 10)
        private = compiled(**{"steps": "auto", **options})
        private.fit(poisson(), steps_per_epoch=10, verbose=2)
        said = "Compiling the private step by XLA" in capsys.readouterr().out
        assert said is by_xla

    @pytest.mark.full
    def test_goes_on_without_an_operation_that_xla_lacks(self, monkeypatch):
        def loss(y, output):
            found = LOSS(y, output)
            text = tf.strings.as_string(tf.stop_gradient(found))
            return found + 0 * tf.strings.to_number(text)  # XLA lacks both.

        asked = compiled("auto", loss=loss, jit_compile=True)
        with pytest.raises(ValueError, match="XLA does not have"):
            asked.fit(poisson(), steps_per_epoch=10, verbose=0)
        assert not len(asked.optimizer.ledger)
        monkeypatch.setattr(rounds_at_once, "_LEAST_BY_XLA", 10)

        chosen = compiled("auto", loss=loss)
        chosen.fit(poisson(), steps_per_epoch=10, verbose=0)

        assert len(chosen.optimizer.ledger) == 10
        monkeypatch.setattr(rounds_at_once, "_LEAST_BY_XLA", 1000)
        without = compiled("auto", loss=loss)
        without.fit(poisson(), steps_per_epoch=10, verbose=0)
        np.testing.assert_allclose(
            flat(chosen.model), flat(without.model), atol=1e-5
        )

    @pytest.mark.full
    def test_goes_on_as_it_began(self, monkeypatch) -> None:
        def run(least):
            private = compiled("auto", hidden=[layers.Dense(4, "relu")])
            sampler = poisson()
            monkeypatch.setattr(rounds_at_once, "_LEAST_BY_XLA", least)
            private.fit(sampler, steps_per_epoch=10, verbose=0)
            monkeypatch.setattr(rounds_at_once, "_LEAST_BY_XLA", 1000)
            traces = private.trace_count
            private.fit(sampler, steps_per_epoch=10, verbose=0)
            assert private.trace_count == traces
            return flat(private.model)

        np.testing.assert_allclose(run(10), run(1000), atol=1e-5)
