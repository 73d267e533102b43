"""Kernels of the noise are compiled beside the self-check, and nothing else."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp._reproducible import reproducible
from keras_dp.noise import streams, xla
from keras_dp.training.step.sample_release import TracedRelease
from tests.private_models import private_of
from tests.query_table import assert_equal
from tests.slow_loop import flat


@pytest.fixture(autouse=True)
def no_kernels():
    """As in a new process."""
    streams._is_trusted.cache_clear()
    xla.compiled.cache_clear()
    yield
    streams._is_trusted.cache_clear()
    xla.compiled.cache_clear()


def private_model(**options):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=4)
    return private_of(model, query, **options)


def fit(private):
    x = np.ones([8, 3], np.float32)
    private.fit(x, x[:, :1], batch_size=4, verbose=0)


def kernels():
    return streams._is_trusted.cache_info().misses


def test_the_step_finds_the_kernels_compiled():
    private = private_model()
    model, optimizer = private.model, private.optimizer
    optimizer.build_round(model, {})
    before = [variable.numpy() for variable in optimizer._state.variables]
    variables = model.trainable_variables
    templates = optimizer.round.templates(variables, {})

    TracedRelease(
        optimizer, optimizer.round, templates, variables, jit_compile=False
    ).close()

    compiled = kernels()
    assert compiled == 1  # It draws the noise and the next seed.
    after = [variable.numpy() for variable in optimizer._state.variables]
    assert_equal(before, after)
    fit(private)
    assert kernels() == compiled


@pytest.mark.full
def test_a_block_in_doubt_is_drawn_again_by_numpy(monkeypatch):
    """A trace for ordinary operations does not hold the exact arithmetic."""
    drawn_again = []

    def weights():
        private = private_model(seed=2)
        fit(private)
        return flat(private.model)

    with reproducible():
        expected = weights()
        by_numpy, refined = streams._refined_by_numpy, streams._in_doubt
        monkeypatch.setattr(
            streams,
            "_in_doubt",
            lambda doubts: refined(doubts) | (tf.range(tf.size(doubts)) == 0),
        )
        monkeypatch.setattr(
            streams,
            "_refined_by_numpy",
            lambda *given: drawn_again.append(given) or by_numpy(*given),
        )

        found = weights()

    assert len(drawn_again) == 2  # Rounds.
    np.testing.assert_array_equal(found, expected)


def test_an_error_ahead_is_raised_by_the_step(monkeypatch):
    """And before anything was released."""
    private = private_model()
    before = private.model.get_weights()

    def defect(*_):
        raise IndexError("A defect.")

    monkeypatch.setattr(streams.xla, "run", defect)
    with pytest.raises(IndexError, match="A defect"):
        fit(private)

    assert_equal(before, private.model.get_weights())
