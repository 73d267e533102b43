"""Small models of every kind that the gradient engine must get right.

A model joins the tests by joining `MODELS`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import layers


class ModelCase(NamedTuple):
    """A model with data for it."""

    name: str
    make: Callable[[], keras.Model]
    inputs: Callable[[np.random.Generator, int], Any]
    targets: Callable[[np.random.Generator, int], Any]
    loss: Any = "mse"
    # Classes of the layers that have no rule.
    fallbacks: tuple[str, ...] = ()

    def data(self, batch: int) -> tuple[Any, Any]:
        generator = np.random.default_rng(3)
        return self.inputs(generator, batch), self.targets(generator, batch)


def _normal(*shape: int):
    return lambda g, n: g.normal(size=(n, *shape)).astype("float32")


def _ids(limit: int, *shape: int):
    return lambda g, n: g.integers(0, limit, size=(n, *shape)).astype("int32")


def _sequential(shape, stack, dtype=None):
    return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *stack()])


def _called(make, *shape, dtype="float32"):
    """Returns a function that makes a model, and builds it by a call."""

    def called():
        model = make()
        model(np.zeros((1, *shape), dtype))
        return model

    return called


def _mlp():
    return [
        layers.Dense(7, activation="relu"),
        layers.Dropout(0.0),
        layers.Dense(4, activation="gelu"),
        layers.Dense(3, use_bias=False),
    ]


def _conv():
    return [
        layers.Conv2D(4, (3, 2), strides=(2, 1), padding="same"),
        layers.Conv2D(4, 2, strides=2, padding="same"),
        layers.Flatten(),
        layers.Dense(3),
    ]


def _transformer():
    ids = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8)(ids)
    x = layers.LayerNormalization()(
        x + layers.MultiHeadAttention(2, 4, dropout=0.0)(x, x)
    )
    x = x + layers.Dense(8)(layers.Dense(16, activation="gelu")(x))
    x = layers.GlobalAveragePooling1D()(layers.LayerNormalization()(x))
    return keras.Model(ids, layers.Dense(3)(x))


def _language_model(calls=1, **options):
    """A causal language model, whose table projects, too, unless it is told."""

    def make():
        ids = keras.Input((6,), dtype="int32")
        table = layers.ReversibleEmbedding(11, 8, **options)
        x = table(ids)
        for _ in range(calls - 1):
            x = x + table(ids[:, ::-1])
        x = layers.LayerNormalization()(layers.Dense(8, "tanh")(x))
        logits = [table(x, reverse=True) for _ in range(calls)]
        return keras.Model(ids, layers.add(logits) if calls > 1 else logits[0])

    return make


class _Renamed(layers.Dense):
    """Computes what `Dense` does."""

    def __init__(self, units, **options):
        super().__init__(units, activation="tanh", **options)

    def units_doubled(self):
        return 2 * self.units


def _trained_inside_of_frozen():
    """As KerasHub's `enable_lora` leaves a backbone."""
    ids = keras.Input((6,), dtype="int32")
    x = layers.Embedding(11, 8)(ids)
    attention = layers.MultiHeadAttention(2, 4)
    x = layers.GlobalAveragePooling1D()(attention(x, x))
    model = keras.Model(ids, layers.Dense(3)(x))
    for layer in model.layers[:-1]:
        layer.trainable = False
    attention.query_dense.trainable = True
    attention.query_dense.enable_lora(2)
    return model


def _called_twice():
    inputs = keras.Input((5, 6))
    shared = layers.Dense(6, activation="tanh")
    norm = layers.LayerNormalization()
    x = norm(shared(norm(shared(inputs))))
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


def _conv_called_twice():
    inputs = keras.Input((6, 6, 3))
    shared = layers.Conv2D(3, 3, padding="same", activation="relu")
    x = shared(shared(inputs))
    x = layers.Add()([x, shared(layers.AveragePooling2D(1)(inputs))])
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(x)))


@keras.saving.register_keras_serializable(package="tests")
class TiedEmbedding(layers.Layer):
    """Reads a table, and multiplies by its transpose: two uses, one layer."""

    def __init__(self, rows, width, **kwargs):
        super().__init__(**kwargs)
        self.rows, self.width = rows, width

    def build(self, shape):
        self.table = self.add_weight(
            shape=(self.rows, self.width), initializer="random_normal"
        )

    def call(self, inputs, reverse=False):
        if reverse:
            return keras.ops.matmul(inputs, keras.ops.transpose(self.table))
        return keras.ops.take(self.table, inputs, axis=0)


def _tied_in_one_layer():
    ids = keras.Input((4,), dtype="int32")
    tied = TiedEmbedding(7, 5)
    x = layers.Dense(5, activation="tanh")(tied(ids))
    return keras.Model(ids, tied(x, reverse=True))


