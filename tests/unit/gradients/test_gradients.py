"""What the gradient engine refuses, and what its self-check finds."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.errors import GradientCheckError, UnsupportedLayerError
from keras_dp.gradients import GradientEngine, check_loss_splits, self_check
from keras_dp.gradients.records import (
    cost_model,
    outer_product_records,
    table_records,
)
from keras_dp.gradients.records import records as records_lib
from keras_dp.gradients.records.reductions import all_finite
from tests.slow_loop import compiled


def _squares(outputs):
    rows = tf.reshape(outputs, [tf.shape(outputs)[0], -1])
    return tf.reduce_sum(tf.square(rows), axis=1)


def _model(*stack, shape=(4,), dtype=None):
    return keras.Sequential([keras.Input(shape, dtype=dtype), *stack])


class Transferring(keras.Model):
    """Calls two layers of batch normalization as it is told."""

    def __init__(self, base_trains=False, kind=layers.BatchNormalization):
        super().__init__()
        self.base_trains = base_trains
        self.norms = [kind(name=name) for name in ("first", "second")]
        self.head = layers.Dense(2)

    def call(self, inputs):
        for norm in self.norms:
            inputs = norm(inputs, training=self.base_trains)
        return self.head(inputs)


def _data(*shape):
    return tf.constant(np.random.default_rng(0).normal(size=shape), tf.float32)


class TestRefusals:
    """The message names the layer, the reason and the remedy."""

    def test_batch_normalization_called_without_training_is_fine(self) -> None:
        model = Transferring()
        x = 3 * _data(4, 4) + 1
        model(x)
        engine = GradientEngine(model)

        assert self_check(engine, x, _squares, 4)

        before = [v.numpy() for v in model.non_trainable_variables]
        engine.gradients(x, _squares, 4)
        for old, new in zip(before, model.non_trainable_variables, strict=True):
            np.testing.assert_array_equal(old, new)

    @pytest.mark.parametrize("compiled", [False, True])
    def test_batch_normalization_that_a_call_trains(self, compiled) -> None:
        model = Transferring(base_trains=True)
        x = 3 * _data(4, 4) + 1
        model(x)
        before = [v.numpy() for v in model.non_trainable_variables]
        engine = GradientEngine(model)

        def gradients():
            return engine.gradients(x, _squares, 4).losses

        with pytest.raises(UnsupportedLayerError, match=r"first', .*second'"):
            (tf.function(gradients) if compiled else gradients)()

        for old, new in zip(before, model.non_trainable_variables, strict=True):
            np.testing.assert_array_equal(old, new)

    def test_all_layers_at_once(self) -> None:
        model = _model(
            layers.Dense(3, activity_regularizer="l2", name="act"),
            layers.BatchNormalization(name="one"),
            _model(layers.BatchNormalization(name="two"), shape=(3,)),
            layers.CutMix(name="mix"),
            layers.Dropout(0.5, noise_shape=(1, 3), name="shared"),
            layers.Dropout(0.5, noise_shape=(None, 1), name="own"),
        )

        with pytest.raises(UnsupportedLayerError) as caught:
            GradientEngine(model)

        _, *lines = str(caught.value).split("\n")
        names = [re.findall(r"(\w+)'", line) for line in lines]
        assert names == [["act"], ["one", "two"], ["mix"], ["shared"]]

    def test_a_batch_normalization_with_a_call_of_its_own(self) -> None:
        """Nothing is known of what it does with the argument."""

        class Own(layers.BatchNormalization):
            def call(self, inputs, **options):
                return super().call(inputs, training=True)

        model = Transferring(kind=Own)
        model(_data(4, 4))

        with pytest.raises(UnsupportedLayerError, match="first"):
            GradientEngine(model)

    def test_added_loss(self) -> None:
        class Adds(layers.Layer):
            def call(self, x):
                self.add_loss(keras.ops.mean(x))
                return x

        model = _model(layers.Dense(3), Adds(name="adds"))

        with pytest.raises(UnsupportedLayerError, match=r"adds.*add_loss"):
            GradientEngine(model).gradients(_data(4, 4), _squares, 4)

    def test_rows_that_are_not_the_examples(self) -> None:
        model = _model(
            layers.Reshape((5, 2)),
            layers.Lambda(lambda x: keras.ops.reshape(x, (-1, 2))),
            layers.Dense(3, name="on_rows"),
            layers.Lambda(lambda x: keras.ops.reshape(x, (-1, 5, 3))),
            shape=(10,),
        )

        with pytest.raises(UnsupportedLayerError, match=r"on_rows.*batch"):
            GradientEngine(model).gradients(_data(4, 10), _squares, 4)

    def test_a_layer_in_a_loop(self) -> None:
        class Loops(layers.Layer):
            def __init__(self):
                super().__init__()
                self.inner = layers.Dense(4, name="inner")

            def build(self, shape):
                self.inner.build(shape)

            def call(self, x):
                return keras.ops.while_loop(
                    lambda x: keras.ops.max(x) < 0,
                    lambda x: (self.inner(x),),
                    (x,),
                )[0]

        engine = GradientEngine(_model(Loops()))

        with pytest.raises(UnsupportedLayerError, match=r"inner.*loop"):
            tf.function(lambda x: engine.gradients(x, _squares, 4).losses)(
                _data(4, 4)
            )


def _raw_normal(shape):
    return tf.raw_ops.RandomStandardNormal(shape=shape, dtype=tf.float32)


class TestSelfCheck:
    """It must pass what is right, and find each way of being wrong."""

    def test_leaves_the_state_of_the_model_alone(self) -> None:
        model = _model(layers.Dense(8), layers.Dropout(0.5, seed=3))
        before = [v.numpy() for v in model.variables]

        self_check(GradientEngine(model), _data(4, 4), _squares, 4)

        for variable, value in zip(model.variables, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), value)

    def test_finds_a_weight_used_outside_its_layer(self) -> None:
        owner = layers.Dense(4, name="owner")

        class Borrows(layers.Layer):
            def call(self, x):
                return keras.ops.matmul(x, keras.ops.transpose(owner._kernel))

        model = _model(owner, Borrows())

        with pytest.raises(GradientCheckError, match=r"owner/kernel"):
            self_check(GradientEngine(model), _data(4, 4), _squares, 4)

    def test_finds_interaction_behind_a_head_of_zeros(self) -> None:
        """At its initial weights such a model hides what its body does."""

        class Centred(layers.Layer):
            def call(self, x):
                return x - keras.ops.mean(x, axis=0, keepdims=True)

        head = layers.Dense(1, kernel_initializer="zeros")
        model = _model(layers.Dense(3), Centred(), head)

        with pytest.raises(GradientCheckError, match="depend on that example"):
            self_check(GradientEngine(model), _data(4, 4), _squares, 4)

    def test_passes_a_layer_that_was_built_while_it_was_frozen(self) -> None:
        """TensorFlow's tapes do not watch its weights by themselves."""

        class Looks(keras.Model):
            def __init__(self):
                super().__init__()
                self.table = layers.Embedding(5, 3, trainable=False)
                self.head = layers.Dense(2)

            def call(self, ids):
                return self.head(self.table(ids))

        model, ids = Looks(), tf.constant([[1, 2], [3, 4], [0, 0]])
        model(ids)
        model.table.trainable = True

        assert not model.table.embeddings.value.trainable
        assert self_check(GradientEngine(model), ids, _squares, 3)

    def test_names_a_layer_beside_one_in_a_loop(self) -> None:
        """What is called while a loop is traced has no values to compare."""

        class Loops(layers.Layer):
            def __init__(self):
                super().__init__()
                self.inner = layers.ReLU()

            def call(self, x):
                each = keras.ops.vectorized_map(self.inner, x)
                return each - keras.ops.mean(x, axis=0)

        model = _model(layers.Dense(3), Loops(), layers.Dense(2, name="head"))

        with pytest.raises(GradientCheckError, match=r"is 'sequential\S*head'"):
            self_check(GradientEngine(model), _data(4, 4), _squares, 4)

    @pytest.mark.parametrize(
        ("hidden", "start"),
        [("interaction", 0.0), ("interaction", -1e-6), ("borrowed", 0.0)],
    )
    def test_finds_what_a_small_factor_hides(self, hidden, start) -> None:
        """A callback may raise the factor once the check has passed."""
        owner = layers.Dense(4, name="owner")

        class Annealed(layers.Layer):
            def build(self, shape):
                self.factor = self.add_weight(
                    shape=(),
                    trainable=False,
                    initializer=keras.initializers.Constant(start),
                )

            def call(self, x):
                if hidden == "borrowed":
                    kernel = keras.ops.transpose(owner.kernel)
                    return x + self.factor * keras.ops.matmul(x, kernel)
                return x - self.factor * keras.ops.mean(x, axis=0)

        annealed = Annealed()
        model = _model(owner, annealed, layers.Dense(2))
        error = r"owner/kernel" if hidden == "borrowed" else r"that example"

        with pytest.raises(GradientCheckError, match=error):
            self_check(GradientEngine(model), _data(4, 4), _squares, 4)
        assert float(annealed.factor) == np.float32(start)

    @pytest.mark.parametrize(
        ("draw", "error"),
        [
            # The generator that all layers share is a variable, too.
            (keras.random.normal, UnsupportedLayerError),
            (_raw_normal, GradientCheckError),
        ],
        ids=["keras", "tensorflow"],
    )
    def test_finds_draws_that_cannot_be_repeated(self, draw, error) -> None:
        class Noisy(layers.Layer):
            def call(self, x):
                return x + draw(keras.ops.shape(x))

        model = _model(layers.Dense(3), Noisy())

        with pytest.raises(error, match="SeedGenerator"):
            self_check(GradientEngine(model), _data(4, 4), _squares, 4)

    def test_finds_a_wrong_rule(self) -> None:
        engine = GradientEngine(_model(layers.Dense(3), layers.Dense(2)))
        original = outer_product_records.OuterProductRecords.squared_norms

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                outer_product_records.OuterProductRecords,
                "squared_norms",
                lambda self: original(self) * 0.95,
            )
            with pytest.raises(GradientCheckError, match="kernel"):
                self_check(engine, _data(4, 4), _squares, 4)

    def test_says_when_nothing_finite_could_be_compared(self) -> None:
        engine = GradientEngine(_model(layers.Dense(3)))
        x = _data(4, 4)

        assert self_check(engine, x, _squares, 4)
        assert not self_check(engine, x * np.nan, _squares, 4)

    def test_a_loss_over_the_batch_is_found(self) -> None:
        losses = tf.constant([1.0, 2.0, 6.0])

        check_loss_splits(losses, tf.constant(3.0))
        check_loss_splits(losses, tf.constant(9.0))
        check_loss_splits(losses, tf.constant(np.nan))
        with pytest.raises(GradientCheckError, match="couples examples"):
            check_loss_splits(losses, tf.constant(5.0))


