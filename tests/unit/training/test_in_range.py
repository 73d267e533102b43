"""Labels and ids in memory are looked at before one of them is drawn."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.keras_internals import build_from_batch, compiled_loss_of
from keras_dp.sampling import PoissonBatches
from keras_dp.training import Augmentation
from keras_dp.training.data.in_range import check_ranges
from tests.private_models import private_of

RECORDS, CLASSES, IDS = 9000, 3, 7
# The place of the one record that is out of range: in the last of the parts in
# which records are read.
ONE = RECORDS - 2
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(RECORDS, 4)).astype("float32")
Y = GENERATOR.integers(0, CLASSES, RECORDS)
TOKENS = GENERATOR.integers(0, IDS, (RECORDS, 5))
SPARSE = keras.losses.SparseCategoricalCrossentropy
CROSS = keras.losses.sparse_categorical_crossentropy


def with_one(values, value):
    changed = values.copy()
    changed[ONE] = value
    return changed


def classifier():
    return keras.Sequential([keras.Input((4,)), layers.Dense(CLASSES)])


def two():
    x = keras.Input((4,))
    outputs = {"a": layers.Dense(2)(x), "b": layers.Dense(CLASSES)(x)}
    return keras.Model(x, outputs)


def reading_tokens():
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.Embedding(IDS, 2),
            layers.Flatten(),
            layers.Dense(CLASSES),
        ]
    )


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.dense = layers.Embedding(IDS, 2), layers.Dense(CLASSES)

    def call(self, x):
        return self.dense(keras.ops.mean(self.table(x["ids"]), axis=1))


def of_a_column():
    """Ids in the first column of floats, in [0, 3)."""
    x = keras.Input((4,))
    ids = layers.Lambda(lambda x: keras.ops.cast(x[:, 0], "int32"))(x)
    return keras.Model(x, layers.Dense(CLASSES)(layers.Embedding(3, 2)(ids)))


def check(model, loss, source, y=None):
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=8)
    private = private_of(model, query, loss=loss)
    given = (source, y) if y is not None else source.records.in_memory
    first = keras.tree.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf[:8]), given
    )
    build_from_batch(private, (*first, None))
    check_ranges(model, compiled_loss_of(private), source, y)


def sampled(x, y, **options):
    return PoissonBatches((x, y), sampling_probability=0.1, **options)


LABELS = [
    pytest.param(SPARSE(from_logits=True), lambda y: y, id="loss"),
    pytest.param("sparse_categorical_crossentropy", lambda y: y, id="name"),
    pytest.param(lambda y, p: CROSS(y, p), lambda y: y, id="function"),
    pytest.param(SPARSE(reduction="none"), lambda y: y[:, None], id="column"),
    pytest.param(SPARSE(), lambda y: y.astype("float32"), id="floats"),
]


class TestLabels:
    @pytest.mark.parametrize("wrong", [-1, CLASSES])
    @pytest.mark.parametrize(("loss", "given"), LABELS)
    def test_out_of_range_are_refused(self, loss, given, wrong) -> None:
        check(classifier(), loss, X, given(Y))
        with pytest.raises(ValueError, match=r"`y` must .*\[0, 3\)") as error:
            check(classifier(), loss, X, given(with_one(Y, wrong)))

        assert "-1" not in str(error.value)

    def test_that_are_ignored_may_be_anything(self) -> None:
        loss = SPARSE(ignore_class=-1)

        check(classifier(), loss, X, with_one(Y, -1))
        with pytest.raises(ValueError, match="`y` must hold"):
            check(classifier(), loss, X, with_one(Y, -2))

    def test_of_each_output_have_its_range(self) -> None:
        """2 is a label of the second output, and none of the first."""
        loss = {"a": SPARSE(), "b": SPARSE()}
        check(two(), loss, X, {"a": Y % 2, "b": with_one(Y, 2)})
        with pytest.raises(ValueError, match=r"\[0, 2\)"):
            check(two(), loss, X, {"a": with_one(Y % 2, 2), "b": Y})

    def test_of_other_losses_may_be_anything(self) -> None:
        check(classifier(), "mse", X, np.full((RECORDS, CLASSES), -9.0))

    def test_of_samplers_are_read(self) -> None:
        with pytest.raises(ValueError, match="`y` must hold"):
            check(classifier(), SPARSE(), sampled(X, with_one(Y, 3)))

    def test_are_read_behind_an_augmentation(self) -> None:
        change = Augmentation(layers.GaussianNoise(0.1))

        with pytest.raises(ValueError, match="`y` must hold"):
            check(
                classifier(), SPARSE(), sampled(X, with_one(Y, 3), map=change)
            )

    def test_that_a_map_mends_are_not_read(self) -> None:
        mended = sampled(X, with_one(Y, 3), map=lambda x, y: (x, y % 3))

        check(classifier(), SPARSE(), mended)

    def test_in_files_are_not_read(self, tmp_path) -> None:
        path = tmp_path / "y.npy"
        np.save(path, with_one(Y, 3))

        mapped = np.load(path, mmap_mode="r")
        check(classifier(), SPARSE(), X, mapped)
        assert sampled(X, mapped).records.in_memory is None


class TestIds:
    @pytest.mark.parametrize(
        ("model", "given"),
        [
            (reading_tokens, lambda ids: ids),
            (reading_tokens, lambda ids: ids.astype("float32")),
            (Subclassed, lambda ids: {"ids": ids}),
            (of_a_column, lambda ids: np.minimum(ids[:, :4] / 2.5, 3)),
        ],
        ids=["ids", "floats", "subclassed", "column"],
    )
    def test_out_of_range_are_refused(self, model, given) -> None:
        check(model(), SPARSE(), given(TOKENS), Y)
        with pytest.raises(ValueError, match=r"`x` must hold ids in \[0"):
            check(model(), SPARSE(), given(with_one(TOKENS, 100)), Y)
