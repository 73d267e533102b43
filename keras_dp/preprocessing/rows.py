"""Reads records of numbers, a chunk at a time, and sums them exactly.

Numbers are clipped to public ranges.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp.preprocessing.columns import Schema, first_of
from keras_dp.sampling.datasets import batches_of
from keras_dp.sampling.kinds import as_array, is_dataset

Floats = npt.NDArray[np.float64]

# With these limits, squares of ranges and least variances fit float32.
_LARGEST = 1e18
_SHORTEST = 1e-12
# Entries of a chunk; 8 MB.
_CHUNK_ENTRIES = 2**20
# Contributions are rounded to whole multiples of `1 / _UNITS`. Sums over a
# chunk are whole numbers up to 2^50, which float64 holds exactly in any order.
_UNITS = 2.0**30
# A total is two words; the lower one has this many bits.
_LOW_BITS = 32


def checked_range(bounds: Any, *, most_axes: int = 1) -> tuple[Any, Any]:
    """Returns a range whose ends are floats, or tuples of floats.

    Args:
        bounds: A pair (low, high) of numbers or sequences of numbers.
        most_axes: 0 if only numbers are allowed, 1 if sequences are too.

    Raises:
        ValueError: `bounds` is not such a pair, or low is not below high.

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


def array_batches(data: Any) -> Iterator[npt.NDArray[Any]]:
    """Yields arrays whose rows are the records.

    Args:
        data: See `Adapter.adapt`.
    """
    if is_dataset(data):
        for element in batches_of(data, None):
            yield as_array(first_of(element), "data", "data")
    else:
        yield as_array(data, "data", "data")


def check_numbers(schema: Schema) -> None:
    """Raises unless each record holds at least one real number.

    Args:
        schema: The dtype and the shape of the records.

    Raises:
        TypeError: The records are not real numbers.
        ValueError: The records have no entries.
    """
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

    Args:
        data: See `Adapter.adapt`.

    Raises:
        TypeError: The records are not real numbers.
        ValueError: Batches have records of different shapes, or a data set has
            no batch.
    """
    shape: tuple[int, ...] | None = None
    for batch in array_batches(data):
        check_numbers(Schema(batch.dtype, batch.shape[1:]))
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
    rounding makes no entry larger. Only the last step has an error of
    rounding; see `whole_total`.

    Args:
        chunks: At least one array of shape `[rows, size]`, with at most 2^20
            rows and entries in [-1, 1].
    """
    wholes = (np.trunc(chunk * _UNITS).sum(axis=0) for chunk in chunks)
    return whole_total(wholes) / _UNITS


def whole_total(parts: Iterable[Floats]) -> Floats:
    """Returns the sum of arrays of whole numbers, rounded once, to float64.

    Rounding changes a sum by at most 2^-53 of itself. With up to 2^31 records
    this is less than 2^-21 of the bound on one record. Adapters keep norms
    below the bound by more than that.

    Args:
        parts: At least one array, all of one shape, of numbers up to 2^53.

    >>> whole_total([np.array([2.0**53, -1.0])] * 3) == [3 * 2.0**53, -3]
    array([ True,  True])
    """
    high: Any = 0
    low: Any = 0
    for part in parts:
        low = low + part.astype(np.int64)
        high, low = high + (low >> _LOW_BITS), low & (2**_LOW_BITS - 1)
    upper = np.asarray(high, np.float64) * 2.0**_LOW_BITS
    return np.asarray(upper + np.asarray(low, np.float64))
