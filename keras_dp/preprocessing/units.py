"""Limits the number of rows of each unit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dp.sampling.datasets import is_dataset
from keras_dp.sampling.units import capped_rows


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
