"""Epsilon in the logs, and trainings that end before a target."""

import csv
import operator
import re

import keras
import numpy as np
import pytest

import keras_dp
from keras_dp import accountants, budgets, planning
from keras_dp.errors import BudgetExceededError
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    UnverifiedSampling,
)
from keras_dp.reporting import make_report
from keras_dp.training.callbacks import epsilon_progress
from keras_dp.training.callbacks.epsilon_progress import EpsilonProgress
from tests.private_models import adaptive_average, private_of

DELTA = 1e-5
STEP = [GaussianSum("gradients", 1.0, 4.0)]
TIGHT = accountants.Fourier()


def in_memory(*rounds):
    """Returns a ledger of the rounds (sampling, queries, count)."""
    ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    for sampling, queries, count in rounds:
        ledger.record(sampling, queries, count)
    return ledger


def private_model(ledger, noise=1.1, query=None):
    """Returns a tiny private model, compiled, and samples for it."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(64, 3)).astype("float32")
    y = generator.normal(size=(64, 1)).astype("float32")
    private = private_of(
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]),
        query or keras_dp.GaussianAverageQuery(1.0, noise, denominator=16),
        ledger,
    )
    samples = keras_dp.PoissonBatches((x, y), sampling_probability=0.25)
    return private, samples


def training(ledger, callbacks, *, epochs=2, noise=1.1, delta=DELTA):
    """Returns the history of a tiny private training."""
    private, samples = private_model(ledger, noise)
    return private.fit(
        samples, epochs=epochs, verbose=0, callbacks=callbacks, delta=delta
    ).history


class TestEpsilonProgress:
    def test_is_never_behind_what_was_released(self, monkeypatch) -> None:
        """Every batch shows at least what the rounds up to it cost."""
        monkeypatch.setattr(epsilon_progress, "_INTERVAL_SECONDS", -1.0)
        monkeypatch.setattr(epsilon_progress, "_SHARE", 0)
        ledger, shown = in_memory(), []
        each = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: shown.append(logs["epsilon"])
        )

        history = training(ledger, [each])

        ((round_, count),) = ledger.rounds
        spent = [
            TIGHT.epsilon([(round_, n)], delta=DELTA)
            for n in range(1, count + 1)
        ]
        assert len(shown) == count == 8
        assert all(map(operator.ge, shown, spent))
        assert history["epsilon"] == spent[3::4]

    def test_takes_the_strongest_relation_of_all_rounds(self) -> None:
        ledger = in_memory((UnverifiedSampling(), STEP, 3))

        logs = shown(ledger)

        assert logs["epsilon"] == TIGHT.epsilon(
            ledger, delta=DELTA, neighbours="replace_one"
        )


def shown(ledger):
    """Returns the logs of a callback for a ledger."""
    logs = {}
    EpsilonProgress(ledger, DELTA, lambda: None).on_epoch_end(0, logs)
    return logs


class TestEpsilonInFit:
    @pytest.mark.parametrize(
        ("given", "delta"),
        [(None, 0.010), (1e-7, 1e-7)],  # 64^-1.1 = 0.0103, two digits of it.
    )
    def test_is_shown_without_being_asked_for(self, given, delta) -> None:
        ledger = in_memory()

        history = training(ledger, None, delta=given)

        assert history["epsilon"][-1] == TIGHT.epsilon(ledger, delta=delta)
        assert "epsilon_of_run" not in history
        assert "rounds_left" not in history

    def test_ends_with_the_line_to_publish(self, capsys) -> None:
        private, samples = private_model(in_memory())

        private.fit(samples, verbose=2)

        last = capsys.readouterr().out.strip().splitlines()[-1]
        assert re.fullmatch(
            r"Privacy of all 4 rounds of the ledger: epsilon <= [\d.]+ at "
            r"delta = 0.01, add or remove one patient, certified by Fourier.",
            last,
        )

    def test_ends_with_the_plan_if_it_ended_before(self, capsys) -> None:
        class Stop(keras.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None) -> None:
                self.model.stop_training = True

        ledger = in_memory()
        private, samples = private_model(ledger)

        private.fit(samples, epochs=3, verbose=2, callbacks=[Stop()])

        last = capsys.readouterr().out.strip().splitlines()[-1]
        claim = make_report(ledger, delta=0.01).facts["guarantee"]
        assert len(ledger) == 4
        assert claim["epsilon"] > TIGHT.epsilon(ledger, delta=0.01)
        assert last == (
            "More rounds were planned than ran, and why it ended may tell of "
            f"the data. Publish {claim['sentence']}."
        )

    def test_ends_with_what_accounts_promise(self, capsys) -> None:
        ledger = in_memory()
        budgets.open_account(ledger, "all", budgets.RenyiFilter(6.0, 0.01))
        private, samples = private_model(ledger)

        private.fit(samples, verbose=2)

        lines = capsys.readouterr().out.strip().splitlines()
        assert "Its accounts promise more than ran" in lines[-2]
        assert "epsilon <= 6.0000 at delta = 0.01" in lines[-2]


class TestTheNumberOfTheReport:
    """Every log has the epsilon that the report says, by one accountant."""

    @pytest.mark.parametrize("rows_per_unit", [1, 2])
    def test_is_in_every_log(self, rows_per_unit, tmp_path) -> None:
        ledger = PrivacyLedger.in_memory(
            dataset="clinic", unit="patient", rows_per_unit=rows_per_unit
        )
        ledger.record(FullDataset(True), [GaussianSum("mean", 1.0, 20.0)])
        private, samples = private_model(ledger)
        # TensorBoard, too, writes what it is given at the end of an epoch.
        seen = []

        history = private.fit(
            samples,
            epochs=2,
            verbose=0,
            delta=DELTA,
            callbacks=[
                keras.callbacks.CSVLogger(tmp_path / "log.csv"),
                keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, logs: seen.append({**logs})
                ),
            ],
        ).history

        facts = make_report(ledger, delta=DELTA).facts
        assert history["epsilon"][-1] == facts["guarantee"]["epsilon"]
        assert history["epsilon_of_run"][-1] == facts["runs"][-1]["epsilon"]
        with open(tmp_path / "log.csv") as file:
            rows = [*csv.DictReader(file)]
        assert [float(row["epsilon"]) for row in rows] == history["epsilon"]
        for name in ("epsilon", "epsilon_of_run"):
            assert [logs[name] for logs in seen] == history[name]


class TestWhatIsLeft:
    def test_counts_down_to_the_target(self, capsys) -> None:
        ledger = in_memory()
        private, samples = private_model(ledger)

        history = private.fit(
            samples, epochs=2, target_epsilon=6.0, delta=DELTA, verbose=2
        ).history

        ((round_, count),) = ledger.rounds
        left = planning.rounds_left(
            ledger, round_, target_epsilon=6.0, delta=DELTA
        )
        assert count == 8
        assert history["rounds_left"] == [left + 4, left]
        shown = capsys.readouterr().out
        assert f"rounds_left: {left}\n" in shown  # No decimals.
        last = shown.strip().splitlines()[-1]
        assert last == f"There is room for {left:,} more rounds like the last."


def rounds_below_six(ledger):
    """Returns how many rounds ran, if one more would exceed an epsilon of 6."""
    ((round_, count),) = ledger.rounds
    assert TIGHT.epsilon([(round_, count)], delta=DELTA) <= 6.0
    assert TIGHT.epsilon([(round_, count + 1)], delta=DELTA) > 6.0
    return count


class TestATarget:
    @pytest.mark.parametrize("executions", [1, 2])
    def test_ends_fit_before_it_is_exceeded(self, executions) -> None:
        """One round more would be too many."""
        ledger = in_memory()
        private, samples = private_model(ledger)
        private.steps_per_execution = executions

        private.fit(
            samples, epochs=50, target_epsilon=6.0, delta=DELTA, verbose=0
        )

        assert 4 < rounds_below_six(ledger) < 200

    def test_ends_single_rounds_too(self) -> None:
        ledger = in_memory()
        private, _ = private_model(ledger, noise=8.0)
        x, y = np.zeros([16, 3], "float32"), np.zeros([16, 1], "float32")

        def many() -> None:
            for _ in range(200):
                private.train_on_batch(x, y, target_epsilon=6.0, delta=DELTA)

        with pytest.raises(BudgetExceededError):
            many()
        assert rounds_below_six(ledger) < 200

    def test_takes_no_batch_for_all_records(self) -> None:
        """Else a shorter batch would have another delta, and another run."""
        ledger = in_memory()
        private, _ = private_model(ledger, noise=8.0)

        for rows in (16, 12):
            x, y = np.zeros([rows, 3], "float32"), np.zeros([rows, 1])
            private.train_on_batch(x, y, target_epsilon=6.0)

        (run,) = ledger.runs
        assert (len(run), private._batches_terms[1].delta) == (2, 1e-5)

    def test_follows_queries_whose_events_change(self) -> None:
        """Noise follows an adaptive clip, at one multiplier."""
        ledger = in_memory()
        adaptive = adaptive_average(1.1, 16)
        private, samples = private_model(ledger, query=adaptive)

        private.fit(
            samples, epochs=50, target_epsilon=6.0, delta=DELTA, verbose=0
        )

        assert len(ledger) > 4
        assert 5.0 < TIGHT.epsilon(ledger, delta=DELTA) <= 6.0
