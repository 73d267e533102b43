"""Finds vocabularies, the keys that many records hold, by noised sums.

A record holds a set of keys, such as the words of a text. A key that few
records hold can identify a person. So the set of keys itself must be private.
"""

import math
from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_dp.ledger import ThresholdedSum
from keras_dp.preprocessing.columns import ColumnSchema, batches_of
from keras_dp.preprocessing.release import noised
from keras_dp.sampling.random_words import from_operating_system

Key = TypeVar("Key", bound=Hashable)

# Weights are whole numbers of `1 / UNITS`, whose sums are exact.
UNITS = 2**32
# Records at once.
_CHUNK = 2**12
_LARGEST_INTEGER = 2**63


def row_chunks(
    data: Any, kinds: str, *, one_each: bool = False
) -> Iterator[list[list[Any]]]:
    """Yields the entries of records, a chunk of records at a time.

    A record is an entry or a list of entries. Lists are not converted to
    arrays, whose entries would all take the memory of the longest one.
    """
    for batch in batches_of(data):
        values = _plain(batch)
        if isinstance(values, np.ndarray):
            schema = ColumnSchema(values.dtype, values.shape[1:])
            check_keys(schema, kinds, one_each=one_each)
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            rows = chunk.tolist() if isinstance(chunk, np.ndarray) else chunk
            yield [_entries(row) for row in rows]


def check_keys(
    schema: ColumnSchema, kinds: str, *, one_each: bool = False
) -> None:
    """Raises unless records hold keys, of dtypes with one of these codes."""
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


def text_key(entry: Any) -> bytes | None:
    """Returns an entry as UTF-8, or `None` if it is not a key.

    A key is valid text without a zero, which ends a text in NumPy.
    """
    try:
        if isinstance(entry, str):
            entry = entry.encode()
        if not isinstance(entry, bytes) or b"\0" in entry:
            return None
        if not entry.isascii():  # Faster than decoding.
            entry.decode()
        return bytes(entry)
    except UnicodeError:
        return None


def integer_key(entry: Any) -> int | None:
    """Returns an entry, or `None` if it is no integer of 64 bits."""
    is_key = isinstance(entry, int | np.integer) and (
        -_LARGEST_INTEGER <= int(entry) < _LARGEST_INTEGER
    )
    return int(entry) if is_key else None


def noised_keys(
    records: Iterable[set[Key]],
    event: ThresholdedSum,
    most: int | None,
) -> list[Key]:
    """Returns the keys that pass the threshold, the largest sums first.

    Guarantee: this is one release of `event`, which has bound 1; see
    `key_sums`. An error that no key passes follows from noised sums alone.
    """
    sums = key_sums(records, event.max_keys)
    exact = np.array([each / UNITS for each in sums.values()], np.float64)
    noisy = noised(exact, event.noise_stddev)
    order = np.argsort(-noisy)[: np.count_nonzero(noisy > event.threshold)]
    if not order.size:
        raise ValueError(
            "`data` must have a key whose noised sum exceeds the threshold. "
            f"Received: no noised sum above {event.threshold:.6g}. The round "
            "counts. Use less noise, a smaller `max_keys`, a larger "
            "`threshold_delta`, or more records."
        )
    every = list(sums)
    return [every[index] for index in order[:most].tolist()]


def key_sums(records: Iterable[set[Key]], max_keys: int) -> dict[Key, int]:
    """Returns the sums of the weights of each key, in units of `1 / UNITS`.

    A record of `t` keys adds `1 / sqrt(t)` to the sum of each of them. If it
    holds more than `max_keys` keys, it counts with `max_keys` of them, chosen
    at random. The choice depends on this record alone, and on random numbers
    that are independent of all records. The guarantee holds even for someone
    who knows these random numbers.

    Guarantee: a record adds equal weights to at most `max_keys` keys. Weights
    are rounded down to whole numbers, so that their L2 norm is at most `UNITS`.
    Sums of them are exact in any order.
    """
    sums: dict[Key, int] = {}
    for keys in records:
        held: Collection[Key] = keys
        if len(keys) > max_keys:
            every = list(keys)
            words = from_operating_system(len(every))
            least = np.argpartition(words, max_keys)[:max_keys]
            held = [every[index] for index in least.tolist()]
        if held:
            weight = math.isqrt(UNITS**2 // len(held))
            for key in held:
                sums[key] = sums.get(key, 0) + weight
    return sums


def _entries(row: Any) -> list[Any]:
    """Returns the entries of a record. Nested lists are not keys."""
    if isinstance(row, np.ndarray):
        row = row.tolist()
    return list(row) if isinstance(row, list | tuple) else [row]


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
