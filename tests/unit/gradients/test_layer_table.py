"""Is `docs/layers.md` true of every class of `keras.layers`?"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.engine import GradientEngine
from tests import layer_table
from tests.slow_loop import (
    BATCH,
    assert_model_agrees,
    losses_of,
    model_of,
    normal,
    spread,
)

IDS = np.array([[1, 2, 2], [0, 0, 5], [6, 1, 6], [3, 4, 3]], "int32")


def _model(case):
    keras.utils.set_random_seed(4)
    layer = case.make()
    model = model_of(layer, *case.shapes, call=case.call)
    if case.after is not None:
        case.after(layer)
    model(_data(case))  # Builds an activation that is a layer.
    spread(model)
    return model


def _data(case):
    return [
        IDS if isinstance(shape[-1], str) else normal(*shape)
        for shape in case.shapes
    ]


def _how(engine):
    """What the library does with a model that it does not refuse."""
    rules = [hook.rule is not None for hook in engine.hooks]
    assert rules
    return layer_table.RULE if all(rules) else layer_table.FALLBACK


# XLA takes five seconds for each. The rules of the others are compiled option
# by option in `tests/oracle`, or are of a kind with one of these.
COMPILED = {"Embedding", "MultiHeadAttention"}
COMPILED_LATER = {
    "Attention",
    "Conv2D",
    "ConvLSTM1D",
    "EinsumDense",
    "GRUCell",
    "RNN, stacked",
}
# Of a kind with one that runs before them.
LATER = {
    "AdditiveAttention",
    "BatchNormalization",
    "Bidirectional",
    "Conv1D",
    "Conv3D",
    "Conv1DTranspose",
    "Conv3DTranspose",
    "Dense, int8 and LoRA",
    "DepthwiseConv1D",
    "EinsumDense, LoRA",
    "GRUCell",
    "GroupedQueryAttention",
    "LSTMCell",
    "RMSNormalization",
    "SeparableConv1D",
    "SimpleRNNCell",
    "TimeDistributed, model",
}
# Loops that fall back take half a minute without XLA.
LONG = {"ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D", "RNN, stacked"}


def _comparisons():
    """Each layer in one mode that is quick, and in the other if that is."""
    for name, case in layer_table.CASES.items():
        if case.how != layer_table.REFUSED:
            if name not in LONG:
                marks = [pytest.mark.full] if name in LATER else []
                yield pytest.param(
                    name, "graph", id=f"{name}-graph", marks=marks
                )
            marks = [pytest.mark.nightly]
            if name in COMPILED_LATER:
                marks = [pytest.mark.full]
            elif name in COMPILED:
                marks = []
            yield pytest.param(name, "jit", id=f"{name}-jit", marks=marks)


@pytest.mark.parametrize(("name", "mode"), [*_comparisons()])
def test_what_is_not_refused_agrees_with_the_loop(name, mode) -> None:
    case = layer_table.CASES[name]

    engine = assert_model_agrees(_model(case), _data(case), mode)

    assert _how(engine) == case.how
    assert engine.not_shown is None


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, case in layer_table.CASES.items()
        if case.how == layer_table.REFUSED
    ],
)
def test_what_is_refused_says_so(name) -> None:
    case = layer_table.CASES[name]
    model = _model(case)

    with pytest.raises(UnsupportedLayerError):
        GradientEngine(model).gradients(
            [tf.constant(each) for each in _data(case)], losses_of, BATCH
        )


def test_every_class_of_keras_is_in_the_table() -> None:
    """A class that is new in Keras must be looked at."""
    groups = [
        {name.split(",")[0] for name in layer_table.CASES},
        layer_table.NOT_LAYERS,
        layer_table.FOREIGN,
        layer_table.MIXING,
    ]
    known = set().union(*groups)

    assert sum(map(len, groups)) == len(known)
    assert known <= set(layer_table.classes())


@pytest.mark.parametrize("name", layer_table.without_weights())
def test_the_others_own_no_trained_weights(name) -> None:
    layer = layer_table.make_without_weights(name)
    for shape in [(2, 6, 6, 3), (2, 6, 3), (2, 4, 4, 4, 2), (2, 6)]:
        if not layer.built:
            try:
                layer.build(shape)
            except (ValueError, TypeError, IndexError):
                continue

    assert not layer.trainable_variables


@pytest.mark.parametrize("name", sorted(layer_table.MIXING))
def test_mixing_examples_is_found(name) -> None:
    layer = layer_table.classes()[name]()
    model = keras.Sequential(
        [keras.Input((4, 4, 3)), layer, layers.Flatten(), layers.Dense(2)]
    )

    with pytest.raises(UnsupportedLayerError, match="mixes the examples"):
        GradientEngine(model)


def test_the_document_is_the_table() -> None:
    """`python -m tests.layer_table` writes it."""
    text = layer_table.DOCUMENT.read_text(encoding="utf-8")

    assert text == layer_table.document()


class Several(layers.Layer):
    """Arguments of every kind, and a dict of outputs."""

    def build(self, first_shape, options_shape):
        self.kernel = self.add_weight(shape=(first_shape[-1], 2))
        self.shift = self.add_weight(shape=(2,))

    def call(self, first, options, scale=None, table=None):
        x = keras.ops.matmul(first, self.kernel) + self.shift
        x = x * options["factor"]
        if scale is not None:
            x = x * scale
        if table is not None:
            x = x * keras.ops.sum(table)
        return {"one": x, "count": keras.ops.argmax(x), "two": [x**2]}


class TestFallback:
    """It must be right for what others write."""

    @pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
    def test_arguments_and_outputs_of_every_kind(self, mode) -> None:
        def call(layer, first, factor):
            outputs = layer(
                first, {"factor": factor}, scale=2.0, table=np.ones(3, "f")
            )
            return outputs["one"], outputs["two"]

        model = model_of(Several(), (3,), (2,), call=call)

        assert_model_agrees(model, [normal(3), normal(2) + 1], mode)

    @pytest.mark.parametrize("mode", ["eager", "graph"])
    def test_outputs_that_are_computed_from_one_another(self, mode) -> None:
        class Cascade(layers.Layer):
            def build(self, shape):
                self.kernel = self.add_weight(shape=(shape[-1], shape[-1]))

            def call(self, inputs):
                x = keras.ops.tanh(keras.ops.matmul(inputs, self.kernel))
                return inputs, x, x, keras.ops.matmul(x, self.kernel)

        model = model_of(
            Cascade(),
            (3,),
            call=lambda layer, x: layer(layers.Dense(3)(x)),
        )

        assert_model_agrees(model, [normal(3)], mode)


@pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
def test_a_remat_scope_changes_no_gradient(mode, caplog) -> None:
    with keras.RematScope(mode="full"):
        again = [
            layers.Dense(3, activation="relu", name="again"),
            layers.GRU(2),
        ]
    inputs = keras.Input((5, 4))
    model = keras.Model([inputs], again[1](again[0](inputs)))

    assert_model_agrees(model, [normal(5, 4)], mode)

    assert "RematScope" in caplog.text
    assert "'again'" in caplog.text
    assert all(layer._remat_mode.mode == "full" for layer in again)