class SharedVariable(layers.Layer):
    """A layer that multiplies by a variable of another layer."""

    def __init__(self, owner, **kwargs):
        super().__init__(**kwargs)
        self._trainable_variables.append(owner._kernel)
        self.kernel = owner._kernel
        self.built = True

    def call(self, inputs):
        return keras.ops.matmul(inputs, keras.ops.transpose(self.kernel))


def _shared_between_layers():
    inputs = keras.Input((4, 5))
    first = layers.Dense(3, activation="tanh")
    x = first(inputs)
    return keras.Model(inputs, SharedVariable(first)(x))


class Subclassed(keras.Model):
    """Not built, nested, with a list of layers and a branch."""

    def __init__(self):
        super().__init__()
        self.blocks = [layers.Dense(6, activation="relu") for _ in range(2)]
        self.norm = layers.LayerNormalization()
        self.inner = keras.Sequential([layers.Dense(4), layers.ReLU()])
        self.head = layers.Dense(2)

    def call(self, inputs, training=None):
        x = inputs
        for block in self.blocks:
            x = block(x)
        return self.head(self.inner(self.norm(x), training=training))


class OwnWeights(keras.Model):
    """Weights owned by the model itself."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4, activation="tanh")

    def build(self, shape):
        self.dense.build(shape)
        self.scale = self.add_weight(shape=(4,), initializer="ones")
        self.built = True

    def call(self, inputs):
        return self.dense(inputs) * self.scale


class PastItsLayer(keras.Model):
    """Multiplies by the table of its embedding, past the embedding's call."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(11, 8)
        self.hidden = layers.Dense(8, activation="tanh")

    def call(self, inputs):
        hidden = self.hidden(self.table(inputs))
        weights = keras.ops.transpose(self.table.embeddings)
        return keras.ops.matmul(hidden, weights)


class ByName(keras.Model):
    """Passes all arguments by name, the inputs not as the first."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(11, 8)
        self.attention = layers.MultiHeadAttention(2, 4)
        self.steps = layers.TimeDistributed(layers.Dense(5))
        self.states = layers.GRU(3)

    def call(self, inputs, training=None):
        hidden = self.table(inputs=inputs)
        hidden = self.attention(value=hidden, query=hidden)
        hidden = self.steps(training=training, inputs=hidden)
        return self.states(training=training, sequences=hidden)


class OnlyByName(layers.Layer):
    """Takes its inputs by their name only."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, *, inputs):
        return keras.ops.tanh(inputs * self.scale)


def _only_by_name():
    inputs = keras.Input((5,))
    return keras.Model(inputs, OnlyByName()(inputs=inputs))


class ScaledStates(layers.Layer):
    """Owns a weight. The layer inside reads the mask of the inputs."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inside = layers.GRU(3)
        self.supports_masking = True

    def build(self, shape):
        self.scale = self.add_weight(shape=(3,), initializer="ones")
        self.inside.build(shape)

    def compute_mask(self, inputs, mask=None):
        return None

    def call(self, inputs):
        return self.scale * self.inside(inputs)


class Around(layers.Layer):
    """Has a weight of its own beside the layer inside of it.

    It calls that layer, or multiplies by its kernel, or calls it in a loop.
    """

    def __init__(self, way, **options):
        super().__init__(**options)
        self.way = way
        self.inside = layers.Dense(5, activation="tanh")

    def build(self, shape):
        self.scale = self.add_weight(shape=(5,), initializer="ones")
        self.inside.build(shape)

    def call(self, inputs):
        if self.way == "loop":
            return self.scale * tf.map_fn(self.inside, inputs)
        outputs = self.scale * self.inside(inputs)
        if self.way == "kernel":
            outputs += keras.ops.matmul(inputs, self.inside.kernel)
        return outputs


class OnRows(layers.Layer):
    """Calls layers on rows that are not the examples, and owns nothing."""

    def __init__(self, **options):
        super().__init__(**options)
        self.places = layers.Embedding(4, 5)
        self.inside = layers.Dense(5, activation="tanh")

    def build(self, shape):
        self.places.build((shape[1],))
        self.inside.build(shape)

    def call(self, inputs):
        inputs += self.places(keras.ops.arange(4))
        rows = self.inside(keras.ops.reshape(inputs, (-1, 5)))
        return keras.ops.reshape(rows, (-1, 4, 5))


class Twice(layers.Layer):
    """Calls layers that hold layers, and owns nothing."""

    def __init__(self, *inside, **options):
        super().__init__(**options)
        self.inside = inside

    def build(self, shape):
        for layer in self.inside:
            layer.build(shape)

    def call(self, inputs):
        for layer in self.inside:
            inputs = layer(inputs)
        return inputs


class WithTraining(layers.Layer):
    """Computes something else in training."""

    def call(self, inputs, training=False):
        return 2 * inputs if training else inputs


class AroundTraining(layers.Layer):
    """Owns a weight, and takes no argument that the layer inside takes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inside = WithTraining()

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, inputs):
        return self.inside(keras.ops.tanh(inputs * self.scale))


