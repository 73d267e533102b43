"""Reads records of text or integers, a chunk at a time."""

from collections.abc import Iterable, Iterator, Set
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp.preprocessing.schema import Schema, first_of
from keras_dp.sampling.datasets import batches_of, is_dataset

# Records at once.
_CHUNK = 2**12
_LARGEST_INTEGER = 2**63


def row_chunks(
    data: Any, kinds: str, *, one_each: bool = False
) -> Iterator[list[list[Any]]]:
    """Yields the entries of records, a chunk of records at a time.

    Lists are not converted to arrays, whose entries would all take the memory
    of the longest one.

    Args:
        data: See `Adapter.adapt`. A record is an entry or a list of entries.
        kinds: The codes of the NumPy dtypes that the data may have.
        one_each: Whether an array must have one entry for each record.

    Raises:
        TypeError: The data have another dtype, or do not consist of rows.
        ValueError: An array has another shape.
    """
    for batch in _batches(data):
        values = _plain(batch)
        if isinstance(values, np.ndarray):
            schema = Schema(values.dtype, values.shape[1:])
            check_keys(schema, kinds, one_each=one_each)
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            rows = chunk.tolist() if isinstance(chunk, np.ndarray) else chunk
            yield [_entries(row) for row in rows]


def check_keys(schema: Schema, kinds: str, *, one_each: bool = False) -> None:
    """Raises unless records hold keys; see `row_chunks`.

    Args:
        schema: The dtype and the shape of the records.
        kinds: The codes of the NumPy dtypes that records may have.
        one_each: Whether each record must have one entry.
    """
    dtype, shape = schema
    if dtype.kind not in kinds or dtype == np.uint64:
        raise TypeError(
            "`data` must have entries of the kind that the layer takes: text, "
            f"or integers that fit int64. Received: dtype {dtype}. Use "
            "IntegerLookup for integers, and StringLookup or "
            "TextVectorization for text."
        )
    if len(shape) > 1 or (one_each and shape not in ((), (1,), (None,))):
        raise ValueError(
            "`data` must have one row for each record, and one text in each "
            "row for TextVectorization. Received: shape "
            f"(records, *{shape}). Reshape the data."
        )


def _entries(row: Any) -> list[Any]:
    """Returns the entries of a record. Nested lists are not keys."""
    if isinstance(row, np.ndarray):
        row = row.tolist()
    return list(row) if isinstance(row, list | tuple) else [row]


def text_keys(entries: Iterable[Any], reserved: Set[bytes]) -> set[bytes]:
    """Returns the different texts among some entries, as UTF-8.

    Whether an entry is a key depends on the entry alone. It is not a key if it
    is missing, is not text, is not valid UTF-8 or is reserved. It is not a key
    either if it holds a zero, which ends a text in NumPy.

    Args:
        entries: The entries of one record.
        reserved: Texts that are not keys.
    """
    return {
        key
        for each in entries
        if (key := utf8(each)) is not None
        and key not in reserved
        and b"\0" not in key
    }


def integer_keys(entries: Iterable[Any], reserved: Set[int]) -> set[int]:
    """Returns the different integers among some entries.

    Args:
        entries: The entries of one record. An entry that is not an integer of
            64 bits is not a key.
        reserved: Integers that are not keys.
    """
    return {
        int(each)
        for each in entries
        if isinstance(each, int | np.integer)
        and -_LARGEST_INTEGER <= int(each) < _LARGEST_INTEGER
        and int(each) not in reserved
    }


def utf8(entry: Any) -> bytes | None:
    """Returns an entry as UTF-8, or None if it is not valid text."""
    try:
        if isinstance(entry, bytes):
            if not entry.isascii():  # Faster than decoding.
                entry.decode()
            return bytes(entry)
        return entry.encode() if isinstance(entry, str) else None
    except UnicodeError:
        return None


def _batches(data: Any) -> Iterator[Any]:
    if not is_dataset(data):
        yield data
        return
    for element in batches_of(data, None):
        yield first_of(element)


def _plain(batch: Any) -> Any:
    """Returns an array, or a list of records."""
    if isinstance(batch, list | tuple):
        return list(batch)
    if isinstance(batch, tf.RaggedTensor):
        return batch.to_list()
    if hasattr(batch, "to_numpy"):
        return np.asarray(batch.to_numpy())
    if hasattr(batch, "__array__"):
        return np.asarray(batch)
    raise TypeError(
        "`data` must be an array, a list, a column, or a data set. "
        f"Received: {type(batch).__name__}. Convert it to an array."
    )
