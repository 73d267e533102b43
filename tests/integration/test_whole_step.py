"""What a step keeps, shows and refuses, beside the weights it trains."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.errors import PrivateTrainingError
from keras_dp.sampling import PoissonBatches
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_models import REPLICATED
from tests.private_models import private_of

X = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
Y = X[:, :1].copy()


def _private(model=None, rate=0.1, **options):
    model = model or keras.Sequential([keras.Input((4,)), layers.Dense(1)])
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=16)
    return private_of(model, query, rate=rate, checks=2, **options)


@pytest.mark.full
@pytest.mark.parametrize("jit_compile", [True, False])
def test_the_loss_is_that_of_the_weights_before_the_update(jit_compile):
    """As Keras shows it: the penalty too."""
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(1, kernel_regularizer="l2")]
    )
    private = _private(model, rate=5.0, jit_compile=jit_compile)
    model.compile("sgd", "mse")
    before = model.evaluate(X, Y, verbose=0)

    shown = private.train_on_batch(X, Y, return_dict=True)["loss"]

    assert shown == pytest.approx(before, rel=1e-5)
    assert abs(model.evaluate(X, Y, verbose=0) - before) > 0.1 * before


def test_an_error_that_keras_takes_for_the_end_surfaces() -> None:
    class Source:
        reads = 0

        def __len__(self):
            return 64

        def __getitem__(self, indices):
            Source.reads += 1
            if Source.reads > 3:
                raise tf.errors.OutOfRangeError(None, None, "parse")
            return X[indices], Y[indices]

    batches = PoissonBatches(Source(), sampling_probability=0.5)

    with pytest.raises(RuntimeError, match="OutOfRangeError"):
        _private().fit(batches, steps_per_epoch=8, verbose=0)


def test_the_state_of_a_query_cannot_be_copied() -> None:
    private = _private()
    private.train_on_batch(X, Y)

    with pytest.raises(TypeError, match="must not be copied"):
        copy.deepcopy(private.optimizer._state)


def _built_outside():
    private = _private()
    private.train_on_batch(X, Y)
    return private.optimizer


def test_seeds_made_outside_of_the_scope_of_replicas_are_refused() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])

    with pytest.raises(PrivateTrainingError, match="in the scope of"):
        judge(REPLICATED, _built_outside(), strategy)
