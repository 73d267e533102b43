"""A mistake that the public schema shows spends no round."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_dp.ledger import PrivacyLedger
from keras_dp.preprocessing import (
    PCA,
    Discretization,
    IntegerLookup,
    Normalization,
    StringLookup,
    TextVectorization,
)
from keras_dp.preprocessing.schema import schema_of

SCALES = Normalization((0, 1), 1.0)
TWO_SCALES = Normalization(((0, 0), (1, 1)), 1.0)
CODES = IntegerLookup(1.0, 1e-6)
NAMES = StringLookup(1.0, 1e-6)
WORDS = TextVectorization(1.0, 1e-6, max_keys=3)
TEXT = np.array(["secret"] * 4)


def dataset(*columns):
    return tf.data.Dataset.from_tensor_slices(*columns).batch(2)


def of_width(width):
    """A data set of four rows of twos that declares this width."""
    return tf.data.Dataset.from_generator(
        lambda: [np.full(2, 2.0)] * 4,
        output_signature=tf.TensorSpec([width], tf.float32),
    ).batch(2)


class Batches(keras.utils.PyDataset):
    @property
    def num_batches(self):
        return 1

    def __getitem__(self, index):
        return TEXT


def rounds_spent(adapter, data, error, match):
    """Returns how many rounds a refusal spends."""
    ledger = PrivacyLedger.in_memory(dataset="d")
    with pytest.raises(error, match=match) as raised:
        adapter.adapt(data, ledger)
    assert "secret" not in str(raised.value)
    return len(ledger)


@pytest.mark.parametrize(
    ("adapter", "data", "match"),
    [
        (SCALES, TEXT, "real numbers"),
        (SCALES, TEXT.astype(object), "real numbers"),
        (SCALES, dataset(TEXT), "real numbers"),
        (SCALES, dataset((TEXT, np.ones(4))), "real numbers"),
        (SCALES, dataset({"age": np.ones(4)}), "one column"),
        (Discretization((0, 1), 2, 1.0), dataset(TEXT), "real numbers"),
        (PCA(1, 1.0), dataset(TEXT[:, np.newaxis]), "real numbers"),
        (CODES, np.ones(4), "dtype float64"),
        (CODES, dataset(np.ones(4)), "dtype float64"),
        (CODES, dataset(np.ones(4, np.uint64)), "dtype uint64"),
        (NAMES, np.ones(4, int), "dtype int64"),
        (NAMES, dataset(np.ones(4, int)), "dtype int64"),
        (WORDS, dataset(np.ones(4, int)), "dtype int64"),
    ],
)
def test_another_dtype_is_seen_before_the_round(adapter, data, match) -> None:
    assert rounds_spent(adapter, data, TypeError, match) == 0


@pytest.mark.parametrize(
    ("adapter", "data", "match"),
    [
        (TWO_SCALES, dataset(np.ones([4, 3])), "number for each feature"),
        (SCALES, np.ones([4, 0]), "at least one number"),
        (PCA(3, 1.0), dataset(np.ones([4, 2])), "as many entries"),
        (PCA(3, 1.0), of_width(2), "as many entries"),
        (PCA(3, 1.0), dataset(np.ones([4, 3, 2])), "as many entries"),
        (WORDS, dataset(np.stack([TEXT, TEXT], 1)), "one text in each row"),
        (NAMES, TEXT.reshape(1, 2, 2), "one row for each record"),
        (SCALES, dataset(np.ones(4)).repeat(), "finite"),
        (
            NAMES,
            dataset(tf.ragged.constant([["secret"], []])),
            "must be dense",
        ),
    ],
)
def test_another_shape_is_seen_before_the_round(adapter, data, match) -> None:
    assert rounds_spent(adapter, data, ValueError, match) == 0


@pytest.mark.parametrize(
    ("adapter", "data", "error", "match"),
    [
        (SCALES, TEXT.tolist(), TypeError, "real numbers"),
        (SCALES, Batches(), TypeError, "real numbers"),
        (NAMES, TEXT[:1].tolist(), ValueError, "must have a key"),
        (PCA(3, 1.0), of_width(None), ValueError, "as many entries"),
        (TWO_SCALES, [[1.0, 1.0], [1.0]], ValueError, "inhomogeneous"),
    ],
)
def test_what_follows_from_records_is_seen_in_the_round(
    adapter, data, error, match
) -> None:
    assert rounds_spent(adapter, data, error, match) == 1


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (np.zeros([4, 3], np.int8), ("int8", (3,))),
        (tf.zeros([4, 3]), ("float32", (3,))),
        (tf.constant(["a"]), ("object", ())),
        (tf.ragged.constant([["a"], []]), ("object", (None,))),
        (dataset(np.zeros([4, 3], np.int8)), ("int8", (3,))),
        (dataset(np.zeros([4, 3])).unbatch(), ("float64", (3,))),
        (of_width(None), ("float32", (None,))),
    ],
)
def test_the_schema_is_that_of_one_record(data, expected) -> None:
    dtype, shape = schema_of(data)

    assert (dtype.name, shape) == expected


def test_records_of_unknown_width_are_adapted() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")

    layer = Normalization(((0, 0), (4, 4)), 0.01).adapt(of_width(None), ledger)

    np.testing.assert_allclose(layer.input_mean, [2, 2], atol=0.2)
