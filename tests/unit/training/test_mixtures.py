"""Functions of batches in a data set that mix rows are refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.errors import PrivateTrainingError
from keras_dp.sampling import PoissonBatches, pipelines
from keras_dp.training.data.mixtures import check_keeps_rows_apart
from tests.private_models import private_of

RECORDS = 48
GENERATOR = np.random.default_rng(0)
X = GENERATOR.random((RECORDS, 6, 6, 3), "float32")
Y = np.arange(RECORDS) % 3
Data = tf.data.Dataset


def slices():
    return Data.from_tensor_slices((X, Y))


def of_pairs(layer):
    def change(x, y):
        pair = {"images": x, "labels": tf.one_hot(y, 3)}
        pair = layer(pair, training=True)
        return pair["images"], pair["labels"]

    return change


def on_images(layer):
    return lambda x, y: (layer(x, training=True), y)


def on_arrays(function):
    return lambda x, y: (function(x), y)


def shuffled(x):
    rows = tf.random.shuffle(tf.range(tf.shape(x)[0]))
    return 0.7 * x + 0.3 * tf.gather(x, rows)


def uniform(*arguments):
    return tf.random.uniform(*arguments)  # noqa: TID251 - as users do.


def sometimes(x):
    return tf.cond(uniform([]) < 0.5, lambda: x, lambda: tf.roll(x, 1, 0))


MIXING = {
    "MixUp": lambda: of_pairs(layers.MixUp()),
    "CutMix": lambda: of_pairs(layers.CutMix()),
    "Equalization": lambda: on_arrays(layers.Equalization()),
    "standardized": lambda: on_arrays(lambda x: x - tf.reduce_mean(x, 0)),
    "scaled": lambda: on_arrays(lambda x: x / tf.reduce_max(x)),
    "reversed": lambda: on_arrays(lambda x: 0.5 * (x + x[::-1])),
    "rolled": lambda: lambda x, y: (x, tf.roll(y, 1, 0)),
    "permuted": lambda: on_arrays(shuffled),
    "sometimes": lambda: on_arrays(sometimes),
    "less the first": lambda: on_arrays(lambda x: x - x[0]),
    "in a loop": lambda: on_arrays(
        lambda x: tf.map_fn(lambda row: row + tf.reduce_mean(x, 0), x)
    ),
}
APART = {
    "parsed": lambda: lambda x, y: (x / 255, tf.one_hot(y, 3)),
    "flat": lambda: on_arrays(lambda x: tf.reshape(x, [-1, 108])),
    "each by itself": lambda: on_arrays(tf.image.per_image_standardization),
    "noise": lambda: on_arrays(lambda x: x + uniform(tf.shape(x))),
    "flips": lambda: on_arrays(tf.image.random_flip_left_right),
    "crops": lambda: on_arrays(
        lambda x: tf.image.random_crop(x, [tf.shape(x)[0], 4, 4, 3])
    ),
    "in a loop": lambda: on_arrays(
        lambda x: tf.map_fn(tf.image.random_flip_left_right, x)
    ),
    "vectorized": lambda: on_arrays(
        lambda x: tf.vectorized_map(lambda row: 2 * row, x)
    ),
    "layers": lambda: on_images(
        keras.Sequential(
            [
                layers.RandomFlip(),
                layers.RandomRotation(0.1),
                layers.Rescaling(2),
            ]
        )
    ),
    "a model": lambda: on_arrays(
        keras.Sequential(
            [layers.Conv2D(2, 3), layers.Flatten(), layers.Dense(3)]
        )
    ),
    "weights": lambda: lambda x, y: (x, y, tf.where(y > 0, 1.0, 2.0)),
}


def check(dataset):
    functions = pipelines.check(dataset, "dataset", is_batched=True)
    check_keeps_rows_apart(functions, "dataset")


@pytest.mark.parametrize("whole", [False, True], ids=["rest", "whole"])
class TestAFunctionOfBatches:
    @pytest.mark.parametrize("name", MIXING)
    def test_that_mixes_rows_is_refused(self, name, whole) -> None:
        batches = slices().batch(8, drop_remainder=whole)

        with pytest.raises(PrivateTrainingError, match=r"mixes the rows.*Map"):
            check(batches.map(MIXING[name]()))

    @pytest.mark.parametrize("name", APART)
    def test_that_keeps_them_apart_is_taken(self, name, whole) -> None:
        check(slices().batch(8, drop_remainder=whole).map(APART[name]()))


MEAN = MIXING["standardized"]()


@pytest.mark.parametrize(
    "dataset",
    [
        slices().batch(8).map(MEAN).unbatch().shuffle(3).batch(4).cache(),
        slices().padded_batch(8).map(MEAN, num_parallel_calls=2).prefetch(1),
        slices()
        .batch(8)
        .flat_map(lambda x, y: Data.from_tensor_slices(MEAN(x, y)))
        .batch(4),
        Data.range(2).interleave(lambda _: slices().batch(8).map(MEAN)),
    ],
    ids=["unbatched", "padded", "flat_map", "interleaved"],
)
def test_it_is_found_where_it_stands(dataset) -> None:
    with pytest.raises(PrivateTrainingError, match="mixes the rows"):
        check(dataset)


@pytest.mark.parametrize(
    "dataset",
    [
        slices().map(MEAN).batch(4),
        slices().batch(8).unbatch().map(MEAN).batch(4),
        Data.range(2).interleave(lambda _: slices().map(MEAN).batch(8)),
    ],
    ids=["single", "unbatched", "interleaved"],
)
def test_the_same_function_of_a_record_is_taken(dataset) -> None:
    check(dataset)


def test_text_is_taken_as_it_is() -> None:
    lookup = layers.StringLookup(vocabulary=["a"])
    text = Data.from_tensor_slices((["a", "b"], [0, 1])).batch(2)

    check(text.map(lambda x, y: (lookup(x), y)))


def test_the_states_of_seeds_stay_what_they_were() -> None:
    layer = layers.CutMix()
    batches = slices().batch(8).map(of_pairs(layer))
    before = layer.generator.state.numpy().tolist()

    with pytest.raises(PrivateTrainingError):
        check(batches)

    assert layer.generator.state.numpy().tolist() == before


def private(ledger):
    model = keras.Sequential(
        [keras.Input((6, 6, 3)), layers.Flatten(), layers.Dense(3)]
    )
    return private_of(
        model,
        keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=8),
        ledger,
        loss="sparse_categorical_crossentropy",
        checks=2,
    )


def fitted(data, ledger):
    return private(ledger).fit(data, verbose=0)


def drawn(data, ledger):
    samples = PoissonBatches.from_dataset(
        data, sampling_probability=0.5, verbose=False
    )
    return private(ledger).fit(samples, verbose=0)


def made(data, ledger):
    model = private(ledger).model
    return keras_dp.make_private(
        model,
        data,
        ledger=ledger,
        target_epsilon=3.0,
        epochs=1,
        loss="sparse_categorical_crossentropy",
        verbose=False,
    ).fit(verbose=0)


@pytest.mark.parametrize("train", [fitted, drawn, made])
def test_nothing_is_recorded_of_a_mixture(train) -> None:
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")

    with pytest.raises(PrivateTrainingError, match="mixes the rows"):
        train(slices().batch(8).map(MEAN), ledger)

    assert len(ledger) == 0
    assert ledger.runs == ()


@pytest.mark.parametrize("argument", ["map", "augment"])
def test_a_map_that_holds_all_records_is_refused(argument) -> None:
    held = tf.constant(X)

    def mixed(x, *rest):
        row = uniform([], 0, RECORDS, tf.int32)
        x = 0.7 * x + 0.3 * held[row]
        return (x, *rest) if rest else x

    ledger = keras_dp.PrivacyLedger.in_memory(dataset="test")
    with pytest.raises(PrivateTrainingError, match=f"`{argument}`.*of 48 rows"):
        keras_dp.make_private(
            private(ledger).model,
            keras_dp.Records((X, Y), **{argument: mixed}),
            ledger=ledger,
            target_epsilon=3.0,
            epochs=1,
            loss="sparse_categorical_crossentropy",
            verbose=False,
        ).fit(verbose=0)

    assert ledger.runs == ()
