"""Data as users of Keras have it trains, or is refused with the remedy."""

import re

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.errors import GradientCheckError, PrivateTrainingError
from keras_dp.sampling import PoissonBatches
from tests.private_models import private_of
from tests.slow_loop import flat

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
RECORDS = 60


def data():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, 4)).astype("float32")
    return x, generator.integers(0, 3, size=RECORDS)


def compiled(model=None, stddev=0.0, loss=LOSS, **options):
    if model is None:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    return private_of(
        model,
        keras_dp.GaussianAverageQuery(1.0, stddev, 10),
        rate=0.5,
        checks=2,
        loss=loss,
        **options,
    )


def samples(records, probability=1.0, **options):
    return PoissonBatches(records, sampling_probability=probability, **options)


def assert_equal_weights(one, two):
    # float32 rounding of weights of order 1.
    np.testing.assert_allclose(flat(one), flat(two), atol=2e-6)


class TestText:
    def test_may_be_split_inside_the_model(self) -> None:
        """The length of the batch is unknown after `TextVectorization`."""
        words = np.array([["red green"], ["green"], ["blue red"]] * 20)
        vectorize = layers.TextVectorization(
            vocabulary=["red", "green"], output_mode="multi_hot"
        )
        inside, before = (
            compiled(keras.Sequential([*first, layers.Dense(3)]))
            for first in (
                [keras.Input((1,), dtype="string"), vectorize],
                [keras.Input((3,))],
            )
        )
        before.set_weights(inside.get_weights())
        ids = vectorize(words).numpy().astype("float32")

        inside.fit(samples((words, data()[1])), verbose=0)
        before.fit(samples((ids, data()[1])), verbose=0)

        assert_equal_weights(inside, before)


class TestWeights:
    @pytest.mark.parametrize("kind", ["arrays", "data set", "sampler"])
    def test_of_classes_that_are_left_out_are_1(self, kind) -> None:
        x, y = data()
        given = {
            "arrays": (x, y),
            "data set": (tf.data.Dataset.from_tensor_slices((x, y)).batch(60),),
            "sampler": (samples((x, y)),),
        }[kind]
        found, expected = compiled(), compiled()
        options = {"verbose": 0, "shuffle": False}
        if kind == "arrays":
            options["batch_size"] = RECORDS

        found.fit(*given, class_weight={0: 3.0, 1: 2.0}, **options)
        expected.fit(samples((x, y, np.array([3.0, 2.0, 1.0])[y])), verbose=0)

        assert_equal_weights(found, expected)

    @pytest.mark.parametrize(
        "wrong",
        [[1.0, 2.0], (1.0, 2.0), np.ones(2), "balanced", {"a": 1.0}, {0.5: 1}],
        ids=["list", "tuple", "array", "balanced", "text", "half"],
    )
    def test_of_classes_have_whole_labels(self, wrong) -> None:
        private = compiled()

        with pytest.raises(TypeError, match="`class_weight` must map integer"):
            private.fit(samples(data()), verbose=0, class_weight=wrong)

        assert private.optimizer.ledger.runs == ()

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("name", "shape"),
        [
            ("records", ()),
            ("columns", (1,)),
            ("steps", (5,)),
            ("steps in a column", (5, 1)),
        ],
    )
    def test_are_of_records_or_of_entries(self, name, shape) -> None:
        """Whatever they are of: the loss of a record is a mean over steps."""
        x, y = data()
        steps = np.stack([y] * 5, axis=1)
        weights = np.linspace(0, 2, RECORDS).reshape(-1, *[1] * len(shape))
        found, expected = (of_steps(cross_entropy()) for _ in range(2))

        given = np.broadcast_to(weights, (RECORDS, *shape))
        found.fit(samples((x, steps, given)), verbose=0)
        given = np.broadcast_to(weights.reshape(-1, 1), (RECORDS, 5))
        expected.fit(samples((x, steps, given)), verbose=0)

        assert_equal_weights(found, expected)

    @pytest.mark.parametrize("shape", [(3,), (5, 3), (1, 5)])
    def test_of_anything_else_are_refused(self, shape) -> None:
        x, y = data()
        steps = np.stack([y] * 5, axis=1)
        private = of_steps(cross_entropy())

        with pytest.raises(ValueError, match=r"`sample_weight`.*\(64, 5\)"):
            private.fit(
                samples((x, steps, np.ones((RECORDS, *shape)))), verbose=0
            )

        assert private.optimizer.ledger.runs == ()

    @pytest.mark.parametrize("kind", ["arrays", "sampler"])
    @pytest.mark.parametrize("missing", [{"one"}, {"steps"}])
    def test_of_each_output_are_needed(self, kind, missing) -> None:
        x, y = data()
        targets = {"one": y, "steps": np.stack([y] * 5, axis=1)}
        weights = {k: np.ones(RECORDS) for k in targets.keys() - missing}
        private = of_steps({name: cross_entropy() for name in targets})

        given, options = (samples((x, targets, weights)),), {}
        if kind == "arrays":
            given, options = (x, targets), {"sample_weight": weights}

        with pytest.raises(ValueError, match="`sample_weight` must be one arr"):
            private.fit(*given, **options, verbose=0)

        assert private.optimizer.ledger.runs == ()


