"""Columns: what is public of their records, and which rows of a unit count.

The dtype and the shape of a record are public, as an array has them or as a
`tf.data.Dataset` declares them. The dtype is public even if another library
chose it by the values. Lists have no schema: the kinds of their entries depend
on the records, and only a round that counts may reveal them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from keras_dp.sampling.datasets import record_specs
from keras_dp.sampling.kinds import is_dataset
from keras_dp.sampling.units import capped_rows


class Schema(NamedTuple):
    """The dtype and the shape of the records of a column.

    Attributes:
        dtype: The NumPy dtype. It is `object` for text of any length.
        shape: The shape without the axis of records. A size is `None` if it may
            differ.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, column: Any) -> Self:
        """Returns the schema of an object with a dtype and a shape.

        Args:
            column: For example, a `tf.TensorSpec` of a record.
        """
        dtype = getattr(column.dtype, "as_numpy_dtype", column.dtype)
        return cls(np.dtype(dtype), tuple(column.shape))

    @property
    def features(self) -> tuple[int | None, ...]:
        """The shape of a record. A single number is one feature."""
        return self.shape or (1,)


def schema_of(data: Any) -> Schema | None:
    """Returns the schema of a column; `None` for lists and a `PyDataset`.

    Args:
        data: See `Adapter.adapt`.

    Raises:
        TypeError: A data set has several columns.
        ValueError: A data set cannot be read once; see `batches_of`.

    >>> schema_of(np.zeros([5, 3], np.int32))
    Schema(dtype=dtype('int32'), shape=(3,))
    >>> schema_of(["a", "b"]) is None
    True
    """
    if is_dataset(data):
        spec = first_of(record_specs(data))
        if spec is not None and not hasattr(spec, "shape"):
            raise TypeError(
                "`data` must be one column. Received: a data set of "
                f"{spec!r}. Map it to one column, and adapt a layer to each."
            )
        return None if spec is None else Schema.of(spec)
    values = data.to_numpy() if hasattr(data, "to_numpy") else data
    if not hasattr(values, "dtype") or not hasattr(values, "shape"):
        return None
    whole = Schema.of(values)
    return Schema(whole.dtype, whole.shape[1:])


def first_of(element: Any) -> Any:
    """Returns the inputs of an element `(x, y)`, else the element."""
    return element[0] if isinstance(element, tuple) else element


def with_capped_units(data: Any, unit_ids: Any, rows_per_unit: int) -> Any:
    """Returns data in which no unit has more than a given number of rows.

    Guarantee: as for `capped_rows`.

    Args:
        data: An array, a list, a table or a dict of columns.
        unit_ids: The unit of each row.
        rows_per_unit: >= 1.

    Raises:
        TypeError: `data` is a data set.
        ValueError: `unit_ids` does not have one id for each row.

    >>> with_capped_units([5, 6, 7], ["ann", "bob", "bob"], 2)
    [5, 6, 7]
    >>> len(with_capped_units([5, 6, 7], ["ann", "bob", "bob"], 1))
    2
    """
    if is_dataset(data):
        raise TypeError(
            "`unit_ids` must be None if `data` is a data set, whose rows have "
            f"no indices. Received: data of type {type(data).__name__}. Give "
            "arrays, or a data set of the rows that "
            "keras_dp.sampling.units.capped_rows(unit_ids, "
            f"{rows_per_unit}) returns."
        )
    return _taken(data, capped_rows(unit_ids, rows_per_unit), len(unit_ids))


def _taken(data: Any, rows: Any, count: int) -> Any:
    if isinstance(data, Mapping):
        return {name: _taken(each, rows, count) for name, each in data.items()}
    if len(data) != count:
        raise ValueError(
            "`unit_ids` must have one entry for each row of `data`. Received: "
            "another number of entries. Give the unit of each row, such as the "
            "id of a person."
        )
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if isinstance(data, (list, tuple)):
        return [data[row] for row in rows.tolist()]
    return np.asarray(data)[rows]
