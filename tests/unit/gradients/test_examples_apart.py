"""What the graph of a model shows of all inputs, and what it does not show.

Each model that couples examples does so for some inputs or variables only, so
that trying a batch may show nothing.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import layers

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import GradientEngine
from keras_dp.gradients.capture.graph_of_call import GraphOfCall
from tests.layer_table import make_without_weights
from tests.models import MODELS
from tests.unit.gradients.test_graph_rules import STEPS

BATCH, STEP, WIDTH = 4, 4, 4


def _squares(outputs):
    axes = range(1, outputs.shape.rank)
    return tf.reduce_sum(tf.square(outputs), axis=list(axes))


class Does(layers.Layer):
    """Applies a function, which may read a counter of rounds."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def build(self, shape):
        self.count = self.add_weight(
            shape=(), trainable=False, initializer="zeros"
        )

    def compute_output_shape(self, shape):
        return shape

    def call(self, x):
        return self.function(x, self.count)


def _model(function):
    inputs = keras.Input((STEP, WIDTH))
    x = Does(function, name="custom")(layers.Dense(WIDTH)(inputs))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


def _proof(model, inputs, batch=BATCH):
    """Returns an engine that has traced the model once."""
    engine = GradientEngine(model)

    def traced(inputs):
        engine.hooked_pass(inputs, lambda _: tf.zeros([batch]), batch)

    specs = keras.tree.map_structure(
        lambda x: tf.TensorSpec(np.shape(x), np.asarray(x).dtype), inputs
    )
    tf.function(traced, autograph=False).get_concrete_function(specs)
    return engine


def _of(function):
    return _proof(_model(function), np.zeros((BATCH, STEP, WIDTH), "float32"))


def _coupling_of(function):
    """Returns what is found in the graph of a function."""
    found, count = [], tf.Variable(0.0)

    def traced(x):
        found.append(GraphOfCall(x, BATCH).coupling(function(x, count)))

    tf.function(traced, autograph=False).get_concrete_function(
        tf.TensorSpec([BATCH, STEP, WIDTH])
    )
    return found[0]


def _mean(x):
    return tf.reduce_mean(x, axis=0, keepdims=True)


def _rare(x):
    """A gate at -20, which is closed for ordinary inputs."""
    return tf.sigmoid(1000 * (tf.reduce_max(x) - 20)) * _mean(x)


def _normalized(x):
    mean, variance = tf.nn.moments(x, axes=[0], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-3)


def _trimmed(x):
    """Cut to the longest record, by its zeros."""
    length = tf.reduce_sum(tf.cast(tf.reduce_any(x != 0, axis=[0, 2]), "int32"))
    mean = tf.reduce_mean(x[:, :length], axis=1, keepdims=True)
    return x - tf.ensure_shape(mean, [BATCH, 1, WIDTH])


def _carried(x):
    """Each step of a loop over the examples sees those before."""
    _, state = tf.while_loop(
        lambda i, state: i < BATCH,
        lambda i, state: (i + 1, tf.tanh(state + x[i])),
        (0, tf.zeros([STEP, WIDTH])),
    )
    return x + state


def _gradient_of_all(x):
    @tf.custom_gradient
    def same(x):
        return tf.identity(x), lambda upstream: upstream + _mean(upstream)

    return same(x)


@tf.function(autograph=False)
def _in_a_function(x):
    return x + _mean(x)


def _other_example(x):
    """Reads the example whose number an example names."""
    number = tf.cast(tf.reduce_sum(x, axis=[1, 2]), "int32")
    return tf.gather(x, tf.clip_by_value(number, 0, BATCH - 1))


