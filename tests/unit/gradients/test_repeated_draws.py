"""A layer without a rule that draws random numbers is called again."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from keras_dp.errors import GradientCheckError, UnsupportedLayerError
from keras_dp.gradients import GradientEngine, self_check
from keras_dp.gradients.capture import repeated_calls
from keras_dp.gradients.capture.repeated_draws import RepeatedDraws
from keras_dp.gradients.checks.trial import restore, state_of
from tests.slow_loop import answers, assert_answers, compiled

# As many examples as positions: no length tells one axis from the other.
BATCH = POSITIONS = 4
WIDTH = 3
X = tf.constant(
    np.random.default_rng(0).normal(size=(BATCH, POSITIONS, WIDTH)), tf.float32
)


class Own(layers.Layer):
    """Multiplies by a kernel, and calls a function with a layer inside."""

    def __init__(self, function, inside=None):
        super().__init__()
        self.function, self.inside = function, inside
        self.seeds = keras.random.SeedGenerator()

    def build(self, shape):
        self.kernel = self.add_weight(shape=(WIDTH, WIDTH))
        self.scale = self.add_weight(shape=(WIDTH,), initializer="ones")

    def call(self, x):
        return self.function(self, x)


class Scales(layers.Layer):
    """Its weights are only broadcast."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.4)

    def build(self, shape):
        self.scale = self.add_weight(shape=(WIDTH,), initializer="ones")

    def call(self, x):
        return self.dropout(x * self.scale)


def _inside(layer, x):
    return layer.inside(ops.tanh(x @ layer.kernel)) * layer.scale


def _windows(layer, x):
    """Two windows for each example, those of one after another."""
    rows = ops.reshape(x @ layer.kernel, (-1, 2, WIDTH))
    return ops.reshape(layer.inside(rows), ops.shape(x)) * layer.scale


def _windows_first(layer, x):
    """The first windows of all examples, then the second ones."""
    rows = ops.reshape(x @ layer.kernel, (-1, 2, 2, WIDTH))
    rows = ops.reshape(ops.transpose(rows, (1, 0, 2, 3)), (-1, 2, WIDTH))
    rows = ops.reshape(layer.inside(rows), (2, -1, 2, WIDTH))
    return ops.reshape(ops.transpose(rows, (1, 0, 2, 3)), ops.shape(x))


def _drop_path(layer, x):
    kept = keras.random.uniform((ops.shape(x)[0], 1, 1), seed=layer.seeds)
    return x + (0.3 + ops.floor(kept + 0.5)) * (x @ layer.kernel) * layer.scale


def _draws(layer, x):
    """Numbers of all kinds, and some that all examples share."""
    shape = ops.shape(x)
    noise = keras.random.normal(shape, seed=layer.seeds)
    noise += keras.random.truncated_normal(shape=shape, seed=layer.seeds)
    places = keras.random.randint((shape[0], 1, 1), 0, 3, seed=layer.seeds)
    shared = keras.random.uniform((1, 1, WIDTH), seed=layer.seeds)
    mixed = (x + noise) @ layer.kernel * ops.cast(places, "float32")
    return (mixed + layer.scale) * shared


def _mean_of_weights(layer, x):
    means = x @ layer.kernel
    return keras.random.normal(ops.shape(x), mean=means, seed=layer.seeds)


def _in_a_loop(layer, x):
    return ops.while_loop(
        lambda i, x: i < 2,
        lambda i, x: (i + 1, layer.inside(x @ layer.kernel)),
        (0, x),
    )[1]


def _other_shapes(layer, x):
    """How much is drawn for an example depends on the length of the batch."""
    noise = keras.random.normal((1, ops.shape(x)[0], 1), seed=layer.seeds)
    # No graph shows how the gradient passes `silu`.
    return x @ layer.kernel * ops.mean(noise) * ops.silu(layer.scale)


CASES = {
    "dropout inside": lambda: Own(_inside, layers.Dropout(0.4)),
    "dropout of features": lambda: Own(
        _inside, layers.Dropout(0.4, noise_shape=(None, 1, WIDTH))
    ),
    "spatial dropout": lambda: Own(_inside, layers.SpatialDropout1D(0.4)),
    "dropout of another form": lambda: Own(_inside, layers.AlphaDropout(0.4)),
    "factors": lambda: Own(_inside, layers.GaussianDropout(0.4)),
    "noise": lambda: Own(_inside, layers.GaussianNoise(0.4)),
    "windows": lambda: Own(_windows, layers.Dropout(0.4)),
    "paths": lambda: Own(_drop_path),
    "numbers of its own": lambda: Own(_draws),
    "a layer inside that draws too": lambda: Own(
        _inside, Own(_inside, layers.Dropout(0.4))
    ),
    "only scales": Scales,
    "states of a recurrent layer": lambda: layers.LSTM(
        WIDTH, dropout=0.3, recurrent_dropout=0.4
    ),
    "states of both directions": lambda: layers.Bidirectional(
        layers.GRU(WIDTH, recurrent_dropout=0.4)
    ),
}
REFUSED = {
    "numbers around a function of weights": lambda: Own(_mean_of_weights),
    "numbers in a loop": lambda: Own(_in_a_loop, layers.Dropout(0.4)),
    "numbers in other shapes": lambda: Own(_other_shapes),
}


