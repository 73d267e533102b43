"""Gradients that the graph of a call shows need no loop over examples."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from keras_dp.gradients.capture.graph_rules import gradients_from_graph
from keras_dp.gradients.capture.repeated_calls import called_again
from keras_dp.gradients.records.records import summed
from keras_dp.gradients.registry import LayerCall

# As many examples as positions, and as wide: no length tells one axis from
# another.
BATCH = POSITIONS = WIDTH = 4


class Own(keras.layers.Layer):
    """Computes `function(x, w, b)`."""

    def __init__(self, function, shape, **kwargs):
        super().__init__(**kwargs)
        self.function, self.shape = function, shape

    def build(self, input_shape):
        self.w = self.add_weight(shape=self.shape, initializer="normal")
        self.b = self.add_weight(shape=(WIDTH,), initializer="normal")

    def call(self, x):
        return self.function(x, self.w, self.b)


def attention(x, w, b):
    query, key, value = ops.split(ops.matmul(x, w), 3, axis=-1)
    scores = ops.matmul(query, ops.transpose(key, (0, 2, 1)))
    return ops.matmul(ops.softmax(scores + b), value)


def relative_bias(x, w, b):
    distances = np.abs(np.arange(POSITIONS)[:, None] - np.arange(WIDTH))
    bias = ops.transpose(ops.take(w, distances, axis=0), (2, 0, 1))
    heads = x[:, None] * tf.ones([2, 1, 1], x.dtype)
    return ops.softmax(heads + bias) + b


def class_token(x, w, b):
    tokens = ops.broadcast_to(w, (BATCH, 1, WIDTH))
    return ops.concatenate([tokens, x], axis=1) + b


def patches(x, w, b):
    rows = ops.reshape(x, (BATCH * 2, 2, WIDTH))
    rows = ops.transpose(rows, (0, 2, 1))
    return ops.reshape(ops.matmul(rows, w), (BATCH, 2, WIDTH, 2)) + b[:2]


def images_in_patches(x, w, b):
    images = ops.reshape(x, (BATCH, POSITIONS, 2, 2))
    return ops.conv(images, w, strides=(2, 1)) + b


def heads_first(x, w, b):
    parts = ops.transpose(ops.reshape(x * b, (BATCH, 4, 2, 2)), (2, 0, 1, 3))
    return ops.concatenate([parts[0] * w, parts[1] + w], axis=-1)


def windows_second(x, w, b):
    parts = ops.transpose(
        ops.reshape(x * w, (BATCH, 2, 2, 2, 2)), (2, 0, 1, 3, 4)
    )
    parts = ops.tanh(ops.reshape(parts, (2, 2 * BATCH, 2, 2)))
    parts = ops.transpose(parts, (1, 0, 2, 3)) - ops.sum(b)
    return ops.reshape(parts, (BATCH, 4, 4))


def reversed_by_mask(x, mask):
    """The mask names an axis that there is not, or that it ignores."""
    begin, end, strides = [0, 3, 0], [0, -9, WIDTH], [1, -1, 1]
    return tf.strided_slice(
        x[:, 0], begin, end, strides, ellipsis_mask=1, new_axis_mask=mask
    )


def flipped_gradient(x, w, b):
    @tf.custom_gradient
    def flipped(inputs):
        return inputs * w, lambda up, variables=None: (up[::-1], [])

    return flipped(x) + b


def loop_behind_keras(x, w, b):
    def body(i, y):
        return i + 1, y * w._value

    return tf.while_loop(lambda i, y: i < 2, body, (0, x + b))[1]


def pure_python(x, w, b):
    drawn = tf.numpy_function(
        np.tanh, [np.float32([1])], tf.float32, stateful=False
    )
    return x * w + b * drawn[0]


def picked_positions(x, w, b):
    return tf.gather(x * w, tf.cast(x[:, :, 0] > 0, tf.int32), batch_dims=1) + b


# What the steps further down do not do, and the shape of `w`.
SHOWN = {
    "a scalar": (lambda x, w, b: x * ops.softplus(w) + b * b, ()),
    "all axes": (lambda x, w, b: (x * w) * (x + b), (1, 1, WIDTH)),
    "used on itself": (lambda x, w, b: (x * w + b) * w - b, (WIDTH,)),
    "two weights": (lambda x, w, b: x * (w * ops.exp(b)), (POSITIONS, 1)),
    "unused": (lambda x, w, b: x * w, (WIDTH,)),
    "table": (lambda x, w, b: x + w[2:6] * b, (2 * POSITIONS, WIDTH)),
    "distances": (relative_bias, (WIDTH, 2)),
    "token": (class_token, (1, 1, WIDTH)),
    "tile": (
        lambda x, w, b: ops.tile(w, (BATCH, 2, 1)) + x[:, :2] * b,
        (1, 1, WIDTH),
    ),
    "bias": (lambda x, w, b: tf.nn.bias_add(x * w, tf.cast(b, x.dtype)), ()),
    "heads first": (heads_first, (2,)),
    "windows second": (windows_second, (WIDTH,)),
    "function": (lambda x, w, b: tf.function(tf.tanh)(x) * w + b, (WIDTH,)),
    "product": (lambda x, w, b: ops.tanh(x @ w + b), (WIDTH, WIDTH)),
    "transposed": (lambda x, w, b: (x + b) @ ops.transpose(w), (6, WIDTH)),
    "heads": (
        lambda x, w, b: ops.einsum("btd,hde->bhte", x * b, w),
        (3, WIDTH, 2),
    ),
    "matrix for each position": (
        lambda x, w, b: ops.einsum("btd,tde->bte", x, w) + b,
        (POSITIONS, WIDTH, WIDTH),
    ),
    "left": (
        lambda x, w, b: ops.einsum("de,btd->bte", w, x) + b,
        (WIDTH, WIDTH),
    ),
    "sum of matrices": (lambda x, w, b: x @ (w + b[:, None]), (WIDTH, WIDTH)),
    "attention": (attention, (WIDTH, 3 * WIDTH)),
    "patches": (patches, (2, 2)),
    "patches of images": (images_in_patches, (2, 1, 2, WIDTH)),
}
# They must be left to a loop over examples.
OTHERS = {
    "weight for each row": (lambda x, w, b: x * w + b, (BATCH, 1, 1)),
    "copies of positions": (
        lambda x, w, b: ops.tile(w, (BATCH, 2, 1)) + x * b,
        (1, 2, WIDTH),
    ),
    "copies for some rows": (
        lambda x, w, b: ops.tile(w, (2, 1, 1)) + x * b,
        (2, 1, WIDTH),
    ),
    "overlapping patches": (
        lambda x, w, b: ops.conv(x[..., None], w[..., None, None]) + b,
        (2, 2),
    ),
    "matrix for each row": (lambda x, w, b: x @ w + b, (BATCH, WIDTH, WIDTH)),
    "product along rows": (
        lambda x, w, b: ops.einsum("btd,be->bte", x, w) + b,
        (BATCH, WIDTH),
    ),
    "behind Keras": (
        lambda x, w, b: x * tf.convert_to_tensor(w._value) + b,
        (WIDTH,),
    ),
    "own gradient": (flipped_gradient, (WIDTH,)),
    "loop behind Keras": (loop_behind_keras, (WIDTH,)),
    "mask": (lambda x, w, b: reversed_by_mask(x, 8) * w + b, (WIDTH,)),
    "mask of all": (lambda x, w, b: reversed_by_mask(x, 1) * w + b, (WIDTH,)),
    "picked positions": (picked_positions, (WIDTH,)),
    "complex": (
        lambda x, w, b: tf.math.real(
            tf.complex(x, x) * tf.complex(w + 0, b + 0)
        ),
        (WIDTH,),
    ),
    "Python": (
        lambda x, w, b: x * w * tf.numpy_function(np.mean, [x], tf.float32) + b,
        (WIDTH,),
    ),
    "pure Python": (pure_python, (WIDTH,)),
    "loop": (
        lambda x, w, b: tf.while_loop(
            lambda i, y: i < 2, lambda i, y: (i + 1, y * w + b), (0, x)
        )[1],
        (WIDTH,),
    ),
}


def call_of(function, shape, dtype="float32"):
    keras.utils.set_random_seed(0)
    layer = Own(function, shape, dtype=dtype)
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(BATCH, POSITIONS, WIDTH)), tf.float32)
    outputs = layer(x)
    for variable in layer.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    cotangent = tf.constant(rng.normal(size=outputs.shape), outputs.dtype)
    return LayerCall(layer, (x,), {}, [cotangent])


def found(call, **options):
    return gradients_from_graph(
        call, call.layer.trainable_variables, contextlib.nullcontext, **options
    )


def traced(call, function):
    """Calls a function in a graph, with the inputs of a call as data."""

    @tf.function(autograph=False)
    def in_graph(*args):
        return function(call._replace(args=args))

    return in_graph(*call.args)


def gradients_of(call):
    """Returns the gradients of each variable, `None` if none are shown."""
    shows = []

    def of_batch(call):
        pairs = found(call)
        shows.append(pairs is not None)
        gradients = []
        for variable in call.layer.trainable_variables if shows[-1] else ():
            own = [records for each, records in pairs if each is variable]
            gradients.append(
                summed(own).materialize()
                if own
                else tf.zeros([BATCH, *variable.shape])
            )
        return gradients

    gradients = traced(call, of_batch)
    return gradients if shows[-1] else None


def by_definition(call, row):
    """Returns the gradients of one example's part of the losses."""
    layer, variables = call.layer, call.layer.trainable_variables
    (cotangent,) = call.cotangents
    size = cotangent.shape[0] // BATCH
    part = slice(row * size, row * size + size)
    with tf.GradientTape() as tape:
        outputs = tf.convert_to_tensor(layer(*call.args))[part]
    gradients = tape.gradient(
        outputs,
        [variable.value for variable in variables],
        output_gradients=cotangent[part],
        unconnected_gradients="zero",
    )
    return list(map(tf.convert_to_tensor, gradients))