COUPLED = {
    "a rare input": lambda x, count: x + _rare(x),
    "a counter": lambda x, count: x + count * _mean(x),
    "a condition on a counter": lambda x, count: tf.cond(
        count > 3, lambda: x + _mean(x), lambda: x
    ),
    "trimmed to the longest": lambda x, count: _trimmed(x),
    "a mask that takes examples": lambda x, count: tf.ensure_shape(
        tf.concat(
            [
                tf.boolean_mask(x, x[:, 0, 0] >= 0),
                tf.boolean_mask(x, x[:, 0, 0] < 0),
            ],
            axis=0,
        ),
        x.shape,
    ),
    "sorted": lambda x, count: tf.sort(x, axis=0),
    "the order of examples": lambda x, count: (
        x * tf.cast(tf.argsort(x[:, 0, 0]), x.dtype)[:, tf.newaxis, tf.newaxis]
    ),
    "summed up": lambda x, count: tf.cumsum(x, axis=0),
    "contracted": lambda x, count: tf.einsum("bsw,btw,csw->ctw", x, x, x),
    "attention over the batch": lambda x, count: tf.transpose(
        tf.matmul(
            tf.nn.softmax(
                tf.matmul(
                    tf.transpose(x, [1, 0, 2]),
                    tf.transpose(x, [1, 0, 2]),
                    transpose_b=True,
                )
            ),
            tf.transpose(x, [1, 0, 2]),
        ),
        [1, 0, 2],
    ),
    "rolled": lambda x, count: tf.roll(x, 1, axis=0),
    "the example before": lambda x, count: x + tf.concat([x[:1], x[:-1]], 0),
    "another example": lambda x, count: _other_example(x),
    "normalized by the batch": lambda x, count: _normalized(x),
    "normalized, without a gradient": lambda x, count: (
        x - tf.stop_gradient(_mean(x))
    ),
    "a loop as long as needed": lambda x, count: tf.while_loop(
        lambda x: tf.reduce_any(x > 5), lambda x: [x / 2], [x]
    )[0],
    "a loop over examples": lambda x, count: _carried(x),
    "a condition on any example": lambda x, count: tf.cond(
        tf.reduce_any(x > 20), lambda: 2 * x, lambda: x
    ),
    "a branch that any example chooses": lambda x, count: tf.switch_case(
        tf.cast(tf.reduce_max(x) > 20, "int32"), [lambda: x, lambda: 2 * x]
    ),
    "the largest number": lambda x, count: x / (1 + tf.reduce_max(tf.abs(x))),
    "a function": lambda x, count: _in_a_function(x),
    "a gradient of its own": lambda x, count: _gradient_of_all(x),
    "rows as examples": lambda x, count: tf.reshape(
        tf.transpose(tf.reshape(x, [2, 2, STEP, WIDTH]), [1, 0, 2, 3]), x.shape
    ),
    "Python code": lambda x, count: tf.ensure_shape(
        tf.numpy_function(lambda x: x, [x], tf.float32), x.shape
    ),
}


# A layer after them would take rows that follow from the data.
REFUSED = {"a mask that takes examples", "Python code"}


@pytest.mark.parametrize("name", COUPLED)
def test_what_couples_examples_is_never_proven(name) -> None:
    assert _coupling_of(COUPLED[name]) is not None
    if name in REFUSED:
        with pytest.raises(UnsupportedLayerError, match="follows from the"):
            _of(COUPLED[name])
        return

    engine = _of(COUPLED[name])

    assert not engine.is_proven_apart
    assert "in layer 'custom'" in engine.not_shown


def _scan(x):
    """A loop of fixed length, along the steps of each example."""
    _, state = tf.while_loop(
        lambda i, state: i < STEP,
        lambda i, state: (i + 1, tf.tanh(state + x[:, i])),
        (0, tf.zeros([BATCH, WIDTH])),
    )
    return x + state[:, tf.newaxis]


def _gradient_of_one(x):
    @tf.custom_gradient
    def same(x):
        return tf.identity(x), lambda upstream: upstream * tf.sigmoid(x)

    return same(x)


@tf.function(autograph=False)
def _own_mean(x):
    return x - tf.reduce_mean(x, axis=1, keepdims=True)


APART = {
    "a counter": lambda x, count: x * tf.exp(-count),
    "a condition on a counter": lambda x, count: tf.cond(
        count > 3, lambda: tf.tanh(x), lambda: x
    ),
    "a gate of its own": lambda x, count: tf.where(
        tf.reduce_max(x, axis=[1, 2], keepdims=True) > 20, 2 * x, x
    ),
    "a loop": lambda x, count: _scan(x),
    "a function": lambda x, count: _own_mean(x),
    "a gradient of its own": lambda x, count: _gradient_of_one(x),
    "silu": lambda x, count: keras.ops.silu(x),
    "sorted": lambda x, count: tf.sort(x, axis=2),
    "the shape": lambda x, count: x / tf.cast(tf.shape(x)[1], x.dtype),
    "time first": lambda x, count: tf.transpose(
        tf.reshape(
            tf.tanh(tf.reshape(tf.transpose(x, [1, 0, 2]), [-1, WIDTH])),
            [STEP, BATCH, WIDTH],
        ),
        [1, 0, 2],
    ),
}


