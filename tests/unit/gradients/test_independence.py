"""The self-check finds examples that depend on others, or on their row."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.errors import GradientCheckError
from keras_dp.gradients import GradientEngine, self_check
from keras_dp.gradients.capture.repeated_draws import moved_draws
from keras_dp.gradients.checks import independence
from keras_dp.gradients.records.outer_product_records import OuterProductRecords

BATCH = 12
X = tf.constant(np.random.default_rng(0).normal(size=(BATCH, 4)), tf.float32)


def _squares(outputs):
    return tf.reduce_sum(tf.square(outputs), axis=1)


class Does(layers.Layer):
    """Applies a function."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, x):
        return self.function(x)


class Draws(layers.Layer):
    """Adds random numbers, in training or not, such as a VAE."""

    def __init__(self, added=lambda x: 0.0):
        super().__init__()
        self.added = added
        self.seeds = keras.random.SeedGenerator()

    def call(self, x):
        mean, log_scale = keras.ops.split(x, 2, axis=-1)
        drawn = keras.random.normal(keras.ops.shape(mean), seed=self.seeds)
        return mean + keras.ops.exp(log_scale) * drawn + self.added(mean)


def _check(*stack, x=X):
    model = keras.Sequential([keras.Input(x.shape[1:]), *stack])
    return self_check(GradientEngine(model), x, _squares, BATCH)


def _scaled_backward(factor_of):
    """Returns its input; its gradient is multiplied by something."""

    @tf.custom_gradient
    def same(x):
        return tf.identity(x), lambda upstream: upstream * factor_of(x)

    return same


def _mean_size(x):
    return tf.reduce_mean(tf.abs(x))


def _row_numbers(x):
    return tf.cast(tf.range(tf.shape(x)[0])[:, tf.newaxis], x.dtype)


def _last_sees_another(x):
    """Only the last row depends on another one."""
    return tf.concat([x[:-1], x[-1:] + x[3:4]], axis=0)


def _integers_of_the_batch(x):
    place = tf.argsort(x[:, 0])
    return x * (1 + tf.cast(place, x.dtype))[:, tf.newaxis]


class TestExamplesThatInteract:
    @pytest.mark.parametrize(
        "function",
        [
            _scaled_backward(_mean_size),
            _last_sees_another,
            _integers_of_the_batch,
            lambda x: x - tf.stop_gradient(tf.reduce_mean(x, axis=0)),
            lambda x: x + tf.roll(x, 2, axis=0),
            lambda x: tf.sort(x, axis=0),
        ],
        ids=["backward", "last row", "order", "mean", "neighbour", "sort"],
    )
    @pytest.mark.parametrize("place", [1, 2], ids=["middle", "last"])
    def test_are_found(self, function, place) -> None:
        stack = [layers.Dense(4), layers.Dense(4)]
        stack.insert(place, Does(function))

        with pytest.raises(GradientCheckError, match="that example only"):
            _check(*stack)

    def test_are_found_before_the_first_weight(self) -> None:
        with pytest.raises(GradientCheckError, match="that example only"):
            _check(Does(_last_sees_another), layers.Dense(4))

    def test_are_fine_where_nothing_is_differentiated(self) -> None:
        assert _check(Does(_scaled_backward(_mean_size)), layers.Dense(4))

    def test_are_found_in_what_a_layer_is_told_beside(self) -> None:
        """The second argument has no axis of the batch."""

        class Shifted(layers.Layer):
            def build(self, x_shape, other_shape):
                self.scale = self.add_weight(shape=x_shape[-1:])

            def call(self, x, other):
                return self.scale * (x + other)

        inputs = keras.Input((4,))
        mean = Does(lambda x: tf.reduce_mean(x, axis=0))
        shift = tf.stop_gradient
        outputs = Shifted()(inputs, Does(shift)(mean(inputs)))
        engine = GradientEngine(keras.Model(inputs, outputs))

        with pytest.raises(GradientCheckError, match="that example only"):
            self_check(engine, X, _squares, BATCH)

    def test_are_found_above_a_recurrent_layer(self) -> None:
        x = tf.repeat(X[:, tf.newaxis], 3, axis=1)
        couples = Does(_scaled_backward(_mean_size))

        with pytest.raises(GradientCheckError, match="that example only"):
            _check(layers.LSTM(4), couples, layers.Dense(2), x=x)


