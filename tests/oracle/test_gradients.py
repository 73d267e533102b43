"""Per-example gradients against the slow loop over single examples."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.gradients import GradientEngine, example_losses, registry
from keras_dp.gradients.records.outer_product_records import OuterProductRecords
from tests.models import MODELS, ModelCase
from tests.slow_loop import BATCH, answers, assert_answers, compiled, loop

# What is compiled differs in these; XLA takes seconds for each.
REPRESENTATIVE = {"conv_strides_same", "own_weights", "recurrent"}
MODES = ["eager", "graph", "jit"]


def _compiled_loss(loss, y, outputs):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss=loss)
    model._compile_loss(y, outputs)  # Builds it.
    return model._compile_loss


def _assert_agrees(case, mode, *weight, of_zero=()):
    keras.utils.set_random_seed(7)
    model = case.make()
    x, y = case.data(BATCH)
    engine = GradientEngine(model, jit_compile=mode == "jit")
    loss_function = _compiled_loss(case.loss, y, model(x))

    def answer(x, y, weight=None):
        records = engine.gradients(
            x,
            lambda outputs: (
                example_losses(loss_function, y, outputs, weight, BATCH).total
            ),
            BATCH,
        ).records
        return [answers(each, "float32") for each in records]

    def loss_of(row):
        x, y, *weight = row
        return loss_function(y, model(x, training=True), *weight)

    got = compiled(answer, mode)(x, y, *weight)
    want = loop(loss_of, model.trainable_variables, (x, y, *weight))
    assert_answers(
        keras.tree.map_structure(np.asarray, got), want, of_zero=of_zero
    )


def _comparisons():
    """Every model eagerly and by XLA, and some of them in every mode.

    Graphs that XLA does not compile take the ways that eager passes take. XLA
    takes seconds for each: all but the representative ones wait for the night.
    """
    for case in MODELS:
        for mode in MODES:
            marks = []
            if mode == "jit":
                marks = [pytest.mark.full]
            if mode != "eager" and case.name not in REPRESENTATIVE:
                if mode == "graph":
                    continue
                marks = [pytest.mark.nightly]
            yield pytest.param(
                case, mode, id=f"{case.name}-{mode}", marks=marks
            )


@pytest.mark.parametrize(("case", "mode"), [*_comparisons()])
def test_every_model_agrees_with_the_loop(case: ModelCase, mode: str) -> None:
    _assert_agrees(case, mode)


@pytest.mark.full
@pytest.mark.parametrize("case", MODELS[:6], ids=lambda case: case.name)
def test_sample_weights_are_those_of_a_batch_of_one(case: ModelCase) -> None:
    weight = np.array([0.5, 2, 0, 3], "float32")

    _assert_agrees(case, "graph", weight, of_zero=[2])


FROM_THEIR_GRAPHS = {"GroupNormalization", "LayerNormalization", "PReLU"}


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_the_expected_layers_have_rules(case: ModelCase) -> None:
    """A rule that silently stopped to apply would only be slow."""
    engine = GradientEngine(case.make())

    without = [
        type(hook.layer).__name__ for hook in engine.hooks if hook.rule is None
    ]

    others = [name for name in without if name not in FROM_THEIR_GRAPHS]
    assert sorted(others) == sorted(case.fallbacks)


@pytest.mark.parametrize(
    ("name", "one_hook"),
    [
        ("past_its_layer", ["PastItsLayer"]),
        ("around_call", []),
        ("around_kernel", ["Around"]),
        ("around_loop", ["Around"]),
    ],
)
def test_uses_past_a_hook_are_seen(name: str, one_hook: list[str]) -> None:
    """No more layers have one hook for all inside than must have one."""
    case = next(case for case in MODELS if case.name == name)
    engine = GradientEngine(case.make())
    x, _ = case.data(BATCH)

    engine.hooked_pass(x, lambda outputs: tf.reduce_sum(outputs, [1, 2]), BATCH)

    assert one_hook == [
        type(hook.layer).__name__
        for hook in engine.hooks
        if hook.rule is None and not hook.is_apart
    ]


@pytest.mark.parametrize("question", ["weighted_sum", "materialize"])
def test_the_check_above_can_fail(question, monkeypatch) -> None:
    """Control: a rule that is wrong by 0.1 % is found."""
    original = getattr(OuterProductRecords, question)

    def wrong(self, *arguments):
        return original(self, *arguments) * 1.001

    monkeypatch.setattr(OuterProductRecords, question, wrong)
    with pytest.raises(AssertionError):
        _assert_agrees(MODELS[0], "eager")


@pytest.mark.parametrize("question", ["materialize", "grouped"])
def test_examples_in_another_order_are_found(question, monkeypatch) -> None:
    """Control: the answers tell the examples apart."""
    original = getattr(OuterProductRecords, question)

    def wrong(self, indices=None):
        return original(self, indices)[::-1]

    def wrong_groups(self, size, weights):
        return original(self, size, weights[::-1])

    monkeypatch.setattr(
        OuterProductRecords,
        question,
        wrong if question == "materialize" else wrong_groups,
    )
    with pytest.raises(AssertionError):
        _assert_agrees(MODELS[0], "eager")


def _doubled(self, inputs):
    return 2 * keras.layers.Dense.call(self, inputs)


class _Doubles:
    call = _doubled


@pytest.mark.parametrize(
    ("bases", "members"),
    [
        ((), {"call": _doubled}),
        ((), {"__call__": _doubled}),
        ((), {"kernel": property(lambda self: 2 * self._kernel)}),
        ((), {"bias": property(lambda self: 0.0)}),
        ((), {"units": 3}),
        ((), {"__getattr__": lambda self, name: 0.0}),
        ((_Doubles,), {}),
    ],
)
def test_a_subclass_that_changes_its_layer_has_no_rule(bases, members) -> None:
    subclass = type("Changed", (*bases, keras.layers.Dense), members)

    assert registry._ruled_class(subclass) is None
