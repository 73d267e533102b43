"""What no ledger sees is said, and refused where it is known."""

from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import callbacks, layers

import keras_dp
from keras_dp.accountants.normalize.samplings import strongest_neighbours
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import SamplingByContents
from keras_dp.ledger.rows import run_writer
from keras_dp.sampling import PoissonBatches
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_trainings import BATCHES, CALLBACKS
from tests.private_models import private_of

ALL = "all"
X, Y = np.ones([20, 3], "float32"), np.zeros([20, 1], "float32")


def ledger(dataset="test"):
    return keras_dp.PrivacyLedger.in_memory(dataset=dataset)


def compiled(model, own_ledger):
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=20)
    return private_of(model, query, own_ledger)


def network(*hidden):
    return keras.Sequential([keras.Input((3,)), *hidden, layers.Dense(1)])


def messages(caplog, part):
    return [r.message for r in caplog.records if part in r.message]


def trained(steps):
    model = network()
    model.compile("sgd", "mse")
    model.fit(X, Y, batch_size=10, epochs=steps // 2, verbose=0)
    return model


def trained_by_nobody_knows_whom():
    model = trained(2)
    model.compile("sgd", "mse")
    return model


def trained_privately():
    private = compiled(network(layers.Dense(4)), ledger())
    private.fit(X, Y, verbose=0)
    return private.model


def scaled(**given):
    scales = layers.Normalization(name="patient_scales", **given)
    model = network(scales)
    if not given:
        scales.adapt(X)
    return model


class TestAdaptedLayers:
    """And other weights that data may have decided before `compile`."""

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (scaled, ["patient_scales", "means and variances"]),
            (lambda: scaled(mean=0.0, variance=2.0), []),
            (lambda: trained(4), ["are not fresh", "for 4 steps"]),
            (trained_by_nobody_knows_whom, ["are not fresh", "than it begins"]),
            (lambda: trained(0), []),
            (trained_privately, []),
        ],
    )
    def test_are_named_at_compile(self, make, words, caplog) -> None:
        model = make()
        caplog.clear()

        compiled(model, ledger())

        found = [r.message for r in caplog.records if r.name == "absl"]
        assert len(found) == bool(words)
        assert all(word in found[0] for word in words)


class TestDecisions:
    """On metrics without noise they are named, and on anything else not."""

    @pytest.mark.parametrize(
        ("acts", "metric"),
        [
            (callbacks.EarlyStopping("loss"), "loss"),
            (callbacks.ReduceLROnPlateau("mae"), "mae"),
            (
                callbacks.ModelCheckpoint(
                    "a.keras", monitor="loss", save_best_only=True
                ),
                "loss",
            ),
            (callbacks.TerminateOnNaN(), "loss"),
            (callbacks.EarlyStopping("val_loss"), None),
            *(
                (callbacks.EarlyStopping(log, mode="min"), None)
                for log in ("epsilon", "rounds_left", "signal_to_noise")
            ),
            (callbacks.LearningRateScheduler(lambda epoch: 1.0), None),
            (callbacks.ModelCheckpoint("a.keras", monitor="loss"), None),
        ],
    )
    def test_are_named(self, acts, metric, caplog) -> None:
        judge(CALLBACKS, [callbacks.CSVLogger("a"), acts])

        found = messages(caplog, "what it decides")
        assert len(found) == (metric is not None)
        for message in found:
            assert message.startswith(f"{type(acts).__name__} acts on")
            assert f"'val_{metric}'" in message

    def test_are_looked_at_by_fit(self, caplog) -> None:
        stops = callbacks.EarlyStopping("loss")

        compiled(network(), ledger()).fit(X, Y, verbose=0, callbacks=stops)

        assert messages(caplog, "what it decides")
        assert messages(caplog, "let no callback decide by them")


class TestRoundsThatTheLedgerMisses:
    def test_are_said_once_after_an_older_copy_came_back(
        self, tmp_path, caplog
    ) -> None:
        path, backup = tmp_path / "l.db", tmp_path / "backup"
        older = keras_dp.PrivacyLedger.open(path, dataset="test")
        private = compiled(network(), older)
        private.train_on_batch(X, Y)
        copy = path.read_bytes()
        restoring = callbacks.BackupAndRestore(backup, delete_checkpoint=False)
        private.fit(X, Y, epochs=4, callbacks=[restoring], verbose=0)
        older.close()
        path.write_bytes(copy)

        with keras_dp.PrivacyLedger.open(path) as own:
            again = compiled(network(), own)
            for epochs in (5, 6):
                again.fit(X, Y, epochs=epochs, callbacks=[restoring], verbose=0)

        (said,) = messages(caplog, "has released")
        assert f"released 5 rounds, and the ledger {path} holds 1." in said
        assert "put back the newest" in said

    def test_are_not_where_none_are(self, tmp_path, caplog) -> None:
        """Weights that were saved before the last rounds count as released."""
        own = ledger()
        private = compiled(network(), own)
        private.fit(X, Y, epochs=2, verbose=0)
        private.save_weights(tmp_path / "w.weights.h5")
        private.fit(X, Y, verbose=0)

        again = compiled(network(), own)
        again.load_weights(tmp_path / "w.weights.h5")
        again.fit(X, Y, verbose=0)
        again.train_on_batch(X, Y)

        assert not messages(caplog, "has released")
        assert int(again.optimizer.iterations) == 4


