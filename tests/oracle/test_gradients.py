"""Per-example gradients against the slow loop over single examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.gradients import GradientEngine, example_losses
from keras_dp.gradients.records import outer_product_records
from keras_dp.gradients.registry import rule_for
from tests.models import MODELS, ModelCase

BATCH = 5
# Rounding of float32 sums over some hundred terms, relative to the norm of
# the example's whole gradient.
RELATIVE = 1e-5


def _compiled_loss(loss, y, outputs):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss=loss)
    model._compile_loss(y, outputs)  # Builds it.
    return model._compile_loss


def _brute_force(model, case, x, y, weight):
    """Gradients of each example's loss, from the model on a batch of one."""
    loss_function = _compiled_loss(case.loss, y, model(x))
    variables = [v.value for v in model.trainable_variables]
    gradients = []
    for i in range(BATCH):
        row = [
            keras.tree.map_structure(lambda leaf, i=i: leaf[i : i + 1], part)
            for part in (x, y)
        ]
        one = None if weight is None else weight[i : i + 1]
        with tf.GradientTape() as tape:
            outputs = model(row[0], training=True)
            loss = loss_function(row[1], outputs, one)
        gradients.append(
            [
                tf.convert_to_tensor(g).numpy()
                for g in tape.gradient(
                    loss, variables, unconnected_gradients="zero"
                )
            ]
        )
    return gradients


def _engine_answers(model, case, x, y, weight, mode):
    """Squared norms, sums under each weight vector, and the gradients."""
    engine = GradientEngine(model, jit_compile=mode == "jit")
    loss_function = _compiled_loss(case.loss, y, model(x))
    selections = tf.constant(
        np.vstack([np.eye(BATCH), np.linspace(0.2, 1.4, BATCH)]), tf.float32
    )

    def answers(x, y, weight):
        result = engine.gradients(
            x,
            lambda outputs: (
                example_losses(loss_function, y, outputs, weight, BATCH).total
            ),
            BATCH,
        )
        norms = [r.squared_norms() for r in result.records]
        sums = [
            [r.weighted_sum(s) for r in result.records]
            for s in tf.unstack(selections)
        ]
        return norms, sums, [r.materialize() for r in result.records]

    if mode != "eager":
        answers = tf.function(answers, jit_compile=mode == "jit")
    return keras.tree.map_structure(
        np.asarray, answers(x, y, weight)
    ), selections.numpy()


def _assert_equal(model, case, mode, weighted=False):
    x, y = case.data(BATCH)
    weight = np.array([0.5, 2, 0, 1, 3], "float32") if weighted else None
    expected = _brute_force(model, case, x, y, weight)
    (norms, sums, full), selections = _engine_answers(
        model, case, x, y, weight, mode
    )

    scale = [
        np.sqrt(sum(np.sum(np.square(g, dtype="float64")) for g in each))
        for each in expected
    ]
    assert max(scale) > 0
    for v in range(len(model.trainable_variables)):
        path = model.trainable_variables[v].path
        for i in range(BATCH):
            want = expected[i][v].astype("float64")
            bound = RELATIVE * max(scale[i], 1e-6)
            assert np.linalg.norm(full[v][i] - want) <= bound, path
            assert np.linalg.norm(sums[i][v] - want) <= bound, path
            # A ghost norm is a square: its rounding is that of the square.
            norm = np.linalg.norm(want)
            assert abs(norms[v][i] - norm**2) <= bound * scale[i], path
        want = sum(
            s * e[v].astype("float64")
            for s, e in zip(selections[BATCH], expected, strict=True)
        )
        error = np.linalg.norm(sums[BATCH][v] - want)
        assert error <= RELATIVE * sum(scale), path


@pytest.mark.parametrize(
    "mode", ["eager", "graph", pytest.param("jit", marks=pytest.mark.full)]
)
@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_every_model_agrees_with_the_loop(case: ModelCase, mode: str) -> None:
    keras.utils.set_random_seed(7)

    _assert_equal(case.make(), case, mode)


@pytest.mark.parametrize("case", MODELS[:6], ids=lambda case: case.name)
def test_sample_weights_are_those_of_a_batch_of_one(case: ModelCase) -> None:
    keras.utils.set_random_seed(8)

    _assert_equal(case.make(), case, "graph", weighted=True)


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_the_expected_layers_have_rules(case: ModelCase) -> None:
    """A rule that silently stopped to apply would only be slow."""
    engine = GradientEngine(case.make())

    without = sorted(
        type(hook.layer).__name__ for hook in engine.hooks if hook.rule is None
    )

    assert without == sorted(case.fallbacks)


def test_the_check_above_can_fail() -> None:
    """Control: a rule that is wrong by 0.1 % is found."""
    case = MODELS[0]
    keras.utils.set_random_seed(7)
    model = case.make()
    original = outer_product_records.OuterProductRecords.weighted_sum

    def wrong(self, weights):
        return original(self, weights) * 1.001

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            outer_product_records.OuterProductRecords, "weighted_sum", wrong
        )
        with pytest.raises(AssertionError):
            _assert_equal(model, case, "eager")


def test_a_subclass_of_a_layer_does_not_inherit_its_rule() -> None:
    class Doubled(keras.layers.Dense):
        def call(self, inputs):
            return 2 * super().call(inputs)

    layer = Doubled(3)
    layer.build((None, 2))

    assert rule_for(layer) is None
    assert rule_for(keras.layers.Dense(3)) is not None


def test_float64_models_keep_their_precision() -> None:
    keras.utils.set_random_seed(9)
    inputs = keras.Input((6,), dtype="float64")
    hidden = keras.layers.Dense(5, activation="tanh", dtype="float64")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2, dtype="float64")(hidden))
    x = np.random.default_rng(0).normal(size=(BATCH, 6))

    def losses_of(outputs):
        return tf.reduce_sum(tf.square(outputs), axis=1)

    result = GradientEngine(model).gradients(tf.constant(x), losses_of, BATCH)
    for i in range(BATCH):
        with tf.GradientTape() as tape:
            loss = losses_of(model(x[i : i + 1]))
        values = [v.value for v in model.trainable_variables]
        for got, want in zip(
            result.records, tape.gradient(loss, values), strict=True
        ):
            gradient = got.materialize()[i]
            # Some hundred ulp of float64.
            np.testing.assert_allclose(gradient, want, rtol=1e-12, atol=1e-13)
