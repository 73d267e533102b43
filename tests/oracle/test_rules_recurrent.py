"""Gradients of recurrent and wrapped layers against the loop over examples."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.gradients.engine import GradientEngine
from keras_dp.gradients.registry import rule_for
from keras_dp.gradients.rules import recurrence, recurrent, time_distributed
from tests.pairwise import pairwise
from tests.slow_loop import (
    BATCH,
    assert_model_agrees,
    losses_of,
    model_of,
    normal,
)

STEPS, WIDTH = 5, 3
# A full sequence, one padded on the right, one with its first steps masked,
# and one with gaps; no example is all padding.
MASK = np.array(
    [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [1, 0, 1, 0, 1]], bool
)

KINDS = {
    "lstm": (layers.LSTM, {}),
    "gru": (layers.GRU, {}),
    "gru_reset_before": (layers.GRU, {"reset_after": False}),
    "simple": (layers.SimpleRNN, {}),
}
OPTIONS = {
    "return_sequences": [True, False],
    "go_backwards": [False, True],
    "return_state": [False, True],
    "use_bias": [True, False],
    "unroll": [False, True],
    "activation": ["tanh", "softsign"],
    "zero_output_for_mask": [False, True],
}


def _has_rule(zero_output_for_mask, unroll, go_backwards, **others):
    return not (zero_output_for_mask and unroll and go_backwards)


CASES = pairwise(
    {
        "kind": [*KINDS],
        "mode": ["graph", "jit"],
        "dtype": ["float32", "float64"],
        "masked": [False, True],
        **OPTIONS,
    },
    _has_rule,
)


def _masked(layer, inputs, mask):
    return layer(inputs, mask=mask)


def _shown(case):
    chosen = [name for name, value in case.items() if value is True]
    return "-".join([*list(case.values())[:3], *chosen])


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=_shown)
def test_every_two_options_agree_with_the_loop(case) -> None:
    keras.utils.set_random_seed(2)
    layer_class, extra = KINDS[case["kind"]]
    dtype, masked = case["dtype"], case["masked"]
    options = {name: case[name] for name in OPTIONS}
    layer = layer_class(4, dtype=dtype, **extra, **options)
    shapes = [((STEPS, WIDTH), dtype), ((STEPS,), "bool")][: 1 + masked]
    model = model_of(layer, *shapes, call=_masked if masked else None)
    data = [normal(STEPS, WIDTH, dtype=dtype), MASK][: 1 + masked]

    assert rule_for(layer) is recurrent.recurrent
    assert_model_agrees(model, data, case["mode"], dtype)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("lstm", "jit"),
        ("gru", "graph"),
        ("gru_reset_before", "graph"),
        ("simple", "graph"),
    ],
)
def test_a_decoder_begins_with_the_state_of_an_encoder(kind, mode) -> None:
    """Gradients flow into the encoder through the first states."""
    keras.utils.set_random_seed(2)
    layer_class, extra = KINDS[kind]
    inputs = keras.Input((STEPS, WIDTH))
    _, *states = layer_class(4, return_state=True, **extra)(inputs)
    decoder = layer_class(4, return_sequences=True, **extra)
    model = keras.Model([inputs], decoder(inputs[:, :3], initial_state=states))

    assert len(GradientEngine(model).hooks) == 2
    assert_model_agrees(model, [normal(STEPS, WIDTH)], mode)


DISTRIBUTED = {
    "dense": (lambda: layers.Dense(4, activation="tanh"), (STEPS, WIDTH)),
    "conv": (lambda: layers.Conv2D(2, 2, activation="relu"), (STEPS, 4, 4, 2)),
    "gru": (lambda: layers.GRU(4), (2, STEPS, WIDTH)),
    "twice": (
        lambda: layers.TimeDistributed(layers.Dense(4)),
        (2, STEPS, WIDTH),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "mode"), [*zip(DISTRIBUTED, itertools.cycle(["graph", "jit"]))]
)
def test_layers_distributed_over_time(name, mode) -> None:
    make, shape = DISTRIBUTED[name]
    layer = layers.TimeDistributed(make())
    model = model_of(layer, shape)

    assert rule_for(layer) is time_distributed.time_distributed
    assert_model_agrees(model, [normal(*shape)], mode)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_of_the_inputs_is_that_of_the_forward_pass(kind) -> None:
    """Gradients follow the masks that were drawn: compared with the tape."""
    layer_class, extra = KINDS[kind]
    layer = layer_class(4, dropout=0.5, seed=3, **extra)
    model = model_of(layer, (STEPS, WIDTH))
    state = layer.cell.seed_generator.state
    before = state.numpy()
    data = [tf.constant(normal(STEPS, WIDTH))]

    records = GradientEngine(model).gradients(data, losses_of, BATCH).records
    state.assign(before)
    with tf.GradientTape(persistent=True) as tape:
        losses = losses_of(model(data, training=True))
        first = losses[0]
    values = [variable.value for variable in model.trainable_variables]

    for record, want, total in zip(
        records,
        tape.gradient(first, values),
        tape.gradient(losses, values),
        strict=True,
    ):
        # Rounding of sums over some ten terms.
        np.testing.assert_allclose(record.materialize()[0], want, atol=1e-5)
        np.testing.assert_allclose(
            record.weighted_sum(tf.ones([BATCH])), total, atol=1e-5
        )


def test_the_checks_above_can_fail(monkeypatch) -> None:
    """Control: a backward loop that is wrong by 0.1 % is found."""
    original = recurrence.Recurrence._pulled_back

    def wrong(self, *args):
        into_inputs, into_inner, *into_states = original(self, *args)
        return [
            into_inputs,
            into_inner,
            *(1.001 * each for each in into_states),
        ]

    monkeypatch.setattr(recurrence.Recurrence, "_pulled_back", wrong)
    model = model_of(layers.GRU(4), (STEPS, WIDTH))

    with pytest.raises(AssertionError):
        assert_model_agrees(model, [normal(STEPS, WIDTH)], "graph")


class Halving(layers.SimpleRNNCell):
    """A cell of one's own."""

    def call(self, sequence, states, training=False):
        _, states = super().call(sequence, states, training)
        return states[0] / 2, [states[0] / 2]


@pytest.mark.parametrize(
    "layer",
    [
        layers.RNN(Halving(4)),
        # Keras zeroes outputs elsewhere.
        layers.GRU(
            4,
            zero_output_for_mask=True,
            return_sequences=True,
            go_backwards=True,
            unroll=True,
        ),
    ],
    ids=["another cell", "zeros elsewhere"],
)
def test_what_a_rule_does_not_know_falls_back(layer) -> None:
    layer.build((None, STEPS, WIDTH))

    assert rule_for(layer) is None