def cross_entropy(**options):
    return keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, **options
    )


def of_steps(loss):
    """A private model with five labels a record, or one and five."""
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    steps = layers.Reshape((5, 3), name="steps")(layers.Dense(15)(x))
    outputs = steps
    if isinstance(loss, dict):
        outputs = {"one": layers.Dense(3, name="one")(x), "steps": steps}
    return compiled(keras.Model(x, outputs), loss=loss)


class OwnCall(keras.losses.Loss):
    """Answers a number for each step, whatever its reduction is."""

    def __call__(self, y_true, y_pred, sample_weight=None):
        return keras.losses.sparse_categorical_crossentropy(
            y_true, y_pred, from_logits=True
        )


class TestALossThatIsNotReduced:
    """It trains as it does by default: by the mean of a record's entries."""

    @pytest.mark.parametrize(
        "loss",
        [
            cross_entropy(reduction="none"),
            cross_entropy(reduction=None),
            OwnCall(),
        ],
        ids=["none", "None", "own call"],
    )
    @pytest.mark.parametrize("steps", [1, 5])
    def test_is_the_mean_of_a_record(self, loss, steps) -> None:
        x, y = data()
        if steps == 5:
            y = np.stack([(y + k) % 3 for k in range(5)], axis=1)
        make = compiled if steps == 1 else of_steps
        found, expected = make(loss=loss), make(loss=cross_entropy())

        for each in (found, expected):
            each.fit(samples((x, y)), epochs=2, verbose=0)

        assert_equal_weights(found, expected)


