"""A private model is a trainer of Keras: each test runs with and without.

Without noise, with a clip that nothing reaches and the size of the batch as
the denominator, it computes what Keras does, so that logs can be compared.
"""

import keras
import numpy as np
import pytest
from keras import layers

import keras_dp
from tests.private_models import private_of
from tests.slow_loop import flat

RECORDS, BATCH = 24, 8
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(RECORDS, 5)).astype("float32")
Y = GENERATOR.normal(size=(RECORDS, 1)).astype("float32")
WEIGHTS = GENERATOR.uniform(0.5, 2, size=RECORDS).astype("float32")
TWO = {"a": Y, "b": 2 * Y}
# Sums of 24 float32 numbers, in another order.
CLOSE = {"rtol": 2e-5}


def one_output():
    keras.utils.set_random_seed(1)
    return keras.Sequential([keras.Input((5,)), layers.Dense(1)])


def two_outputs():
    keras.utils.set_random_seed(1)
    inputs = keras.Input((5,))
    outputs = {name: layers.Dense(1, name=name)(inputs) for name in "ab"}
    return keras.Model(inputs, outputs)


def compiled(kind, model, **options):
    options.setdefault("loss", "mse")
    if kind == "keras":
        model.compile(keras.optimizers.SGD(0.1), **options)
        return model
    query = keras_dp.GaussianAverageQuery(1e6, 0.0, denominator=BATCH)
    return private_of(model, query, **options)


KINDS = ["keras", "private"]


class TestLogs:
    """Their names, their order and their values are those of Keras."""

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("weights", "run_eagerly"), [(None, True), (WEIGHTS[:BATCH], False)]
    )
    @pytest.mark.parametrize(
        ("make", "y", "options"),
        [
            (one_output, Y, {"metrics": ["mae", "mse"]}),
            (one_output, Y, {"weighted_metrics": ["mae"], "metrics": ["mse"]}),
            (one_output, Y, {"loss": keras.losses.Huber(name="own")}),
            (
                two_outputs,
                TWO,
                {
                    "loss": {"a": "mse", "b": "mae"},
                    "loss_weights": {"a": 1.0, "b": 0.5},
                    "metrics": {"b": ["mse"]},
                    "weighted_metrics": {"a": ["mae"]},
                },
            ),
        ],
        ids=["metrics", "weighted", "named", "two outputs"],
    )
    def test_of_a_batch(self, make, y, options, weights, run_eagerly) -> None:
        y = keras.tree.map_structure(lambda leaf: leaf[:BATCH], y)
        seen = {}
        for kind in KINDS:
            trainer = compiled(kind, make(), run_eagerly=run_eagerly, **options)
            seen[kind] = [
                trainer.train_on_batch(X[:BATCH], y, weights, return_dict=True),
                trainer.test_on_batch(X[:BATCH], y, weights, return_dict=True),
                trainer.train_on_batch(X[:BATCH], y, weights),
                trainer.test_on_batch(X[:BATCH], y, weights),
            ]

        for plain, private in zip(*seen.values(), strict=True):
            if isinstance(plain, dict):
                assert [*private] == [*plain]
                plain, private = [*plain.values()], [*private.values()]
            np.testing.assert_allclose(private, plain, **CLOSE)

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("reduction", "weights"),
        [
            ("sum_over_batch_size", WEIGHTS[:BATCH]),
            ("mean", None),
            ("mean", WEIGHTS[:BATCH]),
            ("sum", WEIGHTS[:BATCH]),
        ],
    )
    def test_of_each_reduction(self, reduction, weights) -> None:
        """A sum over the batch is `BATCH` times as large, in the update too."""
        loss = keras.losses.MeanSquaredError(reduction=reduction)
        shown, after = {}, {}
        for kind in KINDS:
            trainer = compiled(kind, one_output(), loss=loss)
            if kind == "keras" and reduction == "sum":
                trainer.optimizer.learning_rate = 0.1 / BATCH
            shown[kind] = trainer.train_on_batch(X[:BATCH], Y[:BATCH], weights)
            after[kind] = flat(getattr(trainer, "model", trainer))

        factor = BATCH if reduction == "sum" else 1
        np.testing.assert_allclose(
            factor * shown["private"], shown["keras"], **CLOSE
        )
        np.testing.assert_allclose(*after.values(), atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
class TestBothKinds:
    def test_stop_where_a_callback_says_so(self, kind) -> None:
        class Stops(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                rounds.append(batch)
                if batch == 1:
                    self.model.stop_training = True

        rounds = []
        trainer = compiled(kind, one_output())

        history = trainer.fit(
            X, Y, batch_size=4, epochs=5, callbacks=[Stops()], verbose=0
        )

        assert history.epoch == [0]
        assert int(trainer.optimizer.iterations) == len(rounds)
        if kind == "private":
            assert len(trainer.optimizer.ledger) == len(rounds)

    def test_start_at_an_epoch(self, kind) -> None:
        trainer = compiled(kind, one_output())

        history = trainer.fit(
            X, Y, batch_size=BATCH, epochs=5, initial_epoch=3, verbose=0
        )

        assert history.epoch == [3, 4]
        assert int(trainer.optimizer.iterations) == 2 * RECORDS // BATCH

    @pytest.mark.parametrize("steps", [1, 3])
    def test_call_back_once_an_execution(self, kind, steps) -> None:
        class Counts(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                seen.append((batch, [*logs]))

        seen = []
        trainer = compiled(kind, one_output(), steps_per_execution=steps)

        trainer.fit(X, Y, batch_size=4, callbacks=[Counts()], verbose=0)

        assert [batch for batch, _ in seen] == [*range(steps - 1, 6, steps)]
        assert all(names[0] == "loss" for _, names in seen)
