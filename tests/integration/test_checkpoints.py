"""What is saved of a private training can be loaded where it is needed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from tests import programs
from tests.private_models import private_of
from tests.query_table import assert_equal

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = np.ones((8, 1), "float32")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.model = keras.Sequential([layers.Dense(1)])

    def call(self, inputs):
        return self.model(inputs)


def sequential():
    return keras.Sequential([keras.Input((3,)), layers.Dense(1)])


def nested():
    """Its file looks like that of a private model around what it holds."""
    return keras.Sequential([keras.Input((3,)), sequential()])


def functional():
    inputs = keras.Input((3,))
    return keras.Model(inputs, layers.Dense(1)(inputs))


def private_model(model, stddev=1.0):
    query = keras_dp.GaussianAverageQuery(1.0, stddev, denominator=8)
    private = private_of(model, query, kind=keras_dp.DPAdam)
    private.train_on_batch(X, Y)
    return private


class TestInANewProcess:
    @pytest.mark.full
    def test_a_private_model_loads_after_the_import_that_it_needs(
        self, tmp_path
    ) -> None:
        """Without it Keras names the class, as `docs/sharp_edges.md` says."""
        private_model(sequential()).save(tmp_path / "private.keras")

        done = programs.python(
            "-c",
            "import sys, keras, keras_dp\n"
            "try:\n"
            "    keras.saving.load_model(sys.argv[1])\n"
            "except TypeError as error:\n"
            "    print(error, file=sys.stderr)\n"
            "import keras_dp.training\n"
            "private = keras.saving.load_model(sys.argv[1])\n"
            "print(type(private).__name__, type(private.optimizer).__name__, "
            "int(private.optimizer.iterations))",
            tmp_path / "private.keras",
        )

        assert "Could not locate class 'PrivateModel'" in done.stderr
        assert done.stdout.split()[-3:] == ["PrivateModel", "DPAdam", "1"]

    @pytest.mark.full
    def test_the_model_inside_loads_without_the_package(self, tmp_path) -> None:
        private = private_model(sequential())
        path = str(tmp_path / "model-{epoch}")
        saves = [
            keras_dp.SaveModel(f"{path}.keras"),
            keras_dp.SaveModel(f"{path}.weights.h5", save_weights_only=True),
        ]

        private.fit(X, Y, epochs=2, callbacks=saves, verbose=0)

        done = programs.python(
            "-c",
            "import sys, keras\n"
            "model = keras.saving.load_model(f'{sys.argv[1]}.keras')\n"
            "other = keras.Sequential([keras.Input((3,)), "
            "keras.layers.Dense(1)])\n"
            "other.load_weights(f'{sys.argv[1]}.weights.h5')\n"
            "print('keras_dp' in sys.modules, *model.get_weights()[0].ravel(), "
            "*other.get_weights()[0].ravel())",
            path.format(epoch=2),
        )

        loaded, *weights = done.stdout.split()[-7:]
        assert loaded == "False", done.stderr
        np.testing.assert_allclose(
            np.array(weights, float).reshape(2, -1),
            [private.get_weights()[0].ravel()] * 2,
            1e-6,
        )


def test_an_export_serves_the_model_inside(tmp_path) -> None:
    private = private_model(sequential())

    private.export(tmp_path / "served", verbose=False)

    served = tf.saved_model.load(tmp_path / "served")
    np.testing.assert_allclose(served.serve(X), private.model(X), rtol=1e-6)


class TestWeights:
    def test_in_several_files_are_refused(self, tmp_path) -> None:
        path = tmp_path / "plain.weights.json"
        sequential().save_weights(path, max_shard_size=50 / 1024**3)

        with pytest.raises(ValueError, match="`filepath` must be one file"):
            private_model(sequential()).load_weights(path)

    @pytest.mark.parametrize(
        ("make", "suffix"),
        [
            (sequential, ".weights.h5"),
            (nested, ".keras"),
            (Subclassed, ".weights.h5"),
            # Others are read as one of these.
            pytest.param(functional, ".keras", marks=pytest.mark.nightly),
            pytest.param(sequential, ".keras", marks=pytest.mark.nightly),
            pytest.param(nested, ".weights.h5", marks=pytest.mark.nightly),
        ],
    )
    def test_of_the_plain_model_load_into_the_private_one(
        self, make, suffix, tmp_path
    ) -> None:
        plain = make()
        plain(X)
        path = tmp_path / f"plain{suffix}"
        (plain.save if suffix == ".keras" else plain.save_weights)(path)
        private = private_model(make())
        state = [v.numpy() for v in private.optimizer.variables]

        private.load_weights(path)

        assert_equal(plain.get_weights(), private.get_weights())
        assert_equal(state, private.optimizer.variables)
        private.train_on_batch(X, Y)

    @pytest.mark.full
    @pytest.mark.parametrize("make", [nested, Subclassed])
    def test_of_the_private_model_load_with_its_state(
        self, make, tmp_path
    ) -> None:
        path = tmp_path / "private.weights.h5"
        saved = private_model(make())
        saved.save_weights(path)
        private = private_model(make())

        private.load_weights(path)

        assert_equal(saved.get_weights(), private.get_weights())
        momenta = saved.optimizer.inner.variables
        assert_equal(momenta, private.optimizer.inner.variables)

    @pytest.mark.parametrize("is_equal", [True, False])
    def test_never_bring_the_noise_of_another_query(
        self, is_equal, tmp_path, caplog
    ) -> None:
        saved = private_model(sequential())
        private = private_model(sequential(), stddev=1.0 + (not is_equal))
        saved.save_weights(tmp_path / "saved.weights.h5")
        private.load_weights(tmp_path / "saved.weights.h5")

        private.train_on_batch(X, Y)

        said = "that of other queries" in caplog.text
        assert said is not is_equal  # An equal query is the control.
        last, _ = private.optimizer.ledger.rounds[-1]
        assert last.queries[0].noise_stddev == 1.0 + (not is_equal)
        # The momenta were restored all the same.
        assert int(private.optimizer.iterations) == 2
