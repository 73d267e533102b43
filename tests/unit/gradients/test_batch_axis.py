"""Rows that only happen to be as many as the examples are not taken for them.

The attack: each record selects one of its steps while the model is checked.
Then one record selects all of its steps, and the others none. If rows were
taken for examples, each step of that record would be clipped alone.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import self_check
from keras_dp.gradients.capture.row_lengths import RowLengths
from keras_dp.gradients.engine import GradientEngine
from tests.models import TimeMajor
from tests.slow_loop import BATCH, assert_model_agrees, compiled, losses_of

STEPS = BATCH
MODES = ["graph", "eager", "jit"]


def ids_of(*, record=None):
    """Which steps are selected: one of each record, or all of one record."""
    ids = np.zeros((BATCH, STEPS), "int32")
    if record is None:
        ids[np.arange(BATCH), np.arange(BATCH)[::-1]] = 1
    else:
        ids[record] = 1
    return tf.constant(ids)


def steps_of(seed=0, *, equal=False):
    """Steps `[BATCH, STEPS, 4]`, those of a record equal or not."""
    generator = np.random.default_rng(seed)
    shape = (BATCH, 1, 4) if equal else (BATCH, STEPS, 4)
    x = generator.normal(size=shape).astype("float32")
    return tf.constant(np.broadcast_to(x, (BATCH, STEPS, 4)))


def _with_shape_set(x, ids):
    rows = tf.boolean_mask(x, ids == 1)
    rows.set_shape([BATCH, 4])
    return rows


SELECT = {
    "boolean_mask": lambda x, ids: tf.boolean_mask(x, ids == 1),
    "gather_nd": lambda x, ids: tf.gather_nd(x, tf.where(ids == 1)),
    "partition": lambda x, ids: tf.dynamic_partition(x, ids, 2)[1],
    "ragged": lambda x, ids: tf.ragged.boolean_mask(x, ids == 1).flat_values,
    "repeat": lambda x, ids: tf.repeat(
        x[:, 0], tf.reduce_sum(ids, axis=1), axis=0
    ),
    "reshape": lambda x, ids: tf.reshape(
        tf.boolean_mask(x, ids == 1), tf.shape(x[:, 0])
    ),
    "reshape_twice": lambda x, ids: tf.reshape(
        tf.reshape(tf.boolean_mask(x, ids == 1), [2, -1, 4]), [BATCH, 4]
    ),
    "ensure_shape": lambda x, ids: tf.ensure_shape(
        tf.boolean_mask(x, ids == 1), [BATCH, 4]
    ),
    "set_shape": _with_shape_set,
}


class Selects(layers.Layer):
    def __init__(self, how):
        super().__init__()
        self.how = SELECT[how]

    def call(self, x, ids):
        return self.how(x, ids)

    def compute_output_spec(self, x, ids):
        return keras.KerasTensor((None, x.shape[-1]))


def selecting(how):
    x = keras.Input((STEPS, 4))
    ids = keras.Input((STEPS,), dtype="int32")
    outputs = layers.Dense(3, name="on_selected")(Selects(how)(x, ids))
    return keras.Model([x, ids], outputs)


def clipped_sum(engine, data, mode, *, of=None):
    """The norm of the sum of clipped gradients, of one example or of all."""

    def total(data):
        records = engine.gradients(data, losses_of, BATCH).records
        with engine.computing():
            norms = tf.sqrt(tf.add_n([r.squared_norms() for r in records]))
            weights = tf.math.divide_no_nan(1.0, norms)
            if of is not None:
                weights *= tf.one_hot(of, BATCH)
            return [record.weighted_sum(weights) for record in records]

    return float(tf.linalg.global_norm(compiled(total, mode)(data)))


def is_checked(engine, data, mode):
    eagerly = mode == "eager"
    return self_check(engine, data, losses_of, BATCH, eagerly=eagerly)


class TestSelectedRows:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        "how",
        [
            "boolean_mask",
            "reshape",
            *(
                pytest.param(how, marks=pytest.mark.full)
                for how in SELECT
                if how not in {"boolean_mask", "reshape"}
            ),
        ],
    )
    def test_are_refused(self, how, mode) -> None:
        engine = GradientEngine(selecting(how), jit_compile=mode == "jit")

        with pytest.raises(
            UnsupportedLayerError, match=r"on_selected.*follows"
        ):
            compiled(
                lambda data: engine.gradients(data, losses_of, BATCH).losses,
                mode,
            )([steps_of(), ids_of()])

    @pytest.mark.parametrize("mode", ["graph", "eager"])
    def test_would_be_clipped_one_by_one(self, mode, monkeypatch) -> None:
        """Control: where a length is guessed, one record fills the batch."""
        monkeypatch.setattr(RowLengths, "follows_from_data", lambda *_: False)
        engine = GradientEngine(selecting("ensure_shape"))

        assert is_checked(engine, [steps_of(), ids_of()], mode)

        data = [steps_of(1, equal=True), ids_of(record=2)]
        # All steps of the record are equal, and so are their gradients.
        assert clipped_sum(engine, data, mode) > 0.99 * STEPS

    def test_are_refused_as_outputs_of_the_model(self) -> None:
        x = keras.Input((STEPS, 4))
        ids = keras.Input((STEPS,), dtype="int32")
        outputs = Selects("reshape")(layers.Dense(4)(x), ids)
        engine = GradientEngine(keras.Model([x, ids], outputs))

        with pytest.raises(UnsupportedLayerError, match=r"model.*outputs"):
            engine.gradients([steps_of(), ids_of()], losses_of, BATCH)

    def test_may_be_texts_only_if_all_texts_are_there(self) -> None:
        def model(keep):
            text = keras.Input((), dtype="string")
            split = layers.TextVectorization(
                vocabulary=["a", "b"], output_mode="multi_hot"
            )
            kept = layers.Lambda(keep, output_shape=(None,), dtype="string")
            return keras.Model(text, layers.Dense(2)(split(kept(text))))

        texts = tf.constant(["a", "b", "a b", "c"])
        for keep in (
            lambda text: tf.boolean_mask(text, text != "c"),
            lambda text: tf.ensure_shape(tf.boolean_mask(text, text != ""), 4),
        ):
            engine = GradientEngine(model(keep))
            with pytest.raises(UnsupportedLayerError, match="follows from"):
                engine.gradients(texts, losses_of, 4)

        engine = GradientEngine(model(tf.strings.lower))
        assert len(engine.gradients(texts, losses_of, 4).records) == 2


class PoolsSelected(layers.Layer):
    """Sums what a layer inside makes of the selected steps of each example."""

    def __init__(self, dense):
        super().__init__()
        self.dense = dense

    def build(self, shape, *_):
        self.dense.build((None, shape[-1]))

    def call(self, x, ids):
        places = tf.where(ids == 1)
        made = self.dense(tf.gather_nd(x, places))
        return tf.scatter_nd(places[:, :1], made, [tf.shape(x)[0], 3])

    def compute_output_spec(self, x, ids):
        return keras.KerasTensor((x.shape[0], 3))


class TestSelectedInsideOfALayer:
    @pytest.mark.parametrize(
        "mode",
        ["eager", "graph", pytest.param("jit", marks=pytest.mark.nightly)],
    )
    def test_are_trained_one_example_at_a_time(self, mode) -> None:
        """An adversary then chooses batches; no record has a second clip."""
        x = keras.Input((STEPS, 4))
        ids = keras.Input((STEPS,), dtype="int32")
        pooled = PoolsSelected(layers.Dense(3, "tanh"))(x, ids)
        model = keras.Model([x, ids], layers.Dense(2)(pooled))
        engine = GradientEngine(model, jit_compile=mode == "jit")
        assert is_checked(engine, [steps_of(), ids_of()], mode)

        for seed, record in enumerate(range(0, BATCH, 2)):
            data = [steps_of(seed, equal=True), ids_of(record=record)]
            assert_model_agrees(model, data, mode, engine=engine)
            # 1, up to float32 rounding.
            assert clipped_sum(engine, data, mode, of=record) <= 1 + 1e-5


class Positions(layers.Layer):
    """Adds a table of positions, which all examples share."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(STEPS, 4, name="positions")

    def build(self, shape):
        self.table.build()

    def call(self, x):
        return x + self.table(keras.ops.arange(STEPS))


