"""A model that holds records of its training data is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.errors import UnsupportedLayerError
from keras_dp.experimental.federation import FederatedModel, LocalTraining

RECORDS, WIDTH = 48, 12
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(RECORDS, WIDTH)).astype("float32")
Y = GENERATOR.normal(size=(RECORDS, 4)).astype("float32")
IDS = GENERATOR.integers(0, 50, size=(RECORDS, WIDTH)).astype("int32")


def near(held):
    """Similarities to what it holds, by a function of its own."""
    return layers.Lambda(lambda x: tf.matmul(x, tf.transpose(held)))


class Attribute(layers.Layer):
    def __init__(self, held):
        super().__init__()
        self.held = held

    def call(self, x):
        return tf.matmul(x, self.held, transpose_b=True)


class Inside(layers.Layer):
    """Another function calls it, with half of the records."""

    @tf.function(autograph=False)
    def far(self, x):
        return x - X[::2][:WIDTH]

    def call(self, x):
        return x + tf.reduce_sum(self.far(tf.zeros([1, WIDTH])))


class Weights(layers.Layer):
    def __init__(self, held, **options):
        super().__init__()
        start = keras.initializers.Constant(held)
        self.held = self.add_weight(
            shape=held.shape, initializer=start, **options
        )

    def call(self, x):
        return keras.ops.matmul(x, self.held)


class Reads(Weights):
    """Its Python reads a number, so that it has no graph."""

    def call(self, x):
        if not isinstance(x, keras.KerasTensor):
            float(tf.reduce_sum(x))
        return super().call(x)

    def compute_output_shape(self, shape):
        return (*shape[:1], self.held.shape[1])


class Untracked(layers.Layer):
    def __init__(self):
        super().__init__()
        self.held = [tf.Variable(X)]

    def call(self, x):
        return x + tf.reduce_mean(self.held[0], axis=0)


HELD = {
    "a constant of NumPy": lambda: near(X),
    "a constant of TensorFlow": lambda: Attribute(tf.constant(X)),
    "in another function": Inside,
    "a few of them": lambda: near(X[:6]),
    "trained weights": lambda: Weights(X.T),
    "weights that are not trained": lambda: Weights(X.T, trainable=False),
    "a variable that Keras does not know": Untracked,
    "targets": lambda: layers.Lambda(
        lambda x: tf.concat([x, x[:, :1] * tf.reduce_mean(Y, 0)], 1)
    ),
    "one record": lambda: layers.Lambda(lambda x: x - X[5]),
    "other types": lambda: layers.Lambda(
        lambda x: x - tf.cast(tf.constant(X[:1], tf.float64), tf.float32)
    ),
}
NOT_HELD = {
    "other numbers": lambda: near(X[:, ::-1]),
    "sums": lambda: near(X[1:] + X[:-1]),
    "units": lambda: near(np.eye(WIDTH, dtype="float32")),
    "a row of zeros": lambda: near(np.zeros((3, WIDTH), "float32")),
}
# How models are trained whose step has no trace of gradients, or no self-check.
OTHERWISE = ["eager", "federated", "replicas", "unchecked"]
# Records, and numbers that some of them equal by chance.
BY_CHANCE = {
    "positions": (np.arange(WIDTH) * [[1], [0], [2]], np.arange(WIDTH)),
    "ones, once rounded": (1 + X / 1e5, np.ones(WIDTH, "float16")),
}


def _rounds(make, x=X, how=""):
    """How many rounds run before the layer is refused, if it is."""
    is_federated, data = how == "federated", {"x": x, "y": Y}
    unit = "user" if is_federated else "example"
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="test", unit=unit)
    strategy = tf.distribute.get_strategy()
    if how == "replicas":
        strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        inside = keras.Sequential(
            [keras.Input(x.shape[1:], dtype=x.dtype), make(), layers.Dense(4)]
        )
        if is_federated:
            model = FederatedModel(inside, LocalTraining(0.1))
            data = {
                "x": keras_dp.UserBatches(
                    (x, Y),
                    user_ids=np.arange(RECORDS) // 2,
                    sampling_probability=1.0,
                    records_per_user=2,
                )
            }
        else:
            checked = 0 if how == "unchecked" else 2
            model = keras_dp.PrivateModel(inside, self_check_examples=checked)
        query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=RECORDS)
        optimizer = keras_dp.DPSGD(0.1, query=query, ledger=ledger)
        model.compile(optimizer, "mse", run_eagerly=how == "eager")
    try:
        model.fit(
            **data, batch_size=None if is_federated else RECORDS, verbose=0
        )
    finally:
        ran = len(ledger)
    return ran


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.full] if place else [])
        for place, name in enumerate(HELD)
    ],
)
def test_is_refused(name) -> None:
    with pytest.raises(UnsupportedLayerError, match="must hold no records"):
        _rounds(HELD[name])


@pytest.mark.parametrize(
    "how",
    [
        pytest.param(how, marks=[pytest.mark.full] if place else [])
        for place, how in enumerate(OTHERWISE)
    ],
)
def test_is_refused_however_it_is_trained(how) -> None:
    with pytest.raises(UnsupportedLayerError, match="must hold no records"):
        _rounds(HELD["a constant of NumPy"], how=how)


@pytest.mark.full
def test_weights_of_a_model_without_a_graph_are_looked_at() -> None:
    with pytest.raises(UnsupportedLayerError, match="must hold no records"):
        _rounds(lambda: Reads(X.T), how="eager")


@pytest.mark.full
@pytest.mark.parametrize("how", OTHERWISE)
def test_other_constants_are_not_however_it_is_trained(how) -> None:
    assert _rounds(NOT_HELD["other numbers"], how=how) == 1


@pytest.mark.full
def test_ids_are_refused() -> None:
    marks = layers.Lambda(lambda ids: tf.cast(ids == IDS[3], tf.float32))

    with pytest.raises(UnsupportedLayerError, match="must hold no records"):
        _rounds(lambda: marks, IDS)


@pytest.mark.full
@pytest.mark.parametrize("name", NOT_HELD)
def test_other_constants_are_not(name) -> None:
    assert _rounds(NOT_HELD[name]) == 1


@pytest.mark.full
@pytest.mark.parametrize("name", BY_CHANCE)
def test_what_records_equal_by_chance_is_none(name) -> None:
    some, held = BY_CHANCE[name]
    x = np.resize(some, X.shape).astype("float32")
    x[2:] += X[2:]
    constant = tf.constant(held)

    layer = layers.Lambda(lambda x: x - tf.cast(constant, x.dtype))

    assert _rounds(lambda: layer, x) == 1


@pytest.mark.full
def test_what_all_records_share_is_no_record() -> None:
    time = np.linspace(0, 1, WIDTH, dtype="float32")
    x = np.concatenate([np.repeat(time[np.newaxis], RECORDS - 1, 0), X[:1]])

    layer = layers.Lambda(lambda x: x - time)

    assert _rounds(lambda: layer, x) == 1


def test_an_output_without_targets_is_left_out() -> None:
    x = keras.Input((WIDTH,))
    model = keras_dp.PrivateModel(
        keras.Model(x, [layers.Dense(4)(x), layers.Dense(2)(x)])
    )
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=RECORDS)
    optimizer = keras_dp.DPSGD(0.1, query=query, ledger=ledger)
    model.compile(optimizer, ["mse", None])

    model.train_on_batch(X, [Y, None])

    assert len(ledger) == 1
