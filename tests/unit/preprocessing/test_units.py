"""No unit has more rows in a release than the ledger says."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.ledger import PrivacyLedger
from keras_dp.preprocessing import Normalization
from keras_dp.preprocessing.units import with_capped_units

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


def test_columns_keep_their_rows_together() -> None:
    places = np.arange(len(IDS))

    kept = with_capped_units({"a": places, "b": (-places).tolist()}, IDS, 1)

    assert len(kept["a"]) == 3
    assert kept["b"] == (-kept["a"]).tolist()


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
    def test_data_sets(self) -> None:
        data = tf.data.Dataset.from_tensor_slices(np.ones(54)).batch(9)

        with pytest.raises(TypeError, match="`unit_ids` must be None"):
            with_capped_units(data, IDS, 1)

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
