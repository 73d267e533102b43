"""Limits on the number of records of one privacy unit."""

from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.sampling import random_words


def capped_rows(unit_ids: Any, rows_per_unit: int) -> npt.NDArray[np.int64]:
    """Returns the indices of records to keep, a limited number for each unit.

    If a unit has more than `rows_per_unit` records, a random subset is kept.

    Guarantee: adding or removing all records of one unit adds or removes at
    most `rows_per_unit` of the records that are kept, and changes nothing for
    other units: the records of each unit are chosen without a look at the
    others, by the operating system's generator.

    Args:
        unit_ids: Array `[N]` of integers or text, the unit of each record.
        rows_per_unit: The largest number of records to keep for a unit, >= 1.
            Do not choose it by a look at the data.

    Returns:
        Indices in `[0, N)`, ascending.

    Raises:
        ValueError: `unit_ids` does not have one integer or text per record.

    >>> rows = capped_rows(["ann", "bob", "ann", "ann", "cid"], 2)
    >>> len(rows), 1 in rows, 4 in rows
    (4, True, True)
    """
    _check.integer_at_least(1, rows_per_unit=rows_per_unit)
    units = unit_numbers(unit_ids=unit_ids)
    words = random_words.from_operating_system(len(units))
    order = np.lexsort((words, units))
    sizes = np.bincount(units)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    place = np.arange(len(units)) - np.repeat(starts, sizes)
    return np.sort(order[place < rows_per_unit])


def unit_numbers(**ids: Any) -> npt.NDArray[np.int64]:
    """Returns the number of the unit of each record: 0, 1, 2, ...

    Args:
        **ids: One argument, by its name for messages: an array `[N]` of
            integers or text.

    Raises:
        ValueError: The array does not have one integer or text per record.

    >>> unit_numbers(user_ids=["bob", "ann", "bob"])
    array([1, 0, 1])
    """
    ((name, given),) = ids.items()
    found = np.asarray(given)
    if found.ndim != 1 or not len(found):
        unit = name.removesuffix("_ids")
        raise ValueError(
            f"`{name}` must be an array of one axis, with the {unit} of each "
            f"record. Received: an array of shape {found.shape!r}."
        )
    kind = found.dtype.kind
    names_all = (
        kind in "iu"
        or (kind in "US" and not (found == found.dtype.type()).any())
        or (kind == "O" and all(map(_is_name, found)))
    )
    if not names_all:
        raise ValueError(
            f"`{name}` must hold integers or text, one for every record: "
            "records without a name could be of one person or of several. "
            f"Received: an array of {found.dtype}, with empty or other "
            "entries. Leave such records out."
        )
    return np.unique(found, return_inverse=True)[1]


def _is_name(found: Any) -> bool:
    is_text = isinstance(found, (str, bytes))
    return bool(found) if is_text else isinstance(found, int)
