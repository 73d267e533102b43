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
from keras_dp.gradients import self_check
from keras_dp.sampling import PoissonBatches
from keras_dp.training.step import engine_check
from tests.private_models import private_of

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
    for a, b in zip(one.get_weights(), two.get_weights(), strict=True):
        # float32 rounding of weights of order 1.
        np.testing.assert_allclose(a, b, atol=2e-6)


def messages(caplog, part):
    return [r.message for r in caplog.records if part in r.message]


class TestText:
    @pytest.mark.full
    @pytest.mark.parametrize("dtype", ["U", "S", object])
    def test_reaches_a_lookup(self, dtype) -> None:
        words = np.array(["red", "green", "blue"] * 20, dtype)[:, None]
        text = keras.Input((1,), dtype="string")
        ids = layers.StringLookup(vocabulary=["red", "green"])(text)
        embedded = layers.Flatten()(layers.Embedding(3, 2)(ids))
        private = compiled(keras.Model(text, layers.Dense(3)(embedded)))

        before = private.model.get_weights()[0]
        private.fit(samples((words, data()[1])), verbose=0)

        moved = (private.model.get_weights()[0] != before).any(axis=1)
        assert moved.all()  # Each of the two words, and the one not known.

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

    @pytest.mark.full
    def test_is_prepared_by_a_map(self) -> None:
        words = np.array(["red green", "green", "blue red"] * 20)
        vectorize = layers.TextVectorization(
            vocabulary=["red", "green"], output_sequence_length=3
        )
        private = compiled(
            keras.Sequential(
                [layers.Embedding(4, 2), layers.Flatten(), layers.Dense(3)]
            )
        )
        records = samples(
            (words, data()[1]), map=lambda text, y: (vectorize(text), y)
        )

        private.fit(records, verbose=0)

        # Rows in other batches differ by the rounding of float32.
        np.testing.assert_allclose(
            private.predict(records, verbose=0),
            private.predict(vectorize(words), verbose=0),
            rtol=1e-5,
            atol=1e-7,
        )


class TestWeights:
    @pytest.mark.full
    def test_of_classes_are_those_of_examples(self) -> None:
        x, y = data()
        by_class, by_example = compiled(), compiled()
        weights = np.where(y == 2, 3.0, np.where(y == 1, 0.0, 1.0))

        by_class.fit(samples((x, y)), verbose=0, class_weight={1: 0.0, 2: 3.0})
        by_example.fit(samples((x, y, weights)), verbose=0)

        assert_equal_weights(by_class.model, by_example.model)

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("as_given", "loss"),
        [
            (lambda y: y, LOSS),
            (lambda y: y[:, None], LOSS),
            (lambda y: np.eye(3)[y], "mse"),
        ],
        ids=["labels", "column", "one-hot"],
    )
    def test_of_classes_on_a_batch_are_those_of_keras(
        self, as_given, loss
    ) -> None:
        x, y = data()
        own, plain = compiled(loss=loss), compiled().model
        plain.compile("sgd", loss)

        found, expected = (
            each.train_on_batch(x, as_given(y), class_weight={2: 3.0})
            for each in (own, plain)
        )

        np.testing.assert_allclose(found, expected, rtol=1e-5)

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

    def test_of_classes_and_of_examples_are_one_too_many(self) -> None:
        x, y = data()

        with pytest.raises(ValueError, match="`class_weight` must"):
            compiled().fit(
                samples((x, y, np.ones(RECORDS))),
                verbose=0,
                class_weight={1: 2.0},
            )


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

    @pytest.mark.full
    def test_is_so_for_each_of_several(self) -> None:
        x, y = data()
        targets = {"one": y, "steps": np.stack([y] * 5, axis=1)}
        found, expected = (
            of_steps({name: cross_entropy(**options) for name in targets})
            for options in ({"reduction": "none"}, {})
        )

        for each in (found, expected):
            each.fit(samples((x, targets)), verbose=0)

        assert_equal_weights(found, expected)

    def test_stays_what_it_is_for_others(self) -> None:
        loss = cross_entropy(reduction="none")

        compiled(loss=loss).fit(samples(data()), verbose=0)

        assert loss.reduction == "none"


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


@pytest.mark.parametrize("kind", UNUSUAL)
class TestDataThatIsNotDense:
    def check(self, kind, name, run) -> None:
        private = compiled()

        with pytest.raises((TypeError, ValueError)) as error:
            run(private)

        assert re.match(
            f"`{name}` must be .*{UNUSUAL[kind][1]}", str(error.value)
        )
        assert SECRET not in str(error.value)
        assert "2." not in str(error.value)
        assert private.optimizer.ledger.runs == ()

    def test_is_refused_by_fit(self, kind) -> None:
        given, (x, y) = UNUSUAL[kind][0], data()

        self.check(kind, "x", lambda m: m.fit(given, y, verbose=0))
        self.check(kind, "y", lambda m: m.fit(x, given, verbose=0))

    def test_is_refused_by_train_on_batch(self, kind) -> None:
        given, (x, y) = UNUSUAL[kind][0], data()

        self.check(kind, "x", lambda m: m.train_on_batch(given, y))
        self.check(kind, "y", lambda m: m.train_on_batch(x, given))

    def test_is_refused_by_samplers(self, kind) -> None:
        given, (_, y) = UNUSUAL[kind][0], data()

        self.check(kind, "data", lambda _: samples((given, y)))
        self.check(kind, "data", lambda _: samples(given))

    def test_is_refused_in_data_sets(self, kind) -> None:
        if kind not in ("ragged", "sparse"):
            pytest.skip("A data set cannot hold it.")
        slices = tf.data.Dataset.from_tensor_slices(
            (UNUSUAL[kind][0], data()[1])
        )

        self.check(kind, "x", lambda m: m.fit(slices.batch(10), verbose=0))
        self.check(
            kind,
            "dataset",
            lambda _: PoissonBatches.from_dataset(
                slices, sampling_probability=0.5
            ),
        )


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


