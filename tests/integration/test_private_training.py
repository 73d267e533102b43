"""Does training do what its ledger says, and nothing else?"""

import contextlib
import copy
import pickle

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.errors import (
    BudgetExceededError,
    GradientCheckError,
    PrivateTrainingError,
    UnsupportedLayerError,
)
from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    PoissonSampling,
    UnverifiedSampling,
)
from keras_dp.ledger.rows import run_writer
from keras_dp.optimizers import DPSGD, DPAdam
from keras_dp.sampling import PoissonBatches
from tests.models import TimeMajor
from tests.private_models import private_of
from tests.query_table import assert_equal
from tests.slow_loop import clipped, flat, flat_gradients

RECORDS, FEATURES = 60, 5
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _data(records=RECORDS):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(records, FEATURES)).astype("float32")
    return x, generator.integers(0, 3, size=records)


def _model(*hidden):
    return keras.Sequential(
        [keras.Input((FEATURES,)), *hidden, layers.Dense(3)]
    )


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.head = layers.Dense(4), layers.Dense(3)

    def call(self, inputs):
        return self.head(self.hidden(inputs))


def _query(stddev=0.0, clip=1.0, denominator=10):
    return keras_dp.GaussianAverageQuery(clip, stddev, denominator)


def _ledger():
    return keras_dp.PrivacyLedger.in_memory(dataset="test")


def _private(model=None, query=None, ledger=None, **options):
    options = {"rate": 0.5, "loss": LOSS, "metrics": ["accuracy"], **options}
    return private_of(model or _model(), query or _query(), ledger, **options)


def _trained(model=None):
    private = _private(model, _query(1.0))
    private.train_on_batch(*_data())
    return private


def _hidden(private):
    return private.model.layers[0]


def _centred(x):
    return x - keras.ops.mean(x, axis=0)


def _clipped_step(model, x, y, clip, denominator):
    """A step of DP-SGD without noise at rate 1, by the loop over examples."""
    gradients = flat_gradients(model, x, y, LOSS)
    return clipped(gradients, clip).sum(axis=0) / denominator


class TestTheUpdate:
    @pytest.mark.parametrize(
        "mode", ["eager", "graph", pytest.param("jit", marks=pytest.mark.full)]
    )
    def test_is_that_of_clipped_examples(self, mode) -> None:
        keras.utils.set_random_seed(1)
        x, y = _data()
        private = _private(
            _model(layers.Dense(4, activation="tanh")),
            _query(clip=0.7, denominator=12),
            run_eagerly=mode == "eager",
            jit_compile=mode == "jit",
        )
        expected = _clipped_step(private.model, x, y, 0.7, 12)
        before = flat(private.model)

        private.train_on_batch(x, y)

        # float32 rounding of weights of order 1.
        np.testing.assert_allclose(
            flat(private.model), before - 0.5 * expected, atol=2e-6
        )

    def test_is_that_of_examples_where_an_axis_is_as_long(self) -> None:
        """It looks like the batch, and no self-check runs."""
        x, y = _data(FEATURES)
        x = x[:, :, None] * np.array([1, -2], "float32")
        hidden = [TimeMajor(), layers.Flatten(), layers.Dense(3)]
        model = keras.Sequential([keras.Input((FEATURES, 2)), *hidden])
        private = _private(model, _query(clip=0.7))
        expected = _clipped_step(model, x, y, 0.7, 10)
        before = flat(model)

        private.train_on_batch(x, y)

        np.testing.assert_allclose(
            flat(model), before - 0.5 * expected, atol=2e-6
        )

    @pytest.mark.full
    def test_has_the_stated_noise_once_per_sample(self) -> None:
        """Zero gradients leave the noise: KS at false-alarm 1e-6."""
        x = np.zeros((RECORDS, 4000), "float32")
        y = np.zeros((RECORDS, 1), "float32")
        head = layers.Dense(5, use_bias=False, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((4000,)), head])
        query = _query(stddev=6.0, clip=2.0, denominator=3)
        private = _private(model, query, rate=1.0, seed=5, loss="mse")

        private.fit(
            PoissonBatches(
                (x, y), sampling_probability=0.9, physical_batch_size=8, seed=1
            ),
            steps_per_epoch=1,
            verbose=0,
        )

        noise = model.get_weights()[0].ravel()
        right = scipy.stats.norm(scale=6.0 / 3)
        assert scipy.stats.kstest(noise, right.cdf).pvalue > 1e-6
        for wrong in (0.9, 1.1, np.sqrt(7)):  # sqrt(7): once per batch.
            law = scipy.stats.norm(scale=wrong * 6.0 / 3)
            assert scipy.stats.kstest(noise, law.cdf).pvalue < 1e-6

    def test_of_an_empty_sample_is_noise(self) -> None:
        x, y = _data()
        ledger = _ledger()
        private = _private(query=_query(stddev=1.0), ledger=ledger)
        before = private.model.get_weights()[0]

        history = private.fit(
            PoissonBatches((x, y), sampling_probability=1e-9),
            steps_per_epoch=2,
            verbose=0,
        )

        after = private.model.get_weights()[0]
        assert len(ledger) == 2
        assert (before != after).all()
        assert np.isfinite(after).all()
        assert history.history["accuracy"] == [0.0]

    def test_adds_weight_penalties_after_the_noise(self) -> None:
        penalized = layers.Dense(3, kernel_regularizer=keras.regularizers.L2(2))
        model = keras.Sequential([keras.Input((FEATURES,)), penalized])
        private = _private(model, _query(clip=0.0))
        before = penalized.kernel.numpy()

        private.train_on_batch(*_data())

        # Rate 0.5 times the gradient of 2 w^2; clipped to 0, data adds nothing.
        np.testing.assert_allclose(
            penalized.kernel, before - 0.5 * 4 * before, atol=1e-6
        )