class TestTrainingWithoutPrivacy:
    @pytest.mark.parametrize("method", ["fit", "train_on_batch"])
    def test_of_a_model_that_was_private_is_said_once(
        self, method, caplog
    ) -> None:
        private = compiled(network(), ledger())
        private.train_on_batch(X, Y)
        private.fit(X, Y, verbose=0)
        assert messages(caplog, "without privacy") == []

        private.model.compile("sgd", "mse")
        before = private.model.get_weights()[0]
        for _ in range(2):
            getattr(private.model, method)(X, Y)

        (said,) = messages(caplog, "without privacy")
        assert "Call fit of its PrivateModel" in said
        assert (private.model.get_weights()[0] != before).any()

    @pytest.mark.parametrize("method", ["fit", "train_on_batch"])
    def test_before_the_private_one_is_said(self, method, caplog) -> None:
        model = network()
        model.compile("sgd", "mse")
        compiled(model, ledger())

        getattr(model, method)(X, Y)

        (said,) = messages(caplog, "without privacy")
        assert "no ledger covers" in said

    def test_of_any_other_model_is_not(self, caplog) -> None:
        private, other = compiled(network(), ledger()), network()
        private.train_on_batch(X, Y)

        other.compile("sgd", "mse")
        other.fit(X, Y, verbose=0)
        private.evaluate(X, Y, verbose=0)

        assert messages(caplog, "without privacy") == []


class TestSeveralLedgers:
    def test_for_one_model_and_data_set_are_said(self, caplog) -> None:
        model = network()
        one, other = (compiled(model, ledger()) for _ in range(2))

        one.train_on_batch(X, Y)
        assert not messages(caplog, "another ledger")
        other.train_on_batch(X, Y)

        assert len(messages(caplog, "another ledger")) == 1


def slices():
    return tf.data.Dataset.from_tensor_slices((X, Y))


class TestContentsThatDecide:
    """In which batch other records stand."""

    PIPELINES: ClassVar = {
        "buckets": lambda data: data.bucket_by_sequence_length(
            lambda x: tf.shape(x)[0], [3], [4, 4]
        ),
        "filter": lambda data: data.filter(
            lambda x: tf.shape(x)[0] > 2
        ).padded_batch(4, [3]),
        "padding": lambda data: data.padded_batch(4),
        "fixed": lambda data: data.padded_batch(4, [3]),
    }

    @pytest.mark.parametrize("name", PIPELINES)
    def test_are_warned_of(self, name, caplog) -> None:
        lengths = tf.data.Dataset.from_tensor_slices([2, 3] * 20)
        sequences = lengths.map(lambda n: tf.fill([n], 1.0))

        judge(BATCHES, self.PIPELINES[name](sequences))

        warned = bool(messages(caplog, "may decide in which batches"))
        assert warned == (name != "fixed")  # The control.

    @pytest.mark.parametrize("by_contents", [True, False])
    def test_are_in_the_ledger(self, by_contents) -> None:
        """So no epsilon is printed for a record that is replaced."""
        own = ledger()
        data = slices()
        if by_contents:
            data = data.filter(lambda x, y: tf.reduce_sum(x) < 1e9)

        compiled(network(), own).fit(
            data.batch(8).repeat(), steps_per_epoch=2, shuffle=False, verbose=0
        )

        (row, *_) = own.rounds
        assert isinstance(row.round.sampling, SamplingByContents) == by_contents
        strongest = "zero_out" if by_contents else "replace_one"
        assert strongest_neighbours(own) == strongest


class TestRecordsThatAreRepeated:
    @pytest.mark.parametrize(
        "data",
        [
            lambda: slices().repeat().batch(8),
            lambda: slices().shuffle(20).repeat(2).batch(8).prefetch(1),
            lambda: slices().batch(8).repeat(2).unbatch().batch(5),
            lambda: slices().repeat().ragged_batch(8),
            lambda: slices().concatenate(slices().repeat(1)).batch(8),
        ],
    )
    def test_within_a_batch_are_refused(self, data) -> None:
        with pytest.raises(PrivateTrainingError, match="before it is repeated"):
            judge(BATCHES, data())

    def test_are_refused_before_anything_is_recorded(self) -> None:
        own = ledger()

        with pytest.raises(PrivateTrainingError, match="before it is repeated"):
            compiled(network(), own).fit(
                slices().repeat().batch(8), steps_per_epoch=2, verbose=0
            )

        assert len(own) == 0

    @pytest.mark.parametrize(
        "data",
        [
            lambda: slices().batch(8).repeat(),
            lambda: slices().shuffle(20).batch(8).prefetch(1),
            lambda: X,
            lambda: {"a": X, "b": tf.constant(X)},
        ],
    )
    def test_in_other_batches_are_not(self, data, caplog) -> None:
        judge(BATCHES, data())

        assert not caplog.records