class OnItsWay(layers.Layer):
    """Changes its inputs before Keras calls it."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def __call__(self, inputs, **options):
        return super().__call__(keras.ops.tanh(inputs), **options)

    def call(self, inputs):
        return keras.ops.sin(inputs * self.scale)


def _around(way):
    return _sequential(
        (4, 5),
        lambda: [
            Twice(Around(way), Twice(layers.Dense(5), Around("call"))),
            layers.Dense(2),
        ],
    )


def _frozen():
    frozen = layers.Dense(5, activation="tanh")
    partly = layers.Dense(5)
    model = keras.Sequential(
        [keras.Input((4,)), frozen, partly, layers.Dense(2)]
    )
    frozen.trainable = False
    partly.bias.trainable = False
    return model


def _masked():
    ids = keras.Input((6,), dtype="int32")
    x = layers.Embedding(9, 5, mask_zero=True)(ids)
    return keras.Model(ids, layers.Dense(3)(x))


def _several_outputs():
    one, two = keras.Input((3,), name="one"), keras.Input((2, 4), name="two")
    x = layers.Concatenate()(
        [layers.Dense(4)(one), layers.Flatten()(layers.Dense(3)(two))]
    )
    outputs = {
        "label": layers.Dense(3, name="label")(x),
        "value": layers.Dense(1, name="value")(x),
    }
    return keras.Model({"one": one, "two": two}, outputs)


def _einsum(equation, output_shape, shape, bias_axes=None):
    return _sequential(
        shape,
        lambda: [
            layers.EinsumDense(
                equation, output_shape, bias_axes=bias_axes, activation="tanh"
            ),
            layers.Flatten(),
            layers.Dense(2),
        ],
    )


def _prelu_inside():
    prelu = layers.Dense(4, activation=layers.PReLU())
    return keras.Sequential([keras.Input((3,)), prelu, layers.Dense(2)])


_SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# Data of a language model.
_WORDS = _ids(11, 6), _ids(11, 6), _SPARSE

MODELS = [
    ModelCase("mlp", _sequential((6,), _mlp), _normal(6), _ids(3), _SPARSE),
    ModelCase(
        "dense_of_sequences",
        _sequential((4, 6), _mlp),
        _normal(4, 6),
        _normal(4, 3),
        "mae",
    ),
    ModelCase(
        "dense_of_long_sequences_gram",
        _sequential((3, 30), lambda: [layers.Dense(40), layers.Dense(2)]),
        _normal(3, 30),
        _normal(3, 2),
    ),
    ModelCase(
        "dense_rank_4",
        _sequential((2, 3, 5), _mlp),
        _normal(2, 3, 5),
        _normal(2, 3, 3),
    ),
    ModelCase("masked", _masked, _ids(9, 6), _ids(3, 6), _SPARSE),
    ModelCase(
        "several_inputs_and_outputs",
        _several_outputs,
        lambda g, n: {"one": _normal(3)(g, n), "two": _normal(2, 4)(g, n)},
        lambda g, n: {"label": _ids(3)(g, n), "value": _normal(1)(g, n)},
        {"label": _SPARSE, "value": "mse"},
    ),
    ModelCase(
        "conv_strides_same",
        _sequential((8, 8, 4), _conv),
        _normal(8, 8, 4),
        _normal(3),
    ),
    ModelCase(
        "conv_called_twice", _conv_called_twice, _normal(6, 6, 3), _normal(2)
    ),
    ModelCase("transformer", _transformer, _ids(11, 6), _ids(3), _SPARSE),
    ModelCase("tied_table", _language_model(), *_WORDS),
    ModelCase(
        "tied_table_capped", _language_model(logit_soft_cap=0.5), *_WORDS
    ),
    ModelCase("tied_table_called_often", _language_model(calls=2), *_WORDS),
    ModelCase("two_tables", _language_model(tie_weights=False), *_WORDS),
    ModelCase(
        "by_name", _called(ByName, 6, dtype="int32"), _ids(11, 6), _normal(3)
    ),
    ModelCase(
        "only_by_name",
        _only_by_name,
        _normal(5),
        _normal(5),
        fallbacks=("OnlyByName",),
    ),
    ModelCase(
        "masked_inside",
        _sequential(
            (6,),
            lambda: [layers.Embedding(3, 4, mask_zero=True), ScaledStates()],
            "int32",
        ),
        _ids(3, 6),
        _normal(3),
        fallbacks=("ScaledStates",),
    ),
    ModelCase(
        "past_its_layer", _called(PastItsLayer, 6, dtype="int32"), *_WORDS
    ),
    *(
        ModelCase(
            f"around_{way}",
            _around(way),
            _normal(4, 5),
            _normal(4, 2),
            fallbacks=("Around", "Around"),
        )
        for way in ("call", "kernel", "loop")
    ),
    ModelCase(
        "on_rows",
        _sequential(
            (4, 5), lambda: [Twice(OnRows(), layers.Dense(5)), layers.Dense(2)]
        ),
        _normal(4, 5),
        _normal(4, 2),
    ),
    ModelCase(
        "around_training",
        _sequential((5,), lambda: [AroundTraining(), layers.Dense(2)]),
        _normal(5),
        _normal(2),
        fallbacks=("AroundTraining",),
    ),
    ModelCase(
        "call_of_its_own",
        _sequential((5,), lambda: [OnItsWay(), layers.Dense(2)]),
        _normal(5),
        _normal(2),
        fallbacks=("OnItsWay",),
    ),
    ModelCase(
        "subclass",
        _sequential((5,), lambda: [_Renamed(4), layers.Dense(2)]),
        _normal(5),
        _normal(2),
    ),
    ModelCase(
        "trained_inside_of_frozen",
        _trained_inside_of_frozen,
        _ids(11, 6),
        _ids(3),
        _SPARSE,
    ),
    ModelCase(
        "embedding_long",
        _sequential(
            (80,),
            lambda: [
                layers.Embedding(9, 4),
                layers.GlobalAveragePooling1D(),
                layers.Dense(2),
            ],
            dtype="int32",
        ),
        _ids(9, 80),
        _normal(2),
    ),
    ModelCase(
        "embedding_of_single_and_negative_ids",
        _sequential(
            (1,),
            lambda: [layers.Embedding(9, 4), layers.Flatten(), layers.Dense(2)],
            dtype="int32",
        ),
        lambda g, n: g.integers(-9, 9, size=(n, 1)).astype("int32"),
        _normal(2),
    ),
    *(
        ModelCase(f"einsum_{name}", _einsum(*of), _normal(*of[2]), _normal(2))
        for name, of in {
            "heads": ("abc,cde->abde", (3, 2, 4), (3, 5), "de"),
            "merge": ("abcd,cde->abe", (3, 4), (3, 2, 5), "e"),
            "shared_axis": ("abc,bcd->abd", (3, 4), (3, 5), "bd"),
            "transposed": ("abc,dc->adb", (4, 3), (3, 5), "d"),
            "right_ellipsis": ("ab...,bc->ac...", (4,), (3, 5)),
        }.items()
    ),
    ModelCase("called_twice", _called_twice, _normal(5, 6), _normal(2)),
    ModelCase(
        "tied_in_one_layer",
        _tied_in_one_layer,
        _ids(7, 4),
        _ids(7, 4),
        _SPARSE,
        ("TiedEmbedding",),
    ),
    ModelCase(
        "shared_between_layers",
        _shared_between_layers,
        _normal(4, 5),
        _normal(4, 5),
        fallbacks=("SharedVariable",),
    ),
    ModelCase("subclassed", _called(Subclassed, 6), _normal(6), _normal(2)),
    ModelCase(
        "own_weights",
        _called(OwnWeights, 6),
        _normal(6),
        _normal(4),
        fallbacks=("OwnWeights",),
    ),
    ModelCase("frozen", _frozen, _normal(4), _normal(2)),
    ModelCase(
        "activation_with_weights",
        _called(_prelu_inside, 3),
        _normal(3),
        _normal(2),
        fallbacks=("Dense",),
    ),
    ModelCase(
        "recurrent",
        _sequential(
            (4, 3),
            lambda: [
                layers.LSTM(4, return_sequences=True),
                layers.Bidirectional(layers.GRU(3)),
                layers.Dense(2),
            ],
        ),
        _normal(4, 3),
        _normal(2),
    ),
]


class TimeMajor(layers.Layer):
    """Calls a layer on the steps as the first axis."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(4, "tanh")

    def build(self, shape):
        self.dense.build((shape[1], shape[0], shape[2]))

    def call(self, x):
        steps = self.dense(keras.ops.transpose(x, (1, 0, 2)))
        return keras.ops.transpose(steps, (1, 0, 2))
