"""Metrics of the training data leave the model as private answers only."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.dp_queries import GaussianAverageQuery, GaussianSumQuery
from keras_dp.sampling import PoissonBatches
from keras_dp.training import PrivateClassCounts, PrivateLoss, PrivateMean
from keras_dp.training.metrics.private_metrics import Examples
from keras_dp.training.metrics.side_queries import SideQueries
from tests.private_models import private_of
from tests.slow_loop import flat_gradients

RECORDS, FEATURES, CLASSES = 60, 5, 3
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
ACCURACY = keras.metrics.sparse_categorical_accuracy


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, FEATURES)).astype("float32")
    return x, generator.integers(0, CLASSES, size=RECORDS)


def averaged(stddev=0.0, clip=100.0, denominator=RECORDS):
    return GaussianAverageQuery(clip, stddev, denominator)


def all_metrics(stddev=0.0, clip=100.0):
    return {
        "loss": PrivateLoss(averaged(stddev, clip)),
        "accuracy": PrivateMean(averaged(stddev, clip), ACCURACY),
        "count": PrivateClassCounts(GaussianSumQuery(clip, stddev), CLASSES),
    }


def trained_by(ledger=None, metrics=None, rate=0.0, **options):
    keras.utils.set_random_seed(3)
    return private_of(
        keras.Sequential([keras.Input((FEATURES,)), layers.Dense(CLASSES)]),
        averaged(1.0, 1.0),
        ledger,
        rate=rate,
        loss=LOSS,
        metrics=["accuracy"],
        private_metrics=all_metrics() if metrics is None else metrics,
        **options,
    )


def examples(targets, outputs=None):
    """Returns a batch without losses and gradients."""
    return Examples(targets, outputs, None, [])


class TestGradientMetrics:
    def test_are_loaded_as_they_were_saved(self) -> None:
        metric = keras_dp.training.PrivateClippedShare(averaged(2.0), 0.5)

        config = keras.saving.serialize_keras_object(metric)

        assert keras.saving.deserialize_keras_object(config) == metric


class TestTheirValues:
    @pytest.mark.full
    @pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
    def test_without_noise_are_the_true_ones(self, mode) -> None:
        """Those of norms before the clip at 1, where some are longer."""
        x, y = data()
        private = trained_by(
            metrics={
                **all_metrics(),
                "norm": keras_dp.training.PrivateGradientNorm(averaged()),
                "clipped": keras_dp.training.PrivateClippedShare(
                    averaged(), 1.0
                ),
            },
            run_eagerly=mode == "eager",
            jit_compile=mode == "jit",
        )

        logs = private.train_on_batch(x, y, return_dict=True)

        true = private.evaluate(x, y, return_dict=True, verbose=0)
        assert logs["loss"] == pytest.approx(true["loss"], rel=1e-5)
        assert logs["accuracy"] == pytest.approx(true["accuracy"], rel=1e-5)
        counts = [logs[f"count_{index}"] for index in range(CLASSES)]
        assert counts == np.bincount(y, minlength=CLASSES).tolist()
        norms = np.linalg.norm(
            flat_gradients(private.model, x, y, LOSS), axis=1
        )
        assert 0.1 < np.mean(norms > 1.0) < 0.9
        assert logs["clipped"] == pytest.approx(np.mean(norms > 1.0), abs=1e-6)
        assert logs["norm"] == pytest.approx(np.mean(norms), rel=1e-5)

    @pytest.mark.full
    @pytest.mark.parametrize("size", [7, 64])
    def test_do_not_depend_on_physical_batches(self, size) -> None:
        """Nor on padding: with probability 1 every record takes part."""
        x, y = data()
        batches = PoissonBatches(
            (x, y), sampling_probability=1.0, physical_batch_size=size
        )
        private = trained_by()

        logs = private.fit(batches, epochs=1, verbose=0).history

        true = private.evaluate(x, y, return_dict=True, verbose=0)
        assert logs["loss"][0] == pytest.approx(true["loss"], rel=1e-5)
        assert logs["accuracy"][0] == pytest.approx(true["accuracy"], rel=1e-5)
        assert logs["count_1"][0] == pytest.approx((y == 1).sum())

    def test_are_those_of_clipped_records(self) -> None:
        x, y = data()
        private = trained_by(metrics={"loss": PrivateLoss(averaged(clip=0.5))})

        logs = private.train_on_batch(x, y, return_dict=True)

        logits = private.predict(x, verbose=0)
        losses = keras.losses.sparse_categorical_crossentropy(
            y, logits, from_logits=True
        )
        expected = np.minimum(losses, 0.5).mean()
        assert logs["loss"] == pytest.approx(expected, rel=1e-5)

    def test_count_one_hot_targets_and_ignore_unknown_labels(self) -> None:
        metric = PrivateClassCounts(GaussianSumQuery(1.0, 0.0), CLASSES)

        one_hot = metric.records(examples(np.eye(CLASSES)[[2, 0]]))
        unknown = metric.records(examples(np.array([[1], [-1], [7]])))

        np.testing.assert_array_equal(one_hot, [[0, 0, 1], [1, 0, 0]])
        np.testing.assert_array_equal(unknown, [[0, 1, 0], [0] * 3, [0] * 3])

    def test_cannot_couple_examples(self) -> None:
        """A measure sees one example: a mean over the batch is its own."""

        def standardized(_, outputs):
            mean = keras.ops.mean(outputs, axis=0, keepdims=True)
            return keras.ops.sum(outputs - mean, axis=-1)

        metric = PrivateMean(averaged(), standardized)
        outputs = np.arange(6, dtype="float32").reshape(2, 3)

        records = metric.records(examples(np.zeros([2]), outputs))

        np.testing.assert_array_equal(records, [0.0, 0.0])


class TestNothingRaw:
    @pytest.mark.full
    def test_nor_anything_else_is_shown_where_no_metric_is_asked_for(
        self,
    ) -> None:
        private = trained_by(metrics={})

        history = private.fit(*data(), epochs=1, verbose=0).history

        assert set(history) == {"epsilon", "signal_to_noise"}
        ((round_, _),) = private.optimizer.ledger.rounds
        assert [each.name for each in round_.queries] == ["gradients"]

    def test_is_in_the_logs_of_any_callback(self) -> None:
        """With a clip of 0 and no noise all that leaves is 0."""
        x, y = data()
        seen = []

        class Notes(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen.append(dict(logs))

            def on_epoch_end(self, epoch, logs=None):
                seen.append(dict(logs))
                seen.append(dict(self.model.get_metrics_result()))

        private = trained_by(metrics=all_metrics(clip=0.0), rate=0.1)
        history = private.fit(
            PoissonBatches((x, y), sampling_probability=0.5),
            epochs=2,
            verbose=0,
            callbacks=[Notes()],
        ).history

        names = {"loss", "accuracy", *(f"count_{i}" for i in range(CLASSES))}
        assert history.pop("epsilon")  # Sums with a clip of 0 cost nothing.
        history.pop("signal_to_noise", None)  # From noised answers.
        assert set(history) == names
        assert not np.any(list(history.values()))
        assert len(seen) == 2 * (2 + 2)
        for logs in seen:
            logs.pop("epsilon", None)
            logs.pop("signal_to_noise", None)
            assert set(logs) <= names
            assert not any(float(value) for value in logs.values())

    @pytest.mark.full
    def test_control_without_private_metrics_raw_ones_do_leave(self) -> None:
        x, y = data()
        model = keras.Sequential([keras.Input((FEATURES,)), layers.Dense(3)])

        history = private_of(model, averaged()).fit(
            x, np.eye(CLASSES)[y], verbose=0
        )

        assert history.history["loss"][0] > 0


class TestArguments:
    @pytest.mark.parametrize("wrong", [[], {"loss": averaged()}, {1: None}])
    def test_must_be_named_private_metrics(self, wrong) -> None:
        with pytest.raises(TypeError, match="private_metrics"):
            trained_by(metrics=wrong)

    def test_a_measure_that_keeps_state_is_refused(self) -> None:
        """A metric object would mix examples, and keep what it sees."""
        with pytest.raises(TypeError, match="keeps no state"):
            PrivateMean(averaged(), keras.metrics.MeanSquaredError())

        seen = tf.Variable(0.0)

        def keeping(targets, outputs):
            seen.assign_add(tf.reduce_sum(outputs))
            return tf.reduce_sum(outputs)

        private = trained_by(metrics={"kept": PrivateMean(averaged(), keeping)})
        with pytest.raises(Exception, match="AssignAddVariableOp"):
            private.train_on_batch(*data())

    def test_a_measure_of_several_numbers_is_refused(self) -> None:
        metric = PrivateMean(averaged(), lambda y, outputs: outputs)
        several = examples(np.zeros([2]), np.zeros([2, 3], "float32"))

        with pytest.raises(ValueError, match="one number per example"):
            metric.records(several)

    @pytest.mark.parametrize("names", [("count", "count_0"), ("clip", "loss")])
    def test_names_that_others_have_are_refused(self, names) -> None:
        one, two = names
        counts = PrivateClassCounts(GaussianSumQuery(1.0, 1.0), 2)
        made = {one: counts if one == "count" else PrivateLoss(averaged())}
        queries = SideQueries({**made, two: PrivateLoss(averaged())}, None)

        with pytest.raises(ValueError, match="names that differ"):
            queries.check_names(["clip"])
