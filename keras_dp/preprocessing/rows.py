"""Reads records of numbers, a chunk at a time, and sums them exactly."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp.sampling.columns import as_array
from keras_dp.sampling.datasets import batches_of, is_dataset

Floats = npt.NDArray[np.float64]

# Entries of a chunk; 8 MB.
_CHUNK_ENTRIES = 2**20
# Contributions are rounded to whole multiples of `1 / _UNITS`. Sums over a
# chunk are whole numbers up to 2^50, which float64 holds exactly in any order,
# and the total fits int64 for 2^33 records.
_UNITS = 2.0**30


def array_batches(data: Any) -> Iterator[npt.NDArray[Any]]:
    """Yields arrays whose rows are the records.

    Args:
        data: See `Adapter.adapt`.
    """
    if is_dataset(data):
        for element in batches_of(data, None):
            first = element[0] if isinstance(element, tuple) else element
            yield as_array(first, "data", "data")
    else:
        yield as_array(data, "data", "data")


def number_chunks(data: Any) -> Iterator[Floats]:
    """Yields records of numbers, `[chunk, ...]`, at least one, maybe empty.

    Numbers without an axis for features are records of one feature.

    Args:
        data: See `Adapter.adapt`.

    Raises:
        TypeError: The records are no numbers.
        ValueError: Batches differ in the shape of their records, or a data set
            has none.
    """
    shape: tuple[int, ...] | None = None
    for batch in array_batches(data):
        if batch.dtype.kind not in "biuf":
            raise TypeError(
                f"`data` must hold real numbers. Received: dtype {batch.dtype}."
            )
        rows = batch[:, np.newaxis] if batch.ndim == 1 else batch
        shape = rows.shape[1:] if shape is None else shape
        if rows.shape[1:] != shape:
            raise ValueError(
                "`data` must have records of one shape. Received: batches of "
                f"records of shapes {shape} and {rows.shape[1:]}."
            )
        step = max(1, _CHUNK_ENTRIES // max(1, int(np.prod(shape))))
        for start in range(0, max(1, len(rows)), step):
            yield rows[start : start + step].astype(np.float64)
    if shape is None:
        raise ValueError("`data` must hold at least one batch. Received: none.")


def exact_sum(chunks: Iterable[Floats]) -> Floats:
    """Returns the sum of rows, each rounded towards zero to a grid.

    Guarantee: a row more or less moves the sum by at most the L2 norm of the
    row, whatever the order and the number of the others: rounding makes no
    entry larger, and sums of whole numbers are exact. Above 2^23 the result
    is rounded to a float.

    Args:
        chunks: Arrays `[rows, size]`, entries in [-1, 1], at least one array.
    """
    total: Any = 0
    for chunk in chunks:
        whole = np.trunc(chunk * _UNITS)
        total = total + whole.sum(axis=0).astype(np.int64)
    return np.asarray(total, np.float64) / _UNITS
