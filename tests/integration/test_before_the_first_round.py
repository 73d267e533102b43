"""What is wrong shows before the ledger holds a plan or a round."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.sampling import PoissonBatches
from tests.private_models import CROSS_ENTROPY, private_of

RECORDS = 96


def data(records=RECORDS):
    x = np.random.default_rng(0).normal(size=(records, 6)).astype("float32")
    return x, (x[:, 0] > 0).astype("int32")


def ledger():
    return keras_dp.PrivacyLedger.in_memory(dataset="test")


def network():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])


def compiled(own_ledger, **options):
    query = keras_dp.GaussianAverageQuery(
        1.0, noise_multiplier=1.0, denominator=32
    )
    options["loss"] = CROSS_ENTROPY
    return private_of(network(), query, own_ledger, **options)


class Broken(keras.metrics.Metric):
    """Its result cannot be traced."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        pass

    def result(self):
        raise OSError("no result")


X, Y = data()
FAULTS = {
    "width": (X[:, :5], Y),
    "text": (X, np.array(["a", "b"])[Y]),
    "labels": (X, Y + 123),
    "labels of a data set": tf.data.Dataset.from_tensor_slices(
        (X, Y + 123)
    ).batch(8),
    "a tuple of 4": (X, Y, Y, Y),
}


class TestFit:
    @pytest.mark.parametrize("kind", FAULTS)
    def test_looks_at_the_validation_data_first(self, kind) -> None:
        """And shows none of it."""
        own = ledger()

        with pytest.raises(ValueError, match="`validation_data` must") as found:
            compiled(own).fit(X, Y, verbose=0, validation_data=FAULTS[kind])

        assert not own.runs
        assert not re.search(r"123|array\(|\d \d", str(found.value))
        if "labels" in kind:
            assert found.value.__cause__ is None

    def test_knows_how_many_rows_a_sum_has(self) -> None:
        """The query does not: its divisor is another query's."""
        own = ledger()
        total = keras_dp.dp_queries.GaussianSumQuery(
            1.0, noise_multiplier=2.0**-20
        )
        query = keras_dp.dp_queries.NormalizedQuery(total, 512.0)
        private = private_of(network(), query, own, loss=CROSS_ENTROPY)

        with pytest.raises(ValueError, match="`noise_multiplier` must be 0"):
            private.train_on_batch(*data(512))

        assert not own.runs

    @pytest.mark.parametrize("label", [-1, 2])
    def test_reads_labels_that_are_in_memory(self, label) -> None:
        own, wrong = ledger(), Y.copy()
        wrong[-1] = label
        samples = PoissonBatches((X, wrong), sampling_probability=0.01)

        with pytest.raises(ValueError, match=r"`y` must hold integer labels"):
            compiled(own).fit(samples, verbose=0)

        assert not own.runs

    @pytest.mark.parametrize("by", ["fit", "train_on_batch"])
    def test_traces_metrics_first(self, by) -> None:
        own = ledger()

        with pytest.raises(OSError, match="no result"):
            getattr(compiled(own, metrics=[Broken()]), by)(X, Y)

        assert not own.runs

    @pytest.mark.full
    def test_traces_the_release_first(self) -> None:
        """In float64 no bound is proven."""
        own = ledger()
        keras.config.set_dtype_policy("float64")
        try:
            private = keras_dp.make_private(
                network(),
                (X.astype("float64"), Y),
                loss=CROSS_ENTROPY,
                target_epsilon=3.0,
                epochs=1,
                noise="proven",
                ledger=own,
                verbose=False,
            )
            with pytest.raises(TypeError, match="float64"):
                private.fit(verbose=0)
        finally:
            keras.config.set_dtype_policy("float32")

        assert not own.runs

    @pytest.mark.full
    def test_asks_xla_first(self) -> None:
        own = ledger()
        private = compiled(own, jit_compile=True)
        private.model.layers[-1].activation = lambda values: (
            values + 0 * tf.strings.to_number(tf.strings.as_string(values))
        )

        with pytest.raises(ValueError, match="`jit_compile` must be False"):
            private.fit(X, Y, verbose=0)

        assert not own.runs