def alone(call, row):
    """Returns the gradients of an example that is a batch of its own."""
    others = [i for i in range(BATCH) if i != row]
    x = call.args[0].numpy()
    x[others] = np.random.default_rng(1).normal(size=x[others].shape)
    return by_definition(call._replace(args=(tf.constant(x),)), row)


@pytest.mark.parametrize(
    ("name", "dtype", "tolerance"),
    [
        *((name, "float32", 1e-5) for name in SHOWN),
        *((name, "mixed_bfloat16", 1e-1) for name in ("product", "all axes")),
    ],
)
def test_gradients_are_those_of_single_examples(name, dtype, tolerance) -> None:
    call = call_of(*SHOWN[name], dtype)

    gradients = gradients_of(call)

    assert gradients is not None
    for row in range(BATCH):
        for ours, own in zip(gradients, alone(call, row), strict=True):
            np.testing.assert_allclose(ours[row], own, tolerance, tolerance)


@pytest.mark.parametrize("name", OTHERS)
def test_other_layers_are_left_to_the_loop(name) -> None:
    assert gradients_of(call_of(*OTHERS[name])) is None


def kernel_of(x, w):
    return tf.matmul(x, tf.reshape(w, [WIDTH, WIDTH]))


# Steps from `[BATCH, POSITIONS, WIDTH]` to the same shape, along any axis.
STEPS = {
    "weigh": lambda axis, x, w, b: x * b,
    "weigh an axis": lambda axis, x, w, b: (
        x * tf.reshape(b, [-1 if i == axis else 1 for i in range(3)])
    ),
    "add": lambda axis, x, w, b: x + tf.exp(b),
    "multiply": lambda axis, x, w, b: kernel_of(x, w),
    "multiply transposed": lambda axis, x, w, b: tf.matmul(
        x, tf.reshape(w, [WIDTH, WIDTH]), transpose_b=True
    ),
    "multiply rows": lambda axis, x, w, b: tf.reshape(
        kernel_of(tf.reshape(x, [-1, WIDTH]), w), x.shape
    ),
    "contract": lambda axis, x, w, b: tf.einsum(
        ["abc,ax->xbc", "abc,bx->axc", "abc,cx->abx"][axis],
        x,
        tf.reshape(w, [WIDTH, WIDTH]),
    ),
    "flip": lambda axis, x, w, b: tf.reverse(x, [axis]),
    "roll": lambda axis, x, w, b: tf.roll(x, 1, axis),
    "sum up": lambda axis, x, w, b: tf.cumsum(x, axis),
    "swap with the next": lambda axis, x, w, b: tf.transpose(
        x, [(1, 0, 2), (0, 2, 1), (2, 1, 0)][axis]
    ),
    "subtract the mean": lambda axis, x, w, b: (
        x - tf.reduce_mean(x, axis, keepdims=True)
    ),
    "look up": lambda axis, x, w, b: tf.gather(x, [0, 0, 3, 1], axis=axis),
    "cut and join": lambda axis, x, w, b: tf.concat(
        tf.split(x, 2, axis)[::-1], axis
    ),
    "take apart and stack": lambda axis, x, w, b: tf.stack(
        tf.unstack(x, axis=axis)[::-1], axis
    ),
    "reshape and cut": lambda axis, x, w, b: tf.reshape(
        tf.reverse(tf.reshape(x, [8, 2, 4]), [axis]), x.shape
    ),
    "reshape and swap": lambda axis, x, w, b: tf.reshape(
        tf.transpose(
            tf.reshape(x, [4, 2, 2, 4]),
            [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)][axis],
        ),
        x.shape,
    ),
    "attend": lambda axis, x, w, b: tf.matmul(
        tf.nn.softmax(tf.matmul(x, x, transpose_b=True)), x
    ),
    "silu": lambda axis, x, w, b: ops.silu(x),
    "loop": lambda axis, x, w, b: tf.while_loop(
        lambda i, y: i < 2, lambda i, y: (i + 1, tf.tanh(y)), (0, x)
    )[1],
    "loop over steps": lambda axis, x, w, b: tf.transpose(
        tf.map_fn(tf.tanh, tf.transpose(x, [1, 0, 2])), [1, 0, 2]
    ),
    "pad and cut": lambda axis, x, w, b: tf.pad(
        x, [[int(i == axis), 0] for i in range(3)]
    )[tuple(slice(0, 4) for _ in range(3))],
}
steps = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), st.sampled_from([0, 1, 2, 2])),
    min_size=1,
    max_size=5,
)


