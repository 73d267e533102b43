"""Pipelines in which a record reaches several rows are refused by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.errors import PrivateTrainingError
from keras_dp.sampling import PoissonBatches, pipelines
from keras_dp.sampling.datasets import FiniteDataset
from keras_dp.sampling.pipelines import Stage

RECORDS = 40
X = np.random.default_rng(0).random((RECORDS, 3), "float32")
Y = np.arange(RECORDS) % 2
HELD, VARIABLE = tf.constant(X), tf.Variable(X)
VOCABULARY = tf.constant(np.arange(30.0, dtype="float32"))
Data = tf.data.Dataset


def slices(data=(X, Y)):
    return Data.from_tensor_slices(data)


def twice(combined):
    return combined(slices())


def checked(dataset, **options):
    is_batched = bool(Stage(dataset).is_batched)
    return pipelines.check(
        dataset, "dataset", **({"is_batched": is_batched} | options)
    )


def plus(held):
    return lambda x, y: (x + held[0], y)


MIXING = {
    "scan": (lambda: slices().scan(0.0, lambda s, r: (s, r)), "stage Scan"),
    "unique": (lambda: slices(Y).unique(), "stage Unique"),
    "rejection_resample": (
        lambda: slices(Y).rejection_resample(
            lambda y: tf.cast(y, tf.int32), [0.5, 0.5]
        ),
        "stage Scan",
    ),
    "nested scan": (
        lambda: Data.range(2).flat_map(
            lambda _: slices().scan(0, lambda s, r: (s, r))
        ),
        "stage Scan",
    ),
    "nested repeat": (
        lambda: slices().flat_map(lambda *row: slices([row[0]]).repeat(2)),
        "a repeat in a function of the stage FlatMap",
    ),
    "nested pairs": (
        lambda: Data.range(1).flat_map(
            lambda _: Data.zip((slices().shuffle(9), slices().shuffle(9)))
        ),
        "a zip in other orders, in a function of the stage FlatMap",
    ),
    "cached": (lambda: slices(Y).unique().cache().prefetch(1), "stage Unique"),
    "shuffled pairs": (
        lambda: Data.zip((slices().shuffle(9), slices().shuffle(9))).map(
            lambda a, b: (0.5 * a[0] + 0.5 * b[0], a[1])
        ),
        "zip of data sets",
    ),
    "shuffled targets": (
        lambda: Data.zip((slices(X), slices(Y).shuffle(9))),
        "zip of data sets",
    ),
    "neighbours": (
        lambda: twice(lambda data: Data.zip((data, data.skip(1)))),
        "zip of data sets",
    ),
    "filtered targets": (
        lambda: Data.zip((slices(X), slices(Y).filter(lambda y: y > 0))),
        "zip of data sets",
    ),
    "copies": (
        lambda: twice(lambda data: data.concatenate(data)),
        "records twice, at Concat|Concatenate, which takes the same",
    ),
    "changed copies": (
        lambda: twice(
            lambda data: data.concatenate(data.map(lambda x, y: (-x, y)))
        ),
        "Concatenate, which takes the same records twice",
    ),
    "sampled copies": (
        lambda: twice(lambda data: Data.sample_from_datasets([data, data])),
        "DirectedInterleave, which takes the same records twice",
    ),
    "windows": (lambda: slices().window(4, shift=1), "windows that overlap"),
    "array": (lambda: slices().map(plus(HELD)), "an array of 40 rows"),
    "variable": (lambda: slices().map(plus(VARIABLE)), "an array of 40 rows"),
    "constant": (
        lambda: slices().map(lambda x, y: (x + tf.constant(X)[0], y)),
        "an array of 40 rows",
    ),
    "array in a loop": (
        lambda: slices().map(
            lambda x, y: (tf.map_fn(lambda e: e + tf.constant(X)[0, 0], x), y)
        ),
        "an array of 40 rows",
    ),
}


def images(folder):
    for name in "ab":
        (folder / name).mkdir()
        for number in range(3):
            keras.utils.save_img(
                folder / name / f"{number}.png", np.zeros([4, 4, 3])
            )
    return keras.utils.image_dataset_from_directory(
        folder, image_size=(4, 4), verbose=0
    )


HARMLESS = {
    "slices": lambda _: slices().shuffle(9).batch(4),
    "parsed": lambda _: slices().map(lambda x, y: (x / 2, tf.one_hot(y, 2))),
    "centred by itself": lambda _: slices().map(
        lambda x, y: (x - tf.reduce_mean(x), y)
    ),
    "zip in order": lambda _: Data.zip(
        (slices(X).map(lambda x: x / 2).take(9), slices(Y))
    ).shuffle(9),
    "zip of batches": lambda _: Data.zip(
        (slices(X).batch(4), slices(Y).batch(4))
    ),
    "zip with a counter": lambda _: Data.zip(
        (slices().shuffle(9), (Data.counter(), Data.random(3)))
    ),
    "enumerated": lambda _: slices().shuffle(9).enumerate(),
    "folds": lambda _: twice(lambda d: d.take(10).concatenate(d.skip(20))),
    "by class": lambda _: twice(
        lambda d: Data.sample_from_datasets(
            [d.filter(lambda x, y: y > 0), d.filter(lambda x, y: y < 1)]
        )
    ),
    "nested zip in order": lambda _: Data.range(1).flat_map(
        lambda _: Data.zip((slices(X), slices(Y))).shuffle(9)
    ),
    "windows of pairs": lambda _: (
        slices()
        .window(4)
        .flat_map(lambda x, y: Data.zip((x.batch(4), y.batch(4))))
    ),
    "windows that do not overlap": lambda _: slices(X).window(4),
    "files": lambda _: slices(["a", "b"]).interleave(
        lambda name: tf.data.TextLineDataset(name).skip(1)
    ),
    "records of files": lambda _: tf.data.TFRecordDataset(["a"]).batch(4),
    "looked up": lambda _: slices().map(plus(VOCABULARY)),
    "read by index": lambda _: Data.range(RECORDS).map(lambda i: HELD[i]),
    "generator": lambda _: Data.from_generator(
        lambda: iter(X), output_signature=tf.TensorSpec([3])
    ),
    "images": images,
}


class TestARecordInSeveralRows:
    @pytest.mark.parametrize("name", MIXING)
    def test_is_refused(self, name) -> None:
        make, words = MIXING[name]

        with pytest.raises(PrivateTrainingError, match=f"`dataset`.*{words}"):
            checked(make())

    def test_is_refused_before_a_record_is_read(self) -> None:
        """Layers that adapt to a data set read it without storing it."""
        with pytest.raises(PrivateTrainingError, match="`dataset` must"):
            FiniteDataset(MIXING["shuffled pairs"][0]())

    def test_is_refused_once_their_number_is_known(self) -> None:
        """The generator does not say how many records there are."""
        generated = HARMLESS["generator"](None).map(lambda x: x + HELD[0])
        checked(generated)

        with pytest.raises(PrivateTrainingError, match="an array of 40 rows"):
            PoissonBatches.from_dataset(
                generated, batched=False, sampling_probability=0.1
            )

    def test_may_be_in_several_batches(self) -> None:
        """Each batch of the caller is a sample of its own."""
        batches = twice(lambda data: data.batch(4).concatenate(data.batch(4)))

        checked(batches, once=False)
        with pytest.raises(PrivateTrainingError, match="records twice"):
            checked(batches)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_keeps_records_apart_is_taken(name, tmp_path) -> None:
    checked(HARMLESS[name](tmp_path))


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (slices().map(lambda x, y: (x, y)).batch(4), False),
        (slices().batch(4).map(lambda x, y: (x, y)), True),
        (slices().batch(4).map(lambda x, y: (x, y)).unbatch(), True),
        (slices().batch(4).unbatch().map(lambda x, y: (x, y)), False),
        (slices().batch(4).flat_map(lambda x, y: slices(x)), True),
        (slices().flat_map(lambda x, y: slices(x)).batch(4), False),
        (slices().batch(4).map(lambda x, y: (x, y)).shuffle(3), True),
    ],
)
def test_functions_take_batches_or_records(dataset, expected) -> None:
    last, *_ = checked(dataset)

    assert last.takes_batches is expected