@pytest.mark.parametrize("name", APART)
def test_what_keeps_examples_apart_is_proven(name) -> None:
    assert _of(APART[name]).not_shown is None


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_the_models_of_the_tests_are_proven(case) -> None:
    inputs, _ = case.data(BATCH)

    engine = _proof(case.make(), inputs)

    # `tf.map_fn` reads examples by a number that it counts.
    assert engine.is_proven_apart == (case.name != "around_loop")


@pytest.mark.parametrize(
    "name",
    [
        *("Dropout", "GaussianNoise", "RandomBrightness", "RandomContrast"),
        *("RandomCrop", "RandomFlip", "RandomRotation", "RandomTranslation"),
        *("RandomZoom", "Resizing", "SpatialDropout2D", "UpSampling2D"),
    ],
)
def test_a_network_on_images_is_proven(name) -> None:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            make_without_weights(name),
            layers.SeparableConv2D(4, 3, padding="same", dilation_rate=2),
            layers.GroupNormalization(2),
            layers.MaxPooling2D(2, padding="same"),
            layers.UpSampling2D(2, interpolation="bilinear"),
            layers.Conv2DTranspose(2, 2, activation="silu"),
            layers.GlobalAveragePooling2D(),
        ]
    )

    engine = _proof(model, np.zeros((BATCH, 8, 8, 3), "float32"))

    assert engine.not_shown is None


def test_nothing_is_proven_before_a_trace_or_without_one() -> None:
    engine = GradientEngine(_model(lambda x, count: x))
    x = tf.zeros([BATCH, STEP, WIDTH])

    before = engine.is_proven_apart, engine.not_shown
    engine.hooked_pass(x, _squares, BATCH)

    assert before == (False, None)
    assert not engine.is_proven_apart
    assert "run_eagerly" in engine.not_shown


def test_a_tensor_from_elsewhere_is_not_trusted() -> None:
    """It may come from the examples."""
    layer = Does(lambda x, count: x)
    inputs = keras.Input((STEP, WIDTH))
    engine = GradientEngine(keras.Model(inputs, layers.Dense(2)(layer(inputs))))

    @tf.function(autograph=False)
    def traced(x):
        kept = tf.reduce_mean(x, axis=0)
        layer.function = lambda x, count: x + kept
        engine.hooked_pass(x, _squares, BATCH)

    traced.get_concrete_function(tf.TensorSpec([BATCH, STEP, WIDTH]))

    assert not engine.is_proven_apart


steps = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 1, 2])),
    min_size=1,
    max_size=4,
)


@given(chosen=steps)
@settings(max_examples=60)
def test_other_examples_change_nothing_where_it_is_proven(chosen) -> None:
    """Neither an example's outputs nor what its inputs receive as gradient."""
    random = np.random.default_rng(0)
    w, b = (
        tf.constant(random.normal(size=n), tf.float32)
        for n in (WIDTH * WIDTH, WIDTH)
    )

    def function(x, count):
        for name, axis in chosen:
            x = STEPS[name](axis, x, w, b)
        return x

    if _coupling_of(function) is None:
        x = random.normal(size=(BATCH, STEP, WIDTH)).astype("float32")
        other = random.normal(size=x.shape).astype("float32")
        cotangent, another = (
            random.normal(size=x.shape).astype("float32") for _ in range(2)
        )
        other[1], another[1] = x[1], cotangent[1]
        for one, two in zip(
            _row(function, x, cotangent),
            _row(function, other, another),
            strict=True,
        ):
            np.testing.assert_allclose(one, two, 1e-4, 1e-4)


def _row(function, x, cotangent):
    """Returns the outputs and the gradient of the example in row 1."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = function(x, 0.0)
    gradient = tape.gradient(outputs, x, tf.constant(cotangent))
    return outputs[1], gradient[1]


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", STEPS)
def test_steps_along_other_axes_are_proven(name, axis) -> None:
    """Control of the test above: what it compares is not always the same."""
    w, b = tf.ones([WIDTH * WIDTH]), tf.ones([WIDTH])

    coupling = _coupling_of(lambda x, _: STEPS[name](axis, x, w, b))

    mixes = axis == 0 and name not in {
        *("add", "attend", "loop", "loop over steps", "multiply"),
        *("multiply rows", "silu"),
        *("multiply transposed", "weigh", "weigh an axis"),
    }
    swaps = name == "swap with the next" and axis == 2
    assert (coupling is not None) == (mixes or swaps)