def layer_of(chosen):
    def function(x, w, b):
        for name, axis in chosen:
            x = STEPS[name](axis, x, w, b)
        return x

    return function


def mixes_examples(call):
    """Whether changing one example changes the outputs of others."""
    (x,) = call.args
    changed = tf.concat([x[:1] + 1.0, x[1:]], axis=0)
    before, after = call.layer(x), call.layer(changed)
    return not np.array_equal(before[1:], after[1:])


@pytest.mark.full
@given(chosen=steps)
@settings(max_examples=60)
def test_whatever_is_shown_is_the_gradient_of_single_examples(chosen) -> None:
    call = call_of(layer_of(chosen), (WIDTH * WIDTH,))

    gradients = gradients_of(call)

    if mixes_examples(call):
        assert gradients is None
    if gradients is not None:
        for row in range(BATCH):
            for ours, own in zip(gradients, alone(call, row), strict=True):
                scale = 1 + np.abs(own).max()
                np.testing.assert_allclose(ours[row], own, 1e-3, 1e-4 * scale)


@pytest.mark.full
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("name", STEPS)
def test_steps_are_shown_if_they_keep_the_batch_first(name, axis) -> None:
    call = call_of(layer_of([("add", 2), (name, axis)]), (WIDTH * WIDTH,))

    gradients = gradients_of(call)

    if axis > 0 and (name, axis) != ("swap with the next", 2):
        assert gradients is not None
    if mixes_examples(call):
        assert gradients is None