@pytest.fixture(autouse=True)
def _seeded():
    """Layers take their seeds when they are made, before the model is."""
    keras.utils.set_random_seed(3)


def _model(layer):
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((POSITIONS, WIDTH)), layer])


def _losses(outputs):
    flat = tf.reshape(outputs, [BATCH, -1])
    return tf.reduce_sum(tf.square(flat - 0.3), 1)


def _reference(model, state, mode):
    """The gradients of each example, by a tape around the whole batch."""
    values = [variable.value for variable in model.trainable_variables]

    def gradients(weights):
        with tf.GradientTape() as tape:
            losses = _losses(model(X, training=True))
        found = tape.gradient(
            losses, values, weights, tf.UnconnectedGradients.ZERO
        )
        return list(map(tf.convert_to_tensor, found))

    run = compiled(gradients, mode)
    rows = []
    for weights in tf.eye(BATCH):
        restore(state)
        rows.append(run(weights))
    return [np.stack(each) for each in zip(*rows, strict=True)]


def _found(model, state, mode):
    engine = GradientEngine(model, jit_compile=mode == "jit")

    def gradients():
        records = engine.gradients(X, _losses, BATCH).records
        return [answers(each, "float32") for each in records]

    restore(state)
    return keras.tree.map_structure(np.asarray, compiled(gradients, mode)())


def _comparisons():
    """Graphs are asked by the self-check below; XLA takes seconds for each."""
    for name in CASES:
        yield pytest.param(name, "eager", id=f"{name}-eager")
        early = name in ("dropout inside", "numbers of its own")
        mark = pytest.mark.full if early else pytest.mark.nightly
        yield pytest.param(name, "jit", id=f"{name}-jit", marks=mark)


@pytest.mark.parametrize(("name", "mode"), [*_comparisons()])
def test_gradients_are_those_of_the_numbers_that_were_drawn(name, mode) -> None:
    model = _model(CASES[name]())
    state = state_of(model)

    assert_answers(_found(model, state, mode), _reference(model, state, mode))


@pytest.mark.parametrize(
    "name",
    [
        # Graphs of loops take half a minute without XLA.
        pytest.param(name, marks=getattr(pytest.mark, tier))
        for name in CASES
        for tier in ["nightly" if name.startswith("states") else "full"]
    ],
)
def test_the_self_check_agrees(name) -> None:
    assert self_check(GradientEngine(_model(CASES[name]())), X, _losses, BATCH)


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("name", ["dropout inside", "paths"])
def test_numbers_of_other_examples_are_noticed(
    name, loops, monkeypatch
) -> None:
    """Control: each example gets the numbers of its neighbour."""
    rows, noting = RepeatedDraws.rows, RepeatedDraws.noting

    def moved(draws, batch):
        own = rows(draws, batch)
        return {place: tf.roll(own[place], 1, 0) for place in own}

    @contextlib.contextmanager
    def noting_moved(draws):
        with noting(draws):
            yield
        draws._draws = [
            each._replace(numbers=tf.roll(each.numbers, 1, 0))
            for each in draws._draws
        ]

    if loops:
        monkeypatch.setattr(RepeatedDraws, "rows", moved)
        monkeypatch.setattr(
            repeated_calls,
            "gradients_from_graph",
            lambda *args, **options: None,
        )
    else:
        monkeypatch.setattr(RepeatedDraws, "noting", noting_moved)
    model = _model(CASES[name]())
    state = state_of(model)

    with pytest.raises(AssertionError):
        assert_answers(
            _found(model, state, "graph"), _reference(model, state, "graph")
        )
    with pytest.raises(GradientCheckError, match="differs from automatic"):
        self_check(GradientEngine(model), X, _losses, BATCH)


def test_rows_that_are_not_consecutive_are_found(monkeypatch) -> None:
    """By the self-check of the loop; the graph shows the examples of rows."""
    model = _model(Own(_windows_first, layers.Dropout(0.4)))

    assert self_check(GradientEngine(model), X, _losses, BATCH)
    monkeypatch.setattr(
        repeated_calls, "gradients_from_graph", lambda *args, **options: None
    )
    with pytest.raises(GradientCheckError, match="differs from automatic"):
        self_check(GradientEngine(model), X, _losses, BATCH)


@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_cannot_be_repeated_are_refused(name) -> None:
    layer = REFUSED[name]()
    engine = GradientEngine(_model(layer))

    with pytest.raises(UnsupportedLayerError, match=f"{layer.name}.*repeated"):
        tf.function(lambda: engine.gradients(X, _losses, BATCH).losses)()


def test_an_omitted_draw_is_refused() -> None:
    draws, layer = RepeatedDraws(), layers.Dropout(0.5)
    with draws.noting():
        layer(X, training=True)

    with (
        pytest.raises(UnsupportedLayerError, match="repeated"),
        draws.repeating(layer),
    ):
        layer(X, training=False)