class TestAnAxisAsLongAsTheBatch:
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("layer", [Positions, TimeMajor])
    def test_is_not_the_batch_inside_of_a_layer(self, layer, mode) -> None:
        x = keras.Input((STEPS, 4))
        model = keras.Model(x, layers.Dense(2)(layer()(x)))
        engine = GradientEngine(model, jit_compile=mode == "jit")

        assert is_checked(engine, steps_of(), mode)

        assert_model_agrees(model, steps_of(), mode, engine=engine)

    @pytest.mark.parametrize("mode", ["graph", "eager"])
    def test_is_refused_by_name(self, mode) -> None:
        x = keras.Input((STEPS, 4))
        steps = keras.ops.transpose(x, (1, 0, 2))
        steps = layers.Dense(3, name="on_steps")(steps)
        model = keras.Model(x, keras.ops.transpose(steps, (1, 0, 2)))

        with pytest.raises(
            UnsupportedLayerError,
            match=rf"on_steps.*shape=\({STEPS}, {BATCH + 1}, 4\)",
        ):
            is_checked(GradientEngine(model), steps_of(), mode)


def test_a_model_that_only_runs_eagerly_sees_one_example_at_a_time() -> None:
    """Whatever its Python does with a batch: here, a sum over it."""

    class Reads(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def build(self, shape):
            self.dense.build(shape)

        def call(self, x):
            return self.dense(x if float(tf.reduce_sum(x)) > 0 else -x)

    model, inputs = Reads(), steps_of(1)[:, 0]
    model.build((BATCH, 4))

    found = GradientEngine(model).gradients(inputs, losses_of, BATCH)

    alone = [
        GradientEngine(model).gradients(inputs[row : row + 1], losses_of, 1)
        for row in range(BATCH)
    ]
    np.testing.assert_allclose(
        found.records[0].squared_norms(),
        [float(each.records[0].squared_norms()[0]) for each in alone],
        rtol=1e-5,
    )
    np.testing.assert_allclose(
        found.losses, [float(each.losses[0]) for each in alone], rtol=1e-5
    )
    signs = {float(x) > 0 for x in tf.reduce_sum(inputs, axis=1)}
    assert signs == {True, False}
