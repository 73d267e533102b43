"""Columns: what is public of their records, and which rows of a unit count.

The dtype and the shape of a record are public, as an array has them or as a
`tf.data.Dataset` declares them. The dtype is public even if another library
chose it by the values. Lists have no schema: the kinds of their entries depend
on the records, and only a round that counts may reveal them.

Records of numbers are read a chunk at a time, clipped to public ranges, and
summed exactly.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from keras_dp.sampling.datasets import FiniteDataset
from keras_dp.sampling.kinds import as_array, is_dataset
from keras_dp.sampling.users import capped_rows

Floats = npt.NDArray[np.float64]

# With these limits, squares of ranges and least variances fit float32.
_LARGEST = 1e18
_SHORTEST = 1e-12
# Entries of a chunk; 8 MB.
_CHUNK_ENTRIES = 2**20
# Numbers in [-1, 1] are rounded to whole multiples of `1 / SUM_UNITS`. Sums
# over a chunk are whole numbers up to 2^50, which float64 holds exactly in any
# order.
SUM_UNITS = 2.0**30
# A total is two words; the lower one has this many bits.
_LOW_BITS = 32


class ColumnSchema(NamedTuple):
    """The dtype and the shape of the records of a column.

    The dtype is `object` for text of any length. The shape has no axis of
    records, and `None` for a size that may differ.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]

    @classmethod
    def of(cls, column: Any) -> Self:
        """Returns the schema of an array, or of a `tf.TensorSpec`."""
        dtype = getattr(column.dtype, "as_numpy_dtype", column.dtype)
        return cls(np.dtype(dtype), tuple(column.shape))

    @property
    def features(self) -> tuple[int | None, ...]:
        """The shape of a record. A single number is one feature."""
        return self.shape or (1,)


def schema_of(data: Any) -> ColumnSchema | None:
    """Returns the schema of a column; `None` for lists and a `PyDataset`."""
    if is_dataset(data):
        spec = _first_of(FiniteDataset(data).record_specs)
        if spec is not None and not hasattr(spec, "shape"):
            raise TypeError(
                "`data` must be one column. Received: a data set of "
                f"{spec!r}. Map it to one column, and adapt a layer to each."
            )
        return None if spec is None else ColumnSchema.of(spec)
    values = data.to_numpy() if hasattr(data, "to_numpy") else data
    if not hasattr(values, "dtype") or not hasattr(values, "shape"):
        return None
    whole = ColumnSchema.of(values)
    return ColumnSchema(whole.dtype, whole.shape[1:])


def _first_of(element: Any) -> Any:
    """Returns the inputs of an element `(x, y)`, else the element."""
    return element[0] if isinstance(element, tuple) else element


def with_capped_units(data: Any, unit_ids: Any, rows_per_unit: int) -> Any:
    """Returns data in which no unit has more than a given number of rows.

    Guarantee: as for `capped_rows`.
    """
    if is_dataset(data):
        raise TypeError(
            "`unit_ids` must be None if `data` is a data set, whose rows have "
            f"no indices. Received: data of type {type(data).__name__}. Give "
            "arrays, or a data set of the rows that "
            "keras_dp.sampling.users.capped_rows(unit_ids, "
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


def checked_range(bounds: Any, *, most_axes: int = 1) -> tuple[Any, Any]:
    """Returns a range whose ends are floats, or tuples of at most `most_axes`.

    >>> checked_range((0, [1, 2]))
    (0.0, (1.0, 2.0))
    """
    try:
        low, high = (np.asarray(bound, np.float64) for bound in bounds)
        is_range = (
            max(low.ndim, high.ndim) <= most_axes
            and np.all(np.abs(low) <= _LARGEST)
            and np.all(np.abs(high) <= _LARGEST)
            and np.all(high - low >= _SHORTEST)
        )
    except (TypeError, ValueError):
        is_range = False
    if not is_range:
        each = " or a sequence with one for each feature" if most_axes else ""
        raise ValueError(
            f"`bounds` must be a pair (low, high) with low < high, each a "
            f"number{each}. Received: bounds={bounds!r}. Give public ends of "
            f"at most {_LARGEST:g}, at least {_SHORTEST:g} apart."
        )
    ends = (each.tolist() for each in (low, high))
    first, last = (tuple(e) if isinstance(e, list) else e for e in ends)
    return first, last


def batches_of(data: Any) -> Iterator[Any]:
    """Yields the inputs of a data set, a batch at a time, or other data."""
    if is_dataset(data):
        yield from map(_first_of, FiniteDataset(data).batches())
    else:
        yield data


def check_numbers(schema: ColumnSchema) -> None:
    """Raises unless each record holds at least one real number."""
    if schema.dtype.kind not in "biuf":
        raise TypeError(
            "`data` must hold real numbers. Received: dtype "
            f"{schema.dtype}. Convert it to numbers, or use StringLookup for "
            "text."
        )
    if 0 in schema.shape:
        raise ValueError(
            "`data` must have records of at least one number. Received: "
            f"records of shape {schema.shape}. Give records with entries."
        )


def number_chunks(data: Any) -> Iterator[Floats]:
    """Yields at least one chunk of records of numbers, shape `[chunk, ...]`.

    A chunk may be empty. A number without an axis for features is a record of
    one feature.
    """
    shape: tuple[int, ...] | None = None
    for given in batches_of(data):
        batch = as_array(given, "data", "data")
        check_numbers(ColumnSchema(batch.dtype, batch.shape[1:]))
        rows = batch[:, np.newaxis] if batch.ndim == 1 else batch
        shape = rows.shape[1:] if shape is None else shape
        if rows.shape[1:] != shape:
            raise ValueError(
                "`data` must have records of one shape. Received: batches of "
                f"records of shapes {shape} and {rows.shape[1:]}. Pad or "
                "resize the records first."
            )
        step = max(1, _CHUNK_ENTRIES // max(1, int(np.prod(shape))))
        for start in range(0, max(1, len(rows)), step):
            yield rows[start : start + step].astype(np.float64)
    if shape is None:
        raise ValueError(
            "`data` must hold at least one batch. Received: none. Give a data "
            "set with records."
        )


def exact_sum(chunks: Iterable[Floats]) -> Floats:
    """Returns the sum of rows, each rounded towards zero to a grid.

    Guarantee: adding or removing a row moves the sum by at most the L2 norm of
    the row, for any order and any number of the others. The reason is that
    rounding makes no entry larger. Only the last step has an error of rounding;
    see `whole_total`. Each chunk has at most 2^20 rows, with entries in [-1,
    1].
    """
    wholes = (np.trunc(chunk * SUM_UNITS).sum(axis=0) for chunk in chunks)
    return whole_total(wholes) / SUM_UNITS


def whole_total(parts: Iterable[Floats]) -> Floats:
    """Returns the sum of arrays of whole numbers, rounded once, to float64.

    Rounding changes a sum by at most 2^-53 of itself. With up to 2^31 records
    this is less than 2^-21 of the bound on one record. Adapters keep norms
    below the bound by more than that. The numbers are up to 2^53.
    """
    high: Any = 0
    low: Any = 0
    for part in parts:
        low = low + part.astype(np.int64)
        high, low = high + (low >> _LOW_BITS), low & (2**_LOW_BITS - 1)
    upper = np.asarray(high, np.float64) * 2.0**_LOW_BITS
    return np.asarray(upper + np.asarray(low, np.float64))