class TestTheRow:
    @pytest.mark.parametrize(
        "function",
        [
            lambda x: x + 0.1 * _row_numbers(x),
            lambda x: tf.where(_row_numbers(x) == BATCH - 1, -x, x),
            _scaled_backward(lambda x: 1 + _row_numbers(x)),
        ],
        ids=["number", "last row", "backward"],
    )
    @pytest.mark.parametrize("dropout", [False, True])
    def test_must_not_matter(self, function, dropout) -> None:
        stack = [layers.Dense(4), Does(function, name="counts")]
        stack += [layers.Dropout(0.5)] if dropout else []

        with pytest.raises(GradientCheckError, match="row in the batch"):
            _check(*stack, layers.Dense(2))

    def test_must_not_matter_beside_others_alone(self, monkeypatch) -> None:
        """As if neither the row nor others mattered by themselves."""
        monkeypatch.setattr(independence, "_changes", lambda *_, **__: False)
        counts = Does(lambda x: x + _row_numbers(x))

        with pytest.raises(GradientCheckError, match="changing the others"):
            _check(layers.Dense(4), counts, layers.Dense(2))

    def test_must_not_have_the_same_numbers_in_every_round(self) -> None:
        """They are a table over the rows, whatever made them."""
        table = Does(
            lambda x: x + keras.random.normal(keras.ops.shape(x), seed=1)
        )

        with pytest.raises(GradientCheckError, match="row in the batch"):
            _check(layers.Dense(4), table, layers.Dense(2))

    @pytest.mark.parametrize("random", [layers.Dropout(0.5), None])
    def test_must_not_matter_in_training_only(self, random) -> None:
        class Counts(layers.Layer):
            def call(self, x, training=False):
                return x + 0.1 * _row_numbers(x) if training else x

        stack = [layers.Dense(4), *([random] if random else [])]
        counts = Counts(name="counts")

        with pytest.raises(GradientCheckError, match=r"counts' of class Coun"):
            _check(*stack, counts, layers.Dense(2))

    @pytest.mark.parametrize(
        "layer",
        [
            layers.Dropout(0.5),
            layers.GaussianNoise(1.0),
            layers.AlphaDropout(0.5),
            layers.Dense(4, activation="relu"),
            layers.LayerNormalization(),
        ],
        ids=lambda layer: type(layer).__name__,
    )
    def test_may_have_random_numbers_of_its_own(self, layer) -> None:
        assert _check(layers.Dense(4), layer, layers.Dense(2))

    def test_may_have_some_that_do_not_depend_on_training(self) -> None:
        assert _check(layers.Dense(4), Draws(), layers.Dense(2))

    @pytest.mark.parametrize(
        ("added", "words"),
        [
            (_row_numbers, "row in the batch"),
            (lambda x: tf.sort(x, axis=0), "that example only"),
        ],
        ids=["row", "others"],
    )
    def test_do_not_hide_what_matters_beside_them(self, added, words) -> None:
        with pytest.raises(GradientCheckError, match=words):
            _check(layers.Dense(4), Draws(added), layers.Dense(2))


class TestEveryRow:
    def test_has_its_gradient_compared(self, monkeypatch) -> None:
        """A rule that is wrong for one example in the middle."""
        # With other weights its gradient may be too small to be missed.
        keras.utils.set_random_seed(0)
        original = OuterProductRecords.weighted_sum
        wrong = tf.one_hot(6, BATCH) * 0.2

        monkeypatch.setattr(
            OuterProductRecords,
            "weighted_sum",
            lambda self, weights: original(self, weights * (1 - wrong)),
        )

        with pytest.raises(GradientCheckError, match="kernel"):
            _check(layers.Dense(4), layers.Dense(2))

    def test_is_finite_where_automatic_gradients_are(self, monkeypatch) -> None:
        original = OuterProductRecords.squared_norms
        unknown = tf.one_hot(6, BATCH, np.nan, 0.0)

        monkeypatch.setattr(
            OuterProductRecords,
            "squared_norms",
            lambda self: original(self) + unknown,
        )

        with pytest.raises(GradientCheckError, match="kernel"):
            _check(layers.Dense(4), layers.Dense(2))


def test_random_numbers_follow_an_order() -> None:
    """Draws, dropped entries and classes of rows."""

    def drawn():
        ones, logits = tf.ones([4, 50]), tf.zeros([4, 50])
        return [
            keras.random.normal([4, 3], seed=0).numpy(),
            keras.random.dropout(ones, 0.5, seed=1).numpy(),
            keras.random.categorical(logits, 5, seed=2).numpy(),
        ]

    order = [2, 0, 3, 1]
    before = drawn()

    with moved_draws(tf.constant(order)):
        inside = drawn()

    for one, two, three in zip(before, inside, drawn(), strict=True):
        np.testing.assert_array_equal(one[order], two)
        np.testing.assert_array_equal(one, three)