def ignoring(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(
        y_true, y_pred, from_logits=True, ignore_class=255
    )


def ignoring_and_coupling(y_true, y_pred):
    losses = ignoring(y_true, y_pred)
    coupled = losses * keras.ops.max(losses)
    coupled._keras_mask = losses._keras_mask
    return coupled


class TestAnIgnoredClass:
    @pytest.mark.parametrize(
        "loss",
        [
            cross_entropy(ignore_class=255),
            cross_entropy(ignore_class=255, reduction="none"),
            ignoring,
        ],
        ids=["loss", "not reduced", "function"],
    )
    @pytest.mark.parametrize("seed", range(3))
    def test_trains_whichever_steps_it_is_in(self, loss, seed) -> None:
        """The loss of a record is the mean of the steps that it keeps."""
        generator = np.random.default_rng(seed)
        x, y = data()
        y = np.stack([(y + k) % 3 for k in range(5)], axis=1)
        weights = generator.random(y.shape) < generator.random((RECORDS, 1))
        weights[0], weights[1] = True, False
        found, expected = of_steps(loss), of_steps(cross_entropy())
        # The mean of all five, weighed by five over those that are kept.
        scale = 5 / np.maximum(weights.sum(axis=1, keepdims=True), 1)

        found.fit(samples((x, np.where(weights, y, 255))), verbose=0)
        expected.fit(samples((x, y, weights * scale)), verbose=0)

        assert_equal_weights(found, expected)

    def test_hides_no_coupling(self) -> None:
        """Control: what couples the records that are kept is refused."""
        x, y = data()
        y = np.stack([y, y, y, y, np.full_like(y, 255)], axis=1)

        with pytest.raises(GradientCheckError, match="mean or sum over ex"):
            of_steps(ignoring_and_coupling).fit(samples((x, y)), verbose=0)


RAGGED = tf.ragged.constant([[1.0], [2.0, 3.0]] * (RECORDS // 2))
SPARSE = tf.sparse.from_dense(data()[0])
OF_SCIPY = scipy.sparse.csr_matrix(data()[0])
UNUSUAL = {
    "ragged": (RAGGED, r"dense.*to_tensor"),
    "sparse": (SPARSE, r"dense.*tf\.sparse\.to_dense"),
    "csr": (OF_SCIPY, r"dense.*toarray"),
    "coo": (OF_SCIPY.tocoo(), r"dense.*toarray"),
    "list": (data()[0].tolist(), r"array.*np\.asarray"),
}
SECRET = str(float(data()[0][0, 0]))[:6]


def slices(given):
    return tf.data.Dataset.from_tensor_slices((given, data()[1]))


# What is named, and how the data reach it.
TAKEN = {
    "x": lambda private, given: private.fit(given, data()[1], verbose=0),
    "y": lambda private, given: private.fit(data()[0], given, verbose=0),
    "data": lambda _, given: samples((given, data()[1])),
    "x of a data set": lambda private, given: private.fit(
        slices(given).batch(10), verbose=0
    ),
    "dataset": lambda _, given: PoissonBatches.from_dataset(
        slices(given), sampling_probability=0.5
    ),
}


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        (kind, by)
        for kind in UNUSUAL
        for by in TAKEN
        # A data set holds tensors alone.
        if "set" not in by or kind in ("ragged", "sparse")
    ],
)
def test_data_that_are_not_dense_are_refused(kind, by) -> None:
    private, (given, words) = compiled(), UNUSUAL[kind]

    with pytest.raises((TypeError, ValueError)) as error:
        TAKEN[by](private, given)

    assert re.match(f"`{by.split()[0]}` must be .*{words}", str(error.value))
    assert SECRET not in str(error.value)
    assert "2." not in str(error.value)
    assert private.optimizer.ledger.runs == ()


@pytest.mark.parametrize(
    ("inputs", "error", "rule"),
    [
        (OF_SCIPY[:10], ValueError, "dense"),
        (data()[0][:10].tolist(), TypeError, "an array"),
    ],
    ids=["sparse", "lists"],
)
def test_generators_of_such_batches_show_none_of_it(
    inputs, error, rule
) -> None:
    def batches():
        while True:
            yield inputs, data()[1][:10]

    private = compiled()
    with pytest.raises(error, match=f"`x` must be {rule}") as caught:
        private.fit(batches(), steps_per_epoch=2, shuffle=False, verbose=0)
    assert SECRET not in str(caught.value)
    assert private.optimizer.ledger.runs == ()


def test_a_generator_that_goes_on_with_text_shows_none_of_it() -> None:
    x, y = data()

    def batches():
        yield x[:10], y[:10]
        yield x[:10], y[:10]
        while True:
            yield np.full((10, 4), "secret"), y[:10]

    with pytest.raises(ValueError, match="batches of one structure") as error:
        compiled().fit(batches(), steps_per_epoch=9, shuffle=False, verbose=0)

    assert "secret" not in str(error.value)


def test_ids_among_floats_stay_ids_in_the_self_check() -> None:
    rows = keras.Input((3,))
    ids = keras.layers.Lambda(lambda x: keras.ops.cast(x[:, 0], "int32"))(rows)
    both = layers.concatenate([layers.Embedding(5, 2)(ids), rows])
    private = compiled(keras.Model(rows, layers.Dense(3)(both)))
    x, y = data()
    x = np.column_stack([np.arange(RECORDS) % 5, x[:, :2]]).astype("float32")

    private.fit(samples((x, y)), verbose=0)

    assert len(private.optimizer.ledger) > 0


def test_masks_of_floats_are_there_in_the_self_check() -> None:
    """Without a masked step, nobody sees who counts those of all examples."""

    class MeanOfBatch(layers.Layer):
        def call(self, x, mask=None):
            kept = keras.ops.cast(mask, x.dtype)[..., None]
            return keras.ops.sum(x * kept, axis=1) / keras.ops.mean(kept)

        def compute_mask(self, inputs, mask=None):
            return None

    generator = np.random.default_rng(0)
    x = generator.normal(size=(RECORDS, 5, 2)).astype("float32")
    x[np.arange(5) >= generator.integers(1, 6, size=(RECORDS, 1))] = 0
    stack = [layers.Masking(), MeanOfBatch(), layers.Dense(3)]
    private = compiled(keras.Sequential([keras.Input((5, 2)), *stack]))

    with pytest.raises(GradientCheckError, match="of class MeanOfBatch"):
        private.fit(samples((x, data()[1])), verbose=0)


class TestRecordsThatAreNotFinite:
    @pytest.mark.parametrize("part", [0, 1])
    def test_all_of_them_end_before_a_round(self, part) -> None:
        x, y = data()
        records = [x, y.astype("float32")[:, None]]
        records[part] = np.full_like(records[part], np.nan)
        private = compiled(
            loss="mse", model=keras.Sequential([layers.Dense(1)])
        )

        with pytest.raises(PrivateTrainingError, match="that are finite"):
            private.fit(samples(tuple(records)), verbose=0)

        assert len(private.optimizer.ledger) == 0

    def test_all_of_them_train_where_a_layer_fills_them_in(self) -> None:
        class Filled(layers.Layer):
            def call(self, x):
                return keras.ops.nan_to_num(x)

        x, y = data()
        x[:, 0] = np.nan
        private = compiled(
            keras.Sequential([keras.Input((4,)), Filled(), layers.Dense(3)])
        )

        private.fit(samples((x, y)), verbose=0)

        assert len(private.optimizer.ledger) == 1