def test_the_first_axis_of_steps_mixes_examples() -> None:
    """Control: the cases above are not all of one kind."""
    mixing = {
        name
        for name in STEPS
        if mixes_examples(call_of(layer_of([(name, 0)]), (WIDTH * WIDTH,)))
    }

    assert len(mixing) >= 11


def test_other_arguments_are_the_same_for_all_examples() -> None:
    layer = Own(lambda x, w, b: x["rows"] * w + x["all"] * b, (WIDTH,))
    rows, cotangent = tf.constant(
        np.random.default_rng(0).normal(size=(2, BATCH, 3, WIDTH)), tf.float32
    )
    scale = tf.constant([[[3.0]]])
    layer({"rows": rows, "all": scale})

    @tf.function(autograph=False)
    def gradients(rows, scale):
        call = LayerCall(
            layer, ({"all": scale, "rows": rows},), {}, [cotangent]
        )
        places = [
            place
            for place, leaf in enumerate(keras.tree.flatten(call.args))
            if leaf.shape[0] == BATCH
        ]
        return [each.materialize() for _, each in found(call, mapped=places)]

    b, w = sorted(gradients(rows, scale), key=lambda g: float(abs(g[0, 0])))
    expected = [tf.reduce_sum(cotangent * each, 1) for each in (scale, rows)]
    both = sorted(expected, key=lambda g: float(abs(g[0, 0])))
    np.testing.assert_allclose(b, both[0], 1e-5)
    np.testing.assert_allclose(w, both[1], 1e-5)


