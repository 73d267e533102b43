"""Tables, columns and text become arrays that batches are cut from."""

import numpy as np
import pytest

from keras_dp.sampling import record_source


class Column:
    """Has what a pandas Series has, of which only this is used."""

    def __init__(self, values):
        self._values = np.asarray(values)

    def to_numpy(self):
        return self._values

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("A Series of text is no array of text.")

    def __len__(self):
        return len(self._values)


class Table(Column):
    columns = ("a", "b")


def everything(data):
    source = record_source.Source(data)
    return source.in_rows(np.arange(len(source)))


def test_a_table_of_numbers_is_a_matrix() -> None:
    records = everything(Table([[1.0, 2.0], [3.0, 4.0]]))

    assert records.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_a_column_has_an_axis_of_one_as_in_keras() -> None:
    records = everything({"x": Column([5, 6]), "y": np.array([5, 6])})

    assert records["x"].tolist() == [[5], [6]]
    assert records["y"].tolist() == [5, 6]


def test_a_table_with_text_is_refused_with_the_remedy() -> None:
    table = Table(np.array([[1, "a"], [2, "b"]], object))

    with pytest.raises(ValueError, match=r"dtype object at /x.*dict\(table\)"):
        everything({"x": table})


@pytest.mark.parametrize("kind", [np.array, Column])
def test_python_text_becomes_utf8(kind) -> None:
    words = np.array(["é", "longer", b"raw"], object)

    records = everything({"x": kind(words)})["x"]

    assert records.dtype == np.dtype("S6")
    assert records.ravel().tolist() == ["é".encode(), b"longer", b"raw"]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["a", None], "dtype object at /, with entries of type .*'NoneType'"),
        ([b"a\0", b"b"], "do not end in a zero"),
    ],
)
def test_entries_that_would_be_lost_are_refused(entries, message) -> None:
    with pytest.raises(ValueError, match=message):
        everything(np.array(entries, object))


def test_text_of_a_source_may_be_of_any_length() -> None:
    class Source:
        def __len__(self):
            return 9

        def __getitem__(self, indices):
            return np.array(["a" * int(i) for i in indices], object)

    assert everything(Source()).tolist() == [b"a" * i for i in range(9)]