def test_a_data_set_of_unknown_rank_is_not_called_ragged() -> None:
    def batches():
        return iter([data()])

    unknown = tf.data.Dataset.from_generator(
        batches, output_types=(tf.float32, tf.int64)
    )

    with pytest.raises(ValueError, match=r"known rank.*tf\.ensure_shape"):
        PoissonBatches.from_dataset(unknown, sampling_probability=0.5)


class TestEvaluation:
    @pytest.mark.parametrize("physical", [7, 64])
    def test_takes_each_record_once_in_order(self, physical) -> None:
        x, y = data()
        private = compiled(metrics=["accuracy"])
        batches = samples((x, y), 0.1, physical_batch_size=physical)

        # float32 rounding of sums over other batches.
        np.testing.assert_allclose(
            private.evaluate(batches, verbose=0),
            private.evaluate(x, y, verbose=0),
            rtol=1e-5,
        )
        np.testing.assert_allclose(
            private.predict(batches, verbose=0),
            private.predict(x, verbose=0),
            rtol=1e-5,
        )
        assert len(private.optimizer.ledger) == 0

    @pytest.mark.full
    def test_of_validation_data_is_the_same(self) -> None:
        x, y = data()
        private = compiled()

        history = private.fit(
            samples((x, y)), validation_data=samples((x, y)), verbose=0
        ).history

        loss = private.evaluate(x, y, verbose=0)
        np.testing.assert_allclose(history["val_loss"][0], loss, rtol=1e-5)

    def test_refuses_what_the_records_hold(self) -> None:
        x, y = data()

        with pytest.raises(ValueError, match="`y` must not be given"):
            compiled().evaluate(samples((x, y)), y)


class TestTheSampler:
    def test_has_the_length_of_an_epoch(self) -> None:
        assert len(samples(data(), 0.1)) == 10
        assert len(samples(data(), 0.1, rounds_per_epoch=3)) == 3

    @pytest.mark.parametrize("records", [data()[0], {"x": data()[0]}])
    def test_says_where_targets_are_missing(self, records) -> None:
        with pytest.raises(ValueError, match=r"PoissonBatches\(\(x, x\)"):
            compiled().fit(samples(records), verbose=0)


def test_steps_per_execution_is_a_number() -> None:
    with pytest.raises(ValueError, match="`steps_per_execution` must"):
        compiled(steps_per_execution=0)


class TestBatchesThatNobodyDrew:
    @pytest.mark.full
    @pytest.mark.parametrize("kind", ["arrays", "dataset"])
    def test_are_named_once(self, kind, caplog) -> None:
        private = compiled(stddev=2.0)
        given = data()
        if kind == "dataset":
            given = (tf.data.Dataset.from_tensor_slices(given).batch(10),)

        with caplog.at_level("WARNING", logger="absl"):
            for _ in range(2):
                private.fit(*given, shuffle=False, verbose=0)

        (message,) = messages(caplog, "did not draw")
        assert "PoissonBatches" in message

    @pytest.mark.full
    def test_are_not_where_no_record_is_left_out(self, caplog) -> None:
        with caplog.at_level("WARNING", logger="absl"):
            compiled(stddev=2.0).fit(*data(), batch_size=RECORDS, verbose=0)
            compiled(stddev=2.0).train_on_batch(*data())

        assert not messages(caplog, "did not draw")


@pytest.fixture
def checked(monkeypatch):
    """Counts self-checks."""
    found = []
    monkeypatch.setattr(
        engine_check,
        "self_check",
        lambda *args, **options: (
            found.append(1) or self_check(*args, **options)
        ),
    )
    return found


def test_rows_of_padding_do_not_repeat_the_self_check(checked) -> None:
    """A mean over no tokens is not finite, and so is its gradient."""
    ids = keras.Input((5,), dtype="int32")
    kept = keras.ops.cast(ids != 0, "float32")[..., None]
    hidden = kept * keras.layers.Embedding(7, 4)(ids)
    mean = keras.ops.sum(hidden, axis=1) / keras.ops.sum(kept, axis=1)
    x = np.random.default_rng(0).integers(1, 7, (200, 5)).astype("int32")
    private = keras_dp.make_private(
        keras.Model(ids, keras.layers.Dense(1)(mean)),
        (x, x[:, :1].astype("float32")),
        ledger=keras_dp.PrivacyLedger.in_memory(dataset="test"),
        target_epsilon=8.0,
        epochs=1,
        batch_size=50,
        optimizer="sgd",
        loss="mse",
    )

    private.fit(epochs=1, verbose=0)

    assert len(checked) == 1


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


def test_records_that_are_all_alike_do_not_repeat_the_self_check(
    checked,
) -> None:

    compiled().fit(
        samples((np.ones((RECORDS, 4)), data()[1])), epochs=2, verbose=0
    )

    assert len(checked) == 1


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

    def test_one_that_is_trains(self) -> None:
        x, y = data()
        x[1:] = np.nan
        private = compiled()

        private.fit(samples((x, y)), verbose=0)

        assert len(private.optimizer.ledger) == 1

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
