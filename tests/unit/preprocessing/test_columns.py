"""The public schema of columns, and the rows of a unit that count."""

import collections
from fractions import Fraction

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_dp.ledger import PrivacyLedger
from keras_dp.preprocessing import (
    PCA,
    Discretization,
    IntegerLookup,
    Normalization,
    StringLookup,
    TextVectorization,
)
from keras_dp.preprocessing.columns import (
    exact_sum,
    number_chunks,
    whole_total,
    with_capped_units,
)

wholes = st.lists(
    st.integers(-(2**53), 2**53).map(float), min_size=1, max_size=50
)
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
        (SCALES, np.array([1j]), "real numbers"),
        (CODES, np.ones(4), "dtype float64"),
        (CODES, np.array(["a"]), "dtype"),
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
        (
            Normalization(([0, 0, 0], 1), 1.0),
            np.ones((3, 2)),
            "number for each",
        ),
        *(
            (Normalization((0, 1), 1.0, axis=axis), np.ones((3, 2)), "`axis`")
            for axis in (2, -2)
        ),
        (PCA(3, 1.0), np.ones(5), "as many entries"),
        (PCA(3, 1.0), dataset(np.ones([4, 2])), "as many entries"),
        (PCA(3, 1.0), of_width(2), "as many entries"),
        (PCA(3, 1.0), dataset(np.ones([4, 3, 2])), "as many entries"),
        (WORDS, np.array([["a", "b"]]), r"shape \(records, "),
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


IDS = ["ann"] * 50 + ["bob"] * 3 + ["cid"]


class Table:
    """Has what is used of a DataFrame."""

    def __init__(self, rows):
        self.rows = rows
        self.iloc = self

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, places):
        return self.rows[places]


@pytest.mark.parametrize(
    "make", [np.array, tf.constant, list, tuple, lambda x: Table(np.array(x))]
)
@pytest.mark.parametrize("rows_per_unit", [1, 2, 100])
def test_rows_are_capped(make, rows_per_unit) -> None:
    places = list(range(len(IDS)))

    kept = with_capped_units(make(places), IDS, rows_per_unit)

    counts = collections.Counter(IDS[int(place)] for place in kept)
    assert counts == {
        unit: min(n, rows_per_unit)
        for unit, n in collections.Counter(IDS).items()
    }


def test_a_user_with_many_rows_moves_the_mean_as_one(monkeypatch) -> None:
    ledger = PrivacyLedger.in_memory(dataset="d", unit="user")
    summed = []
    bounded_sum = Normalization.bounded_sum

    def watched(self, data):
        result = bounded_sum(self, data)
        summed.append(result[0].copy())
        return result

    monkeypatch.setattr(Normalization, "bounded_sum", watched)
    x = np.array([1.0] * 50 + [0.0] * 4)
    adapter = Normalization((-1, 1), 1.0)

    adapter.adapt(x, ledger, unit_ids=IDS)
    adapter.adapt(x[50:], ledger, unit_ids=IDS[50:])
    adapter.adapt(x, ledger)  # Control.

    assert np.linalg.norm(summed[0] - summed[1]) <= 1
    assert np.linalg.norm(summed[2] - summed[1]) > 1


class TestRefuses:
    @pytest.mark.parametrize("data", [np.ones(53), {"a": [1.0] * 55}])
    def test_ids_of_other_rows(self, data) -> None:
        ledger = PrivacyLedger.in_memory(dataset="d")

        with pytest.raises(ValueError, match="one entry for each row"):
            with_capped_units(data, IDS, 1)
        with pytest.raises(ValueError, match="one entry for each row"):
            Normalization((0, 1), 1.0).adapt(np.ones(53), ledger, unit_ids=IDS)

        assert len(ledger) == 0


@pytest.mark.parametrize(
    ("rows_per_unit", "ids", "words"), [(1, None, 0), (2, IDS, 0), (2, None, 1)]
)
def test_rows_that_nobody_caps_are_warned_of(
    rows_per_unit, ids, words, caplog
) -> None:
    ledger = PrivacyLedger.in_memory(
        dataset="d", unit="user", rows_per_unit=rows_per_unit
    )

    Normalization((0, 9), noise_multiplier=1.0).adapt(
        np.zeros(len(IDS)), ledger, unit_ids=ids
    )

    assert caplog.text.count("one user has at most 2 rows") == words


@pytest.mark.parametrize(
    ("unit", "ids", "words"),
    [("user", None, 1), ("user", IDS, 0), ("record", None, 0)],
)
def test_says_that_a_row_is_taken_to_be_a_unit(
    unit, ids, words, capsys
) -> None:
    ledger = PrivacyLedger.in_memory(dataset="d", unit=unit)

    Normalization((0, 9), noise_multiplier=1.0).adapt(
        np.zeros(len(IDS)), ledger, unit_ids=ids
    )

    printed = capsys.readouterr().out
    assert printed.count("each row is taken to be one user") == words


@given(numbers=wholes, times=st.integers(1, 300))
def test_totals_of_large_numbers_are_rounded_once(numbers, times) -> None:
    parts = [np.array([each]) for each in numbers] * times

    (total,) = whole_total(parts)

    exact = Fraction(sum(map(int, numbers)) * times)
    assert abs(Fraction(float(total)) - exact) <= abs(exact) * Fraction(
        1, 2**52
    )


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_rows_are_rounded_towards_zero(numbers) -> None:
    for number in numbers:
        (alone,) = exact_sum([np.array([[number]])])
        assert abs(alone) <= abs(number)
        assert abs(alone - number) <= 2.0**-30

    each = [exact_sum([np.array([[number]])])[0] for number in numbers]
    (together,) = exact_sum([np.array(numbers)[:, np.newaxis]])
    assert Fraction(float(together)) == sum(map(Fraction, map(float, each)))


def test_batches_must_be_alike() -> None:
    data = tf.data.Dataset.from_generator(
        lambda: [np.ones(3), np.ones(3), np.ones(4)],
        output_signature=tf.TensorSpec([None], tf.float32),
    ).padded_batch(2)

    with pytest.raises(ValueError, match="one shape"):
        list(number_chunks(data))


def test_no_batch_is_refused() -> None:
    data = tf.data.Dataset.from_tensor_slices(np.ones((0, 3))).batch(2)

    with pytest.raises(ValueError, match="at least one batch"):
        list(number_chunks(data))
