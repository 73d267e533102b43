"""What a private optimizer holds, and what nobody can change in it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.errors import PrivateTrainingError
from keras_dp.optimizers import DPSGD, DPOptimizer
from keras_dp.optimizers.private_round import PrivateRound
from tests.private_models import private_of


def query(stddev=1.0):
    return keras_dp.GaussianAverageQuery(1.0, stddev, denominator=8)


def optimizer(**options):
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
    return DPSGD(1.0, query=query(), ledger=ledger, **options)


def model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


def private_model(**options):
    return private_of(model(), query(), rate=1.0, **options)


DATA = tf.ones([4, 2]), tf.ones([4, 1])


class TestTheInnerOptimizer:
    """It applies noised answers, and no gradients of anybody else."""

    def test_refuses_gradients(self) -> None:
        inner = optimizer().inner
        variable = keras.Variable([1.0])
        inner.build([variable])
        gradients = [tf.constant([0.5])]

        for apply in (
            lambda: inner.apply(gradients, [variable]),
            lambda: inner.apply_gradients([(gradients[0], variable)]),
        ):
            with pytest.raises(PrivateTrainingError, match="inner optimizer"):
                apply()

        assert float(variable[0]) == 1.0

    def test_refuses_to_train_the_model_without_noise(self) -> None:
        private = private_model()
        private.train_on_batch(*DATA)
        before = private.model.get_weights()

        private.model.compile(private.optimizer.inner, "mse")
        with pytest.raises(PrivateTrainingError, match="inner optimizer"):
            private.model.fit(*DATA, verbose=0)

        for old, new in zip(before, private.model.get_weights(), strict=True):
            assert (old == new).all()

    def test_is_refused_while_training_privately_too(self) -> None:
        class Applies(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                private = self.model
                zeros = [tf.zeros(v.shape) for v in private.trainable_variables]
                private.optimizer.inner.apply(
                    zeros, private.trainable_variables
                )

        with pytest.raises(PrivateTrainingError, match="inner optimizer"):
            private_model().fit(*DATA, callbacks=[Applies()], verbose=0)

    def test_is_saved_as_what_it_is(self) -> None:
        config = keras.saving.serialize_keras_object(optimizer())

        loaded = keras.saving.deserialize_keras_object(config)

        assert type(loaded.inner) is keras.optimizers.SGD
        with pytest.raises(PrivateTrainingError, match="inner optimizer"):
            loaded.inner.apply([tf.zeros([1])], [keras.Variable([1.0])])


OPTIONS = {
    "learning_rate": (0.25, 0.5),
    "weight_decay": (0.125, 0.25),
    "clipnorm": (2.0, 3.0),
    "clipvalue": (2.0, 3.0),
    "global_clipnorm": (2.0, 3.0),
}


class TestOptionsOfKeras:
    """What is read, set and called outside is that of the inner optimizer."""

    @pytest.mark.parametrize("name", OPTIONS)
    def test_are_read_and_set_on_the_inner_one(self, name) -> None:
        first, second = OPTIONS[name]
        outer = DPOptimizer(
            keras.optimizers.SGD(**{name: first}),
            query=query(),
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="test"),
        )

        assert getattr(outer, name) == getattr(outer.inner, name) == first
        setattr(outer, name, second)
        assert getattr(outer, name) == getattr(outer.inner, name) == second
        loaded = DPOptimizer.from_config(outer.get_config())
        assert getattr(loaded, name) == second

    def test_exclude_variables_from_weight_decay(self) -> None:
        private = keras_dp.PrivateModel(model(), self_check_examples=0)
        outer = DPSGD(
            1.0,
            weight_decay=0.5,
            query=keras_dp.GaussianAverageQuery(0.0, 0.0, denominator=8),
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="test"),
        )
        outer.exclude_from_weight_decay(var_names=["bias"])
        private.compile(outer, loss="mse")
        kernel, bias = private.model.trainable_variables
        bias.assign([2.0])
        before = kernel.numpy()

        private.train_on_batch(*DATA)

        np.testing.assert_allclose(kernel, before / 2, rtol=1e-6)
        assert float(bias[0]) == 2.0

    def test_are_set_with_the_weights(self) -> None:
        trained, other = (private_model() for _ in range(2))
        trained.train_on_batch(*DATA)
        trained.train_on_batch(*DATA)
        other.train_on_batch(*DATA)

        other.optimizer.set_weights(trained.optimizer.variables)

        assert int(other.optimizer.iterations) == 2
        for one, two in zip(
            trained.optimizer.variables, other.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize("is_built", [False, True])
    def test_are_not_set_with_others(self, is_built) -> None:
        private = private_model()
        if is_built:
            private.train_on_batch(*DATA)

        with pytest.raises(ValueError, match="`weights` must"):
            private.optimizer.set_weights([np.ones([])])


class TestTheRound:
    @pytest.mark.parametrize("stddev", [1e-3, 1e3])
    def test_changed_by_force_stops_before_the_ledger(self, stddev) -> None:
        """The step would still do what it was traced with."""
        private = private_model()
        private.train_on_batch(*DATA)
        before = private.model.get_weights()

        object.__setattr__(private.optimizer.query, "sum_stddev", stddev)
        with pytest.raises(PrivateTrainingError, match="compiled with"):
            private.train_on_batch(*DATA)

        assert len(private.optimizer.ledger) == 1
        for old, new in zip(before, private.model.get_weights(), strict=True):
            assert (old == new).all()

    def test_is_made_where_the_model_is_built(self) -> None:
        with pytest.raises(PrivateTrainingError, match="must be built"):
            _ = optimizer().round


class TestEncodedSums:
    """Their bounds and noise are in no state; the event has their digest."""

    @pytest.mark.parametrize("run_eagerly", [True, False])
    def test_that_are_changed_by_force_get_no_answer(self, run_eagerly) -> None:
        noise = keras_dp.ledger.GaussianNoise(1000.0)
        bounds = keras_dp.ledger.CoordinateBounds.from_vectors([[9.0] * 4])
        encoded = keras_dp.dp_queries.EncodedSumQuery(bounds, noise)
        inner = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(1, use_bias=False)]
        )
        private = private_of(inner, encoded, rate=1.0, run_eagerly=run_eagerly)

        class Swaps(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                object.__setattr__(
                    encoded, "noise", keras_dp.ledger.GaussianNoise(1e-3)
                )
                self.weights = inner.get_weights()

        swaps = Swaps()
        with pytest.raises((PrivateTrainingError, ValueError)):
            private.fit(
                tf.ones([8, 4]),
                tf.ones([8, 1]),
                batch_size=2,
                verbose=0,
                callbacks=[swaps],
            )

        for left, last in zip(inner.get_weights(), swaps.weights, strict=True):
            assert (left == last).all()


class TestCompile:
    METRICS = {  # noqa: RUF012
        "loss": keras_dp.training.PrivateLoss(query(5.0))
    }

    def test_refuses_side_queries_without_state_in_the_optimizer(self) -> None:
        private = private_model()
        private.train_on_batch(*DATA)

        with pytest.raises(PrivateTrainingError, match="asked for something"):
            private.compile(
                private.optimizer, "mse", private_metrics=self.METRICS
            )


def test_what_was_loaded_trains_with_the_ledger_that_it_is_given() -> None:
    private = keras_dp.PrivateModel(model(), self_check_examples=0)
    private.compile(DPSGD.from_config(optimizer().get_config()), loss="mse")
    before = private.model.get_weights()

    with pytest.raises(PrivateTrainingError, match="given its ledger"):
        private.train_on_batch(*DATA)
    for old, new in zip(before, private.model.get_weights(), strict=True):
        assert (old == new).all()
    private.optimizer.ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
    private.train_on_batch(*DATA)

    assert len(private.optimizer.ledger) == 1


def test_only_metrics_of_side_queries_have_their_names() -> None:
    adaptive = keras_dp.dp_queries.AdaptiveClipSumQuery(1.0, 1.0, 1.0, 10.0)
    round_ = PrivateRound.of(adaptive, {"side": adaptive})

    assert set(round_.metrics(round_.initial_state(0))) == {"clip", "side/clip"}
