"""Parts and groups of per-example gradients, against their materialization."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.gradients import GradientEngine
from tests.models import MODELS, ModelCase

BATCH = 6
# Rounding of float32 sums over some hundred terms, relative to the norm of
# the example's whole gradient.
RELATIVE = 2e-5


def records_of(case: ModelCase):
    keras.utils.set_random_seed(11)
    model = case.make()
    x, _ = case.data(BATCH)

    def losses(outputs):
        leaves = keras.tree.flatten(outputs)
        flat = [tf.reshape(tf.square(leaf), [BATCH, -1]) for leaf in leaves]
        return tf.reduce_sum(tf.concat(flat, axis=1), axis=1)

    return GradientEngine(model).gradients(x, losses, BATCH).records


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
class TestEveryModel:
    def test_taken_examples_are_those_of_the_batch(self, case) -> None:
        indices = tf.constant([4, 1, 1])
        for records in records_of(case):
            full = records.materialize().numpy()

            taken = records.take(indices)

            np.testing.assert_allclose(
                taken.materialize(), full[[4, 1, 1]], rtol=1e-6, atol=1e-6
            )

    def test_a_group_is_the_weighted_sum_of_its_examples(self, case) -> None:
        weights = np.array([0.5, 0.5, 0.0, 0.5, 0.0, 0.0], np.float32)
        for records in records_of(case):
            full = records.materialize().numpy().astype(np.float64)
            scale = np.sqrt(np.square(full).sum()) + 1e-9
            parts = full * weights.reshape([-1] + [1] * (full.ndim - 1))
            want = parts.reshape(2, 3, *full.shape[1:]).sum(axis=1)

            groups = records.grouped(3, tf.constant(weights))

            norms = np.sqrt(np.square(want).sum(tuple(range(1, want.ndim))))
            got = np.sqrt(groups.squared_norms().numpy().astype(np.float64))
            # Norms may be upper bounds, where terms cancel.
            assert (got >= norms - RELATIVE * scale).all()
            assert (got <= 1.2 * norms + RELATIVE * scale).all()
            error = groups.materialize().numpy() - want
            assert np.abs(error).max() <= RELATIVE * scale
            for pick in np.eye(2, dtype=np.float32):
                total = groups.weighted_sum(tf.constant(pick)).numpy()
                error = total - np.tensordot(pick, want, 1)
                assert np.abs(error).max() <= RELATIVE * scale


def test_an_example_of_weight_zero_does_not_spoil_its_group() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = np.ones([2, 3], np.float32)
    x[1] = np.nan

    def losses(outputs):
        return tf.reduce_sum(tf.square(outputs), axis=1)

    for records in GradientEngine(model).gradients(x, losses, 2).records:
        group = records.grouped(2, tf.constant([1.0, 0.0]))

        expected = records.weighted_sum(tf.constant([1.0, 0.0]))
        np.testing.assert_allclose(group.materialize()[0], expected, rtol=1e-6)
        assert np.isfinite(group.squared_norms()).all()


def test_the_checks_above_can_fail() -> None:
    """Control: neighbouring groups are told apart."""
    records = records_of(MODELS[0])[0]
    weights = tf.ones([BATCH])

    by_two = records.grouped(2, weights).materialize()
    by_three = records.grouped(3, weights).materialize()

    assert not np.allclose(by_two[0], by_three[0], rtol=1e-2)