class Multiplies(layers.Layer):
    """Multiplies steps by a kernel, in a form that no rule knows."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], 3))

    def call(self, inputs):
        return keras.ops.tanh(inputs @ self.kernel)


class MultipliesInFunction(Multiplies):
    """Has the product in a function of its own."""

    call = tf.function(Multiplies.call, autograph=False)


class MultipliesInLoop(Multiplies):
    """Has the product in a loop."""

    def call(self, inputs):
        return keras.ops.fori_loop(
            0, 2, lambda _, each: each @ self.kernel, inputs
        )


class TestProductsOutsideXla:
    """TensorFlow 2.21 corrupts memory where `[n, 1, ...]` is multiplied."""

    @pytest.mark.parametrize(
        "kind", [Multiplies, MultipliesInFunction, MultipliesInLoop]
    )
    def test_are_not_vectorized(self, kind) -> None:
        engine = GradientEngine(_model(kind(), shape=(6, 3)))

        @tf.function(autograph=False)
        def traced():
            records = engine.gradients(_data(8, 6, 3), _squares, 8).records
            return [each.squared_norms() for each in records]

        graph = traced.get_concrete_function().graph
        names = [operation.name for operation in graph.get_operations()]
        assert not any("loop_body" in name for name in names)


class TestRecords:
    """The three questions, where a batch is special."""

    def test_a_record_of_weight_0_contributes_nothing_even_if_nan(self) -> None:
        x = _data(4, 4).numpy()
        x[2] = np.nan
        model = _model(layers.Dense(5, activation="relu"), layers.Dense(3))
        records = (
            GradientEngine(model).gradients(tf.constant(x), _squares, 4).records
        )

        for record in records:
            total = record.weighted_sum(tf.constant([1.0, 1.0, 0.0, 1.0]))
            assert np.isfinite(total).all()
            assert np.isfinite(record.squared_norms().numpy()[[0, 1, 3]]).all()
        assert any(
            not np.isfinite(r.squared_norms().numpy()[2]) for r in records
        )

    @pytest.mark.parametrize("mode", ["eager", "graph", "jit"])
    def test_sums_together_are_those_of_each(self, mode) -> None:
        """They share one check, and leave out a NaN of weight 0."""
        x = _data(4, 4).numpy()
        x[2] = np.nan
        model = _model(layers.Dense(5, activation="relu"), layers.Dense(3))
        engine = GradientEngine(model)
        weights = tf.constant([1.0, 0.5, 0.0, 2.0])

        def sums(x):
            records = engine.gradients(x, _squares, 4).records
            own = [record.weighted_sum for record in records]
            each = [one(weights) for one in own]
            with all_finite():
                careless = records[0].sums_together(own, weights)
            together = records[0].sums_together(own, weights)
            return together, each, careless

        together, each, careless = compiled(sums, mode)(tf.constant(x))

        for one, other in zip(together, each, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)
        assert not all(np.isfinite(one).all() for one in careless)

    def test_an_unused_variable_has_zero_gradients(self) -> None:
        unused = layers.Dense(2)
        inputs = keras.Input((4,))
        model = keras.Model(inputs, [layers.Dense(3)(inputs), unused(inputs)])

        result = GradientEngine(model).gradients(
            _data(4, 4), lambda outputs: _squares(outputs[0]), 4
        )

        for record in result.records[2:]:
            assert not record.squared_norms().numpy().any()
            assert not record.weighted_sum(tf.ones(4)).numpy().any()

    def test_a_layer_that_is_never_called_has_zero_gradients(self) -> None:
        class Skips(keras.Model):
            def __init__(self):
                super().__init__()
                self.used, self.unused = layers.Dense(2), layers.Dense(2)

            def build(self, shape):
                self.used.build(shape)
                self.unused.build(shape)

            def call(self, x):
                return self.used(x)

        model = Skips()
        model.build((None, 4))

        records = (
            GradientEngine(model).gradients(_data(4, 4), _squares, 4).records
        )

        assert records[2].materialize().shape == (4, 4, 2)
        assert not records[2].weighted_sum(tf.ones(4)).numpy().any()
        assert not records[3].squared_norms().numpy().any()


class TestRoundingCannotHideANorm:
    """Terms that cancel: what is released must still obey the clip.

    In float32 the sum of an example's terms is rounded by some `u S`, S being
    the sum of their norms, however small the sum itself.
    """

    # Rounding of a clipped sum, where ghost norms are used (README, docs).
    SLACK = 1e-2

    def _cancelling(self, scale, *shape):
        generator = np.random.default_rng(5)
        half = generator.normal(size=shape).astype("float32") * scale
        tiny = generator.normal(size=shape).astype("float32") * 1e-3
        return half, tiny

    def _assert_bounded(self, records) -> None:
        norms = np.sqrt(records.squared_norms().numpy())
        factors = np.minimum(1.0, 1.0 / np.maximum(norms, 1e-30)).astype(
            "float32"
        )
        for i in range(len(norms)):
            weights = np.zeros(len(norms), "float32")
            weights[i] = factors[i]
            total = records.weighted_sum(tf.constant(weights)).numpy()
            assert np.linalg.norm(total.astype("float64")) <= 1 + self.SLACK

    @pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
    @pytest.mark.parametrize("builds", [True, False], ids=["built", "gram"])
    def test_of_outer_products(self, scale, builds, monkeypatch) -> None:
        monkeypatch.setattr(cost_model, "instantiates", lambda *_: builds)
        left, tiny = self._cancelling(scale, 16, 1, 1, 64)
        right, _ = self._cancelling(scale, 16, 1, 1, 64)
        arrangement = outer_product_records.Arrangement(
            (64, 64), (0, 1), (64, 64)
        )
        records = outer_product_records.OuterProductRecords(
            tf.constant(np.concatenate([left, left + tiny], axis=2)),
            tf.constant(np.concatenate([right, -right], axis=2)),
            arrangement,
        )

        self._assert_bounded(records)

    @pytest.mark.parametrize("rows", [2, 5], ids=["fewer", "more"])
    @pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e8])
    def test_of_rows(self, scale, rows) -> None:
        """Of a table with fewer rows than lookups, and with more."""
        half, tiny = self._cancelling(scale, 16, 1, 64)
        updates = np.concatenate([half, 3 * half, -4 * half + tiny], axis=1)
        records = table_records.RowRecords(
            tf.zeros([16, 3], tf.int32), tf.constant(updates), rows=rows
        )

        self._assert_bounded(records)

    @pytest.mark.parametrize("static_shapes", [True, False])
    @pytest.mark.parametrize("rows", [3, 2000], ids=["fewer", "more"])
    @pytest.mark.parametrize(
        "batch", [16, 512, pytest.param(4096, marks=pytest.mark.full)]
    )
    def test_of_rows_in_a_large_batch(self, batch, rows, static_shapes) -> None:
        """A record moves the float32 sum by the clip, up to its rounding.

        That is below `batch` units of rounding here; `batch` times as much is
        proven.
        """
        records = table_records.RowRecords(
            tf.zeros([batch, 1024], tf.int32),
            tf.constant(self._updates(batch)),
            rows=rows,
            static_shapes=static_shapes,
        )
        norms = np.sqrt(records.squared_norms().numpy())

        assert self._moved(records, norms) <= 1 + 1e-6 + batch * 2.0**-24

    @pytest.mark.parametrize("batch", [16, 512])
    def test_the_check_of_a_batch_can_fail(self, batch, monkeypatch) -> None:
        """Control: all updates of the batch are added in one go."""
        records = table_records.RowRecords(
            tf.zeros([batch, 1024], tf.int32),
            tf.constant(self._updates(batch)),
            rows=3,
        )
        norms = np.sqrt(records.squared_norms().numpy())
        monkeypatch.setattr(
            table_records.RowRecords,
            "_by_row",
            lambda self: (self.ids, self.updates),
        )

        assert self._moved(records, norms) > 1 + 1e-2

    @pytest.mark.parametrize("batch", [4096, 65536])
    def test_of_built_gradients_in_a_large_batch(self, batch) -> None:
        """Those of each half agree, and cancel those of the other half."""
        gradients = np.random.default_rng(0).normal(size=(2, batch // 2, 32))
        gradients += np.array([2, -2]).reshape([2, 1, 1])
        records = records_lib.MaterializedRecords(
            tf.constant(gradients.reshape([batch, 32]).astype("float32"))
        )
        norms = np.sqrt(records.squared_norms().numpy())

        assert self._moved(records, norms) <= 1 + 1e-6 + batch * 2.0**-24

    def _updates(self, batch):
        """Updates `[batch, 1024, 4]` that cancel up to a small residue."""
        generator = np.random.default_rng(1)
        half = generator.normal(size=(batch, 512, 4)).astype("float32")
        residue = 3e-5 * generator.normal(size=(batch, 1, 4))
        updates = np.concatenate([half, -half], axis=1)
        updates[:, :1] += residue.astype("float32")
        return updates

    def _moved(self, records, norms):
        """How far one of the records moves the sum of all, in clips."""
        weights = (1 / norms).astype("float32")
        total = records.weighted_sum(tf.constant(weights)).numpy()
        moved = []
        for record in (0, len(weights) // 2, len(weights) - 1):
            others = weights.copy()
            others[record] = 0
            without = records.weighted_sum(tf.constant(others)).numpy()
            moved.append(total.astype("float64") - without)
        return max(map(np.linalg.norm, moved))

    @pytest.mark.parametrize("batch", [16, 512, 4096])
    def test_of_outer_products_in_a_large_batch(
        self, batch, monkeypatch
    ) -> None:
        """The least norm grows with the batch, so that clips stay exact."""
        monkeypatch.setattr(cost_model, "instantiates", lambda *_: False)
        generator = np.random.default_rng(2)
        half = generator.normal(size=(2, batch, 1, 32, 8)).astype("float32")
        left, right = (np.concatenate([e, e], axis=2) for e in half)
        right[:, :, 32:] *= -1
        # Large enough to be above the least norm.
        left[:, :, :1] += 4 * generator.normal(size=(batch, 1, 1, 8))
        records = outer_product_records.OuterProductRecords(
            tf.constant(left),
            tf.constant(right),
            outer_product_records.Arrangement((8, 8), (0, 1), (8, 8)),
        )

        norms = np.sqrt(records.squared_norms().numpy())

        assert self._moved(records, norms) <= 1 + self.SLACK

    def test_the_least_norm_grows_with_the_batch(self) -> None:
        """It leaves terms alone that are in unrelated directions."""
        for batch, terms in ((64, 4096), (512, 1024), (4096, 512)):
            least = outer_product_records.least_square(batch, terms, tf.float32)
            # One rounding of a partial sum is at most a 64th of the clip.
            assert batch * 2.0**-24 / least**0.5 <= 1 / 64
            assert least <= 1 / terms

    @pytest.mark.parametrize("scale", [1.0, 1e2, 1e4])
    def test_of_sums(self, scale) -> None:
        half, tiny = self._cancelling(scale, 16, 64)
        rows = table_records.RowRecords(
            tf.zeros([16, 1], tf.int32), tf.constant(half[:, None]), rows=1
        )
        dense = records_lib.MaterializedRecords((tiny - half)[:, None])

        self._assert_bounded(records_lib.summed([rows, dense]))

    def test_the_check_above_can_fail(self) -> None:
        """Control: the plain ghost norm lets such records through."""
        left, tiny = self._cancelling(1e4, 16, 1, 1, 64)
        right, _ = self._cancelling(1e4, 16, 1, 1, 64)

        class Plain(outer_product_records.OuterProductRecords):
            instantiates = False

            def squared_norms(self):
                lefts = tf.matmul(self.left, self.left, transpose_b=True)
                rights = tf.matmul(self.right, self.right, transpose_b=True)
                return tf.reduce_sum(lefts * rights, axis=[1, 2, 3])

        plain = Plain(
            tf.constant(np.concatenate([left, left + tiny], axis=2)),
            tf.constant(np.concatenate([right, -right], axis=2)),
            outer_product_records.Arrangement((64, 64), (0, 1), (64, 64)),
        )

        with (
            pytest.raises(AssertionError),
            np.errstate(invalid="ignore", divide="ignore"),
        ):
            self._assert_bounded(plain)