def test_a_tensor_from_an_outer_graph_is_not_trusted() -> None:
    call = call_of(lambda x, w, b: x * w + b, (WIDTH,))

    def shown(call, closes_over):
        kept = tf.reduce_mean(call.args[0], axis=0)
        other = kept if closes_over else tf.constant([2.0])
        call.layer.function = lambda x, w, b: x * w + b * other

        @tf.function(autograph=False)
        def inner(x):
            results.append(found(call._replace(args=(x,))) is not None)

        inner(call.args[0])

    results = []
    traced(call, lambda call: shown(call, closes_over=True))
    traced(call, lambda call: shown(call, closes_over=False))

    assert results == [False, True]


def test_names_of_an_outer_graph_are_not_trusted() -> None:
    call = call_of(lambda x, w, b: x * w + b, (WIDTH,))

    def shown(call, named):
        draw = tf.ones([WIDTH], name="drawn")

        @tf.function(autograph=False)
        def inner(x):
            kept = tf.reduce_mean(x, axis=(0, 1), name=named)
            call.layer.function = lambda x, w, b: x * w + b * kept
            own = call._replace(args=(x,))
            names.append((kept.name, draw.name))
            results.append(found(own, draws=[draw]))

        inner(call.args[0])

    names, results = [], []
    traced(call, lambda call: shown(call, "drawn"))

    assert names[0][0] == names[0][1]
    assert results == [None]


@pytest.mark.parametrize(
    ("case", "how"),
    [
        (SHOWN["all axes"], "from its graph"),
        (SHOWN["product"], "from its graph"),
        (OTHERS["loop"], "example by example"),
    ],
)
def test_the_layer_is_called_on_examples_only_if_needed(case, how) -> None:
    call = call_of(*case)
    found = []

    def records(call):
        variables = call.layer.trainable_variables
        gradients, how = called_again(call, variables, jit_compile=False)
        found.append(how)
        return [records.materialize() for _, records in gradients]

    traced(call, records)

    assert found == [how]
