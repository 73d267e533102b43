"""Rows of units of which each has several, capped in number."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from keras_dp.sampling.datasets import is_dataset
from keras_dp.sampling.units import capped_rows


def with_capped_units(data: Any, unit_ids: Any, rows_per_unit: int) -> Any:
    """Returns data with rows of which no unit has more than a given number.

    Guarantee: see `capped_rows`.

    Args:
        data: An array, a list, a table or a dict of columns.
        unit_ids: The unit of each row.
        rows_per_unit: >= 1.

    Raises:
        TypeError: The data is a data set, which is read in its own order.
        ValueError: There is not one id for each row.

    >>> with_capped_units([5, 6, 7], ["ann", "bob", "bob"], 2)
    [5, 6, 7]
    >>> len(with_capped_units([5, 6, 7], ["ann", "bob", "bob"], 1))
    2
    """
    if is_dataset(data):
        raise TypeError(
            "`unit_ids` must be None for data sets, which are read in their "
            f"own order. Received: {type(data).__name__}. Give arrays instead, "
            "or a data set of the rows keras_dp.sampling.units.capped_rows("
            f"unit_ids, {rows_per_unit})."
        )
    return _taken(data, capped_rows(unit_ids, rows_per_unit), len(unit_ids))


def _taken(data: Any, rows: Any, count: int) -> Any:
    if isinstance(data, Mapping):
        return {name: _taken(each, rows, count) for name, each in data.items()}
    if len(data) != count:
        raise ValueError(
            "`unit_ids` must have one entry for each row of `data`. Received: "
            "another number of entries. Give the id of the person of each row."
        )
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if isinstance(data, (list, tuple)):
        return [data[row] for row in rows.tolist()]
    return np.asarray(data)[rows]
