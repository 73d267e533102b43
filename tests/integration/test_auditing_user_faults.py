"""The check finds faults as users write them, and says where to look."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp import dp_queries
from keras_dp.auditing import check
from keras_dp.sampling import PoissonBatches
from tests.audited import X, Y, samples, training

pytestmark = pytest.mark.full


def behind(layer, **options):
    """Returns a training of a model with a layer in front."""
    stack = [keras.Input((3,)), layer, keras.layers.Dense(1)]
    return training(keras.Sequential(stack), private_metrics={}, **options)


class CentredInTraining(keras.layers.Layer):
    """Subtracts the mean of the batch, in training only."""

    def call(self, inputs, training=None):
        if not training:
            return inputs
        return inputs - keras.ops.mean(inputs, axis=0)


class ScaledByStatistic(keras.layers.Layer):
    """Lets no gradient through what it computes over the batch."""

    def call(self, inputs):
        mean = keras.ops.stop_gradient(keras.ops.mean(inputs))
        return inputs * (1 + keras.ops.tanh(mean))


class LeakingRow(keras.layers.Layer):
    """Adds a thousandth of the row before."""

    def call(self, inputs):
        before = keras.ops.zeros_like(inputs[:1])
        before = keras.ops.concatenate([before, inputs[:-1]])
        return inputs + 0.001 * before


class ZeroedByNaN(keras.layers.Layer):
    """Replaces a batch in which anything is NaN."""

    def call(self, inputs):
        found = keras.ops.any(keras.ops.isnan(inputs))
        return keras.ops.where(found, keras.ops.zeros_like(inputs), inputs)


class VariableMemory(keras.layers.Layer):
    """Remembers the last batch in a variable that Keras does not know."""

    def __init__(self):
        super().__init__()
        self.last = tf.Variable(tf.zeros([3]), trainable=False)

    def call(self, inputs):
        found = inputs + self.last
        self.last.assign(tf.reduce_mean(inputs, axis=0))
        return found


class PythonMemory(keras.layers.Layer):
    """Remembers the last batch in a list."""

    def call(self, inputs):
        def add(values):
            self._seen = [*getattr(self, "_seen", []), values.sum()]
            return np.float32(np.tanh(sum(self._seen[-2:-1])))

        memory = tf.numpy_function(add, [inputs], tf.float32)
        memory.set_shape([])
        return inputs + tf.stop_gradient(memory)


class BatchPenalty(keras.layers.Layer):
    """Adds a loss of the whole batch."""

    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs) ** 2)
        return inputs


def loss_with_temperature(targets, outputs):
    """Divides by a statistic of the batch."""
    temperature = 1 + keras.ops.stop_gradient(keras.ops.std(outputs))
    return keras.ops.mean(keras.ops.square(targets - outputs)) / temperature


class UnderstatingQuery(dp_queries.GaussianAverageQuery):
    """Says that it adds twice the noise."""

    def ledger_events(self, event, name="records"):
        return tuple(
            dataclasses.replace(each, noise_stddev=2 * each.noise_stddev)
            for each in super().ledger_events(event, name)
        )


class UnderplanningQuery(dp_queries.GaussianAverageQuery):
    """Plans another release than it makes."""

    def planned_event(self, state):
        event = super().planned_event(state)
        return event._replace(noise_stddev=2 * event.noise_stddev)


class ClippedSumQuery(dp_queries.GaussianAverageQuery):
    """Clips the sum once more, after records."""

    def accumulate_records(self, params, sample_state, records, mask=None):
        total = super().accumulate_records(params, sample_state, records, mask)
        return tf.nest.map_structure(
            lambda leaf: tf.cast(
                tf.clip_by_norm(
                    3.0 * tf.cast(leaf, tf.float64), 1 / params.spacing
                ),
                leaf.dtype,
            ),
            total,
        )


def asking(query):
    """Returns a training that asks a query of the user's own."""
    return training(
        query=query(1.0, noise_multiplier=1.0, denominator=20),
        private_metrics={},
    )


def favouring(draws):
    """Puts one record into every sample."""

    def favoured(self, words, places):
        for draw in draws(self, words, places):
            rows = draw.rows.copy()
            if 7 not in rows:
                rows[tuple(np.argwhere(rows < 0)[0])] = 7
            yield draw._replace(rows=rows)

    return favoured


FAULTS = {
    "centred in training": (lambda: behind(CentredInTraining()), "refusal"),
    "statistic without gradient": (
        lambda: behind(ScaledByStatistic()),
        "refusal",
    ),
    "row before": (lambda: behind(LeakingRow()), "refusal"),
    "row before, no self-check": (
        lambda: behind(LeakingRow(), self_check_examples=0),
        "refusal",
    ),
    "zeroed by NaN": (lambda: behind(ZeroedByNaN()), "sensitivity"),
    "memory in a variable": (lambda: behind(VariableMemory()), "refusal"),
    "memory in a variable, eagerly": (
        lambda: behind(VariableMemory(), run_eagerly=True),
        "refusal",
    ),
    "memory in a list": (lambda: behind(PythonMemory()), "refusal"),
    "penalty of the batch": (lambda: behind(BatchPenalty()), "refusal"),
    "temperature of the batch": (
        lambda: training(loss=loss_with_temperature),
        "refusal",
    ),
    "query that understates": (lambda: asking(UnderstatingQuery), "noise"),
    "query that plans less": (lambda: asking(UnderplanningQuery), "refusal"),
    "query that clips the sum": (
        lambda: asking(ClippedSumQuery),
        "independence",
    ),
}


# Each is a fault before it, written in another way.
ALIKE = (
    "row before, no self-check",
    "memory in a variable, eagerly",
    "temperature of the batch",
    "query that plans less",
)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(name, marks=[pytest.mark.nightly] * (name in ALIKE))
        for name in FAULTS
    ],
)
def test_a_fault_of_a_user_is_found(fault):
    train, question = FAULTS[fault]

    report = check(train(), samples(), records=3)

    assert question in {finding.question for finding in report.findings}


def test_a_sampler_that_favours_a_record_is_found(monkeypatch):
    monkeypatch.setattr(
        PoissonBatches, "_draws", favouring(PoissonBatches._draws)
    )
    source = PoissonBatches(
        (X, Y), sampling_probability=0.1, physical_batch_size=64
    )

    report = check(training(), source, records=2)

    assert {finding.question for finding in report.findings} == {"draw"}