def around(private):
    outer = keras.Sequential([keras.Input((3,)), private])
    outer.compile("sgd", "mse")
    outer.fit(X, Y + 1, verbose=0)


def around_the_model(private):
    inputs = keras.Input((3,))
    outer = keras.Model(inputs, private.model(inputs))
    outer.compile("sgd", "mse")
    outer.fit(X, Y + 1, verbose=0)


def by_a_tape(private):
    for variable in private.model.trainable_variables:
        variable.assign_sub(tf.ones(variable.shape))


def by_setting_them(private):
    weights = private.model.get_weights()
    private.model.set_weights([each + 1 for each in weights])


def arrays():
    return np.ones([24, 3], "float32"), np.zeros([24, 1], "float32"), 4


def samples():
    return (PoissonBatches(arrays()[:2], sampling_probability=1 / 6, seed=1),)


def callback_of(place, act):
    """A callback that calls `act` at one place, with what Keras says there."""
    made = callbacks.Callback()
    setattr(made, place, lambda *said, **logs: act(*said))
    return made


class TestOtherWeights:
    """Between two rounds the weights are those that the release left."""

    def private(self):
        private = compiled(network(), ledger())
        private.train_on_batch(X + 1, Y)
        return private

    @pytest.mark.full
    @pytest.mark.parametrize(
        "change", [around, around_the_model, by_a_tape, by_setting_them]
    )
    def test_are_said(self, change, caplog) -> None:
        private = self.private()
        change(private)

        private.train_on_batch(X, Y)

        assert messages(caplog, "by something else than a release")

    @pytest.mark.full
    @pytest.mark.parametrize("data", [arrays, samples])
    @pytest.mark.parametrize(
        ("place", "number", "are_said"),
        [
            ("on_train_batch_end", 5, True),  # The last round of an epoch.
            ("on_test_begin", {}, True),
            ("on_epoch_end", 0, True),
            ("on_epoch_begin", 1, True),
            ("on_train_batch_end", ALL, True),
            ("on_train_batch_end", 2, False),  # One block has rounds 1 to 4.
            ("on_epoch_end", 1, False),  # No round comes.
        ],
    )
    def test_of_callbacks_are_said_where_they_are_looked_at(
        self, place, number, are_said, data, monkeypatch, caplog
    ) -> None:
        """At each epoch and block, whatever the ledger covers ahead."""
        monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
        private = compiled(network(), ledger())

        def change(which=None, *logs):
            if which == number or number is ALL:
                by_setting_them(private)

        x, *more = data()
        private.fit(
            x,
            *more,
            epochs=2,
            validation_data=(X, Y),
            callbacks=[callback_of(place, change)],
            verbose=0,
        )

        found = messages(caplog, "by something else than a release")
        assert bool(found) == are_said

    def test_are_not_seen_where_there_are_none(self, caplog) -> None:
        """Control: evaluating, averages and files that begin a training."""
        private = compiled(network(), ledger())
        private.optimizer.use_ema = True
        stops = callbacks.EarlyStopping(
            "val_loss", patience=1, restore_best_weights=True
        )

        for _ in range(2):
            private.fit(
                X,
                Y,
                batch_size=5,
                epochs=4,
                verbose=0,
                validation_data=(X, Y),
                callbacks=[stops],
            )
            private.evaluate(X, Y, verbose=0)
            private.predict(X, verbose=0)

        assert not messages(caplog, "by something else than a release")


class TestAdapters:
    def adapted(self):
        model = network(layers.Dense(4))
        model.layers[0].enable_lora(2)
        return model

    @pytest.mark.full
    def test_that_a_file_left_at_zero_begin_anew(self, tmp_path) -> None:
        """Keras merges them into the kernel, and their gradients are then 0."""
        x = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
        loaded, fresh = self.adapted(), self.adapted()
        loaded.save_weights(tmp_path / "a.weights.h5")
        loaded.load_weights(tmp_path / "a.weights.h5")
        outputs = loaded.predict(x, verbose=0)

        for model in (loaded, fresh):
            adapter = model.layers[0].lora_kernel_b
            assert not np.any(adapter)
            private = compiled(model, ledger())
            private.train_on_batch(x, x[:, :1])
            assert np.any(adapter)

        assert np.any(loaded.predict(x, verbose=0) != outputs)