class TestTheLedger:
    def test_holds_one_event_per_round(self) -> None:
        ledger = _ledger()
        private = _private(query=_query(stddev=1.1), ledger=ledger)
        samples = PoissonBatches(_data(), sampling_probability=0.25)

        private.fit(samples, epochs=3, verbose=0)

        ((round_, count),) = ledger.rounds
        assert count == 12
        assert ledger.unsettled == 0
        assert round_.sampling == PoissonSampling(0.25, drawn_by_library=True)
        assert round_.queries == (GaussianSum("gradients", 1.0, 1.1),)
        assert not round_.seeded

    @pytest.mark.full
    def test_says_unverified_for_batches_the_caller_brings(self) -> None:
        x, y = _data()
        ledger = _ledger()
        private = _private(query=_query(stddev=1.0), ledger=ledger)

        private.fit(x, y, batch_size=16, epochs=2, verbose=0)
        private.fit(
            tf.data.Dataset.from_tensor_slices((x, y)).batch(20),
            shuffle=False,
            verbose=0,
        )
        private.train_on_batch(x[:4], y[:4])

        ((round_, count),) = ledger.rounds
        assert round_.sampling == UnverifiedSampling()
        assert count == 2 * 4 + 3 + 1

    @pytest.mark.parametrize("where", ["noise", "sampler"])
    def test_says_when_a_seed_was_given(self, where) -> None:
        of_noise, of_sampler = (
            1 if where == each else None for each in ("noise", "sampler")
        )
        private = _private(query=_query(1.0), seed=of_noise)
        samples = PoissonBatches(
            _data(), sampling_probability=0.5, seed=of_sampler
        )

        private.fit(samples, verbose=0)

        assert private.optimizer.ledger.rounds[0].round.seeded

    @pytest.mark.full
    def test_covers_a_round_before_it_runs(self, monkeypatch) -> None:
        seen = []
        ledger = _ledger()
        private = _private(query=_query(1.0), ledger=ledger)
        original = DPSGD.release

        def release(self, *args):
            seen.append(len(ledger))
            return original(self, *args)

        monkeypatch.setattr(DPSGD, "release", release)
        private.compile(private.optimizer, private.loss, run_eagerly=True)

        private.fit(*_data(), batch_size=20, verbose=0)

        assert len(seen) == 3
        assert np.all(np.array(seen) >= [1, 2, 3])

    @pytest.mark.parametrize(
        "mode",
        [
            *(
                pytest.param(mode, marks=pytest.mark.full)
                for mode in ("graph", "eager", "killed")
            ),
            pytest.param("jit", marks=pytest.mark.nightly),
        ],
    )
    def test_withholds_what_a_state_that_a_callback_loads_would_release(
        self, mode, monkeypatch, tmp_path
    ) -> None:
        """In the middle of a block, and if nobody looks at the events."""
        path = tmp_path / "low.weights.h5"
        low = _private(query=_query(0.1))
        low.train_on_batch(*_data())
        low.save_weights(path)

        class Loads(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if batch == 2:
                    self.model.load_weights(path)

        # Blocks of 1, 4, 16 rounds: the change falls into the second.
        monkeypatch.setattr(run_writer, "BLOCK_SECONDS", 1e9)
        private = _private(
            query=_query(1.0),
            run_eagerly=mode == "eager",
            jit_compile=mode == "jit",
        )
        if mode == "killed":
            monkeypatch.setattr(
                run_writer.RunWriter, "_compare", lambda self: None
            )

        with (
            contextlib.nullcontext()
            if mode == "killed"
            else pytest.raises(PrivateTrainingError, match="withheld")
        ):
            private.fit(*_data(), batch_size=4, callbacks=[Loads()], verbose=0)

        assert_equal(low.get_weights(), private.get_weights())


class TestRefusals:
    def test_a_loss_over_the_batch_before_anything_is_recorded(self) -> None:
        def spread(y_true, y_pred):
            return keras.ops.var(y_pred, axis=0)

        private = _private(query=_query(1.0), checks=4, loss=spread)

        with pytest.raises(GradientCheckError, match="couples examples"):
            private.fit(*_data(), verbose=0)

        assert len(private.optimizer.ledger) == 0

    def test_a_clip_too_small_for_float32(self) -> None:
        private = _private(query=_query(clip=1e-20))

        with pytest.raises(ValueError, match="l2_norm_clip"):
            private.train_on_batch(*_data())

    @pytest.mark.parametrize(
        "change",
        [
            lambda private: setattr(private, "optimizer", _trained().optimizer),
            lambda private: setattr(private, "model", _trained().model),
            lambda private: setattr(_hidden(private), "trainable", True),
            # Nobody would look whether examples interact by now.
            lambda private: setattr(_hidden(private), "activation", _centred),
            lambda private: setattr(_hidden(private), "call", _centred),
            lambda private: setattr(
                private.optimizer.inner,
                "learning_rate",
                keras.optimizers.schedules.ExponentialDecay(0.0, 1, 0.5),
            ),
        ],
        ids=["optimizer", "model", "thawed", "activation", "call", "schedule"],
    )
    def test_parts_that_were_exchanged_after_compile(self, change) -> None:
        hidden = layers.Dense(4)
        model = _model(hidden)
        hidden.trainable = False
        private = _trained(model)

        change(private)
        with pytest.raises(PrivateTrainingError, match=r"compile|its schedule"):
            private.train_on_batch(*_data())

        assert len(private.optimizer.ledger) == 1

    def test_a_batch_normalization_that_is_unfrozen_later(self) -> None:
        norm = layers.BatchNormalization(center=False, scale=False)
        norm.trainable = False
        private = _trained(_model(norm))

        norm.trainable = True
        with pytest.raises(UnsupportedLayerError, match="BatchNorm"):
            private.train_on_batch(*_data())

    def test_another_ledger_in_the_middle_of_training(self) -> None:
        class Swaps(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                self.model.optimizer.ledger = _ledger()

        private = _private(query=_query(1.0))

        with pytest.raises(PrivateTrainingError, match="while a training"):
            private.fit(*_data(), callbacks=[Swaps()], verbose=0)

    @pytest.mark.parametrize("first", ["empty", "alike"])
    def test_interaction_that_the_first_sample_does_not_show(
        self, first
    ) -> None:
        class Centred(layers.Layer):
            def call(self, x):
                return x - keras.ops.mean(x, axis=0, keepdims=True)

        x, y = _data()
        probability = 1e-9
        if first == "alike":
            x, y, probability = np.zeros_like(x), np.zeros_like(y), 0.5
        private = _private(_model(Centred()), _query(1.0), checks=4)

        with pytest.raises(GradientCheckError, match="depend on that example"):
            private.fit(
                PoissonBatches((x, y), sampling_probability=probability),
                steps_per_epoch=1,
                verbose=0,
            )

    @pytest.mark.parametrize("entry", [1e25, 3e38, -3e38])
    def test_interaction_beside_a_record_that_overflows(self, entry) -> None:
        class Rolled(layers.Layer):
            def call(self, x):
                return x + 0.1 * keras.ops.roll(x, 1, axis=0)

        x, y = _data()
        x[1] = entry  # As files of maps mark what is missing.
        private = _private(_model(Rolled()), _query(1.0), checks=4)

        with pytest.raises(GradientCheckError, match="depend on that example"):
            private.train_on_batch(x, y)

    def test_tensor_float_32_on_a_gpu(self, monkeypatch) -> None:
        private = _private(query=_query(1.0))
        monkeypatch.setattr(
            tf.config, "list_physical_devices", lambda *kind: ["gpu"]
        )
        monkeypatch.setattr(
            tf.config.experimental,
            "tensor_float_32_execution_enabled",
            lambda: True,
        )

        with pytest.raises(PrivateTrainingError, match="TensorFloat-32"):
            private.train_on_batch(*_data())


class TestSaving:
    def _trained(self, ledger):
        query = _query(1.0, clip=0.5)
        private = _private(None, query, ledger, kind=DPAdam, rate=0.01)
        private.fit(*_data(), batch_size=20, verbose=0)
        return private

    def test_keeps_weights_optimizer_and_query_but_no_seed(
        self, tmp_path
    ) -> None:
        private = self._trained(_ledger())
        path = tmp_path / "private.keras"

        private.save(path)
        loaded = keras.saving.load_model(path)

        assert isinstance(loaded, keras_dp.PrivateModel)
        assert isinstance(loaded.optimizer, DPAdam)
        assert loaded.optimizer.query == private.optimizer.query
        assert int(loaded.optimizer.iterations) == 3
        assert_equal(private.optimizer.variables, loaded.optimizer.variables)
        old, new = (
            p.optimizer.read_state()["gradients"].seed.numpy()
            for p in (private, loaded)
        )
        assert (old != new).any()
        x, _ = _data()
        np.testing.assert_allclose(
            private.predict(x, verbose=0), loaded.predict(x, verbose=0)
        )

    # Keras warns of the state of an optimizer that trained nothing yet.
    @pytest.mark.filterwarnings("ignore:Skipping variable loading")
    @pytest.mark.parametrize(
        "copied",
        [
            copy.deepcopy,
            lambda private: pickle.loads(pickle.dumps(private)),
            keras.models.clone_model,
        ],
        ids=["deepcopy", "pickle", "clone"],
    )
    def test_copies_keep_the_target(self, copied) -> None:
        """They have no ledger, and the one that they are given is spent."""
        ledger = _ledger()
        private = keras_dp.make_private(
            _model(),
            _data(),
            ledger=ledger,
            target_epsilon=3.0,
            epochs=1,
            batch_size=20,
            loss=LOSS,
            learning_rate=0.1,
            verbose=False,
        )
        ledger.record(FullDataset(), [GaussianSum("all", 1.0, 0.1)])

        found = copied(private)
        found.compile(DPAdam(query=_query(1.0), ledger=ledger), loss=LOSS)
        with pytest.raises(BudgetExceededError, match="`target_epsilon` must"):
            found.fit(*_data(), verbose=0)

    def test_checkpoints_hold_no_seed(self, tmp_path) -> None:
        private = self._trained(_ledger())
        seed = private.optimizer.read_state()["gradients"].seed.numpy()

        tf.train.Checkpoint(private).write(str(tmp_path / "checkpoint"))
        private.save_weights(tmp_path / "private.weights.h5")
        private.save(tmp_path / "private", zipped=False)

        for file in tmp_path.rglob("*"):
            if file.is_file():
                content = file.read_bytes()
                for word in seed:
                    assert word.tobytes() not in content, file

    @pytest.mark.full
    def test_groups_survive(self, tmp_path) -> None:
        query = keras_dp.dp_queries.NestedQuery(
            {"b": _query(1.0), "k": _query(2.0)}
        )
        private = _private(query=query, groups={"b": "bias", "k": ...})
        private.fit(*_data(), verbose=0)
        path = tmp_path / "private.keras"

        private.save(path)
        loaded = keras.saving.load_model(path)
        loaded.optimizer.ledger = ledger = _ledger()
        loaded.fit(*_data(), verbose=0)

        assert loaded.optimizer.query == query
        assert ledger.rounds[0].round.queries[1].noise_stddev == 2.0
