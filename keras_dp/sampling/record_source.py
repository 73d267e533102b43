"""Gives access to records by index, whatever holds them."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Nest = Any  # Tuples, lists and dicts, with arrays `[records, ...]` as leaves.
Indices = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class RecordSpec:
    """What one array of a record looks like.

    Attributes:
        shape: Of one record, without the leading axis.
        dtype: As the source has it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class RandomAccessSource(Protocol):
    """Holds records that need not fit in memory."""

    def __len__(self) -> int:
        """Returns the number of records."""

    def __getitem__(self, indices: Indices) -> Nest:
        """Returns the records at `indices`, stacked.

        Args:
            indices: At least one, increasing.

        Returns:
            Nest of arrays `[len(indices), ...]`, always of the same
            structure, dtypes and trailing shapes.
        """


class Records:
    """The records of arrays or of a source, alike.

    Attributes:
        structure: Nest of `RecordSpec`s, of the structure of one record.
    """

    def __init__(self, data: Nest | RandomAccessSource) -> None:
        """Looks at the shapes, and for a source at the first record.

        Args:
            data: See `PoissonBatches`.
        """
        self._source: RandomAccessSource | None = None
        self._arrays: Nest = None
        if _is_source(data):
            self._source = data
            self._size = len(data)
            if self._size:
                first = _arrays(data[np.arange(1)], "data[indices]")
                self._check_leading_axis(first, {1})
        else:
            first = self._arrays = _arrays(data, "data")
            self._size = len(_leaves(first)[0])
            self._check_leading_axis(first, {self._size})
        if not self._size:
            raise ValueError(
                "`data` must hold at least one record. Received: 0 records."
            )
        self.structure = _map(
            lambda _, leaf: RecordSpec(leaf.shape[1:], leaf.dtype), first
        )

    def __len__(self) -> int:
        return self._size

    def in_rows(self, rows: Indices) -> Nest:
        """Returns the record that each row asks for, zeros where that is -1.

        Args:
            rows: An index that occurs at most once, or -1, for each row.
        """
        places = np.flatnonzero(rows >= 0)
        order = np.argsort(rows[places], kind="stable")
        padded = self.padded(rows[places][order], len(rows))
        source = np.full(len(rows), len(places))
        source[places[order]] = np.arange(len(places))

        def arranged(_: str, leaf: npt.NDArray[Any]) -> Any:
            return leaf[source]  # Padding stands behind the last record.

        return _map(arranged, padded)

    def padded(self, indices: Indices, size: int) -> Nest:
        """Returns the records at `indices`, followed by zeros.

        Args:
            indices: At most `size`, increasing; may be empty.
            size: Length of the leading axis of what is returned.
        """
        zeros = _map(
            lambda _, spec: np.zeros((size, *spec.shape), spec.dtype),
            self.structure,
        )
        count = len(indices)
        if not count:
            return zeros
        if self._source is not None:
            taken = _arrays(self._source[indices], "data[indices]")
            return _map(
                lambda path, *leaves: _fill(path, count, *leaves),
                self.structure,
                zeros,
                taken,
            )

        def gather(_: str, array: npt.NDArray[Any], out: Any) -> Any:
            # Indices are in range; only "raise" would copy the output.
            np.take(array, indices, axis=0, out=out[:count], mode="clip")
            return out

        return _map(gather, self._arrays, zeros)

    def _check_leading_axis(self, arrays: Nest, lengths: set[int]) -> None:
        shapes = [leaf.shape for leaf in _leaves(arrays)]
        if {shape[0] for shape in shapes} != lengths:
            where = "data" if self._source is None else "data[indices]"
            raise ValueError(
                f"`{where}` must have arrays of equal length along their first "
                "axis, one entry a record. Received: shapes "
                f"{_shown(shapes)}"
                + (" for 1 index." if self._source is not None else ".")
            )


def _is_source(data: Any) -> bool:
    return (
        not isinstance(data, (tuple, list, dict, str, bytes))
        and not hasattr(data, "__array__")
        and hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
    )


def _arrays(nest: Nest, name: str) -> Nest:
    """Returns the nest with numpy arrays as leaves, which it checks."""

    def array(path: str, leaf: Any) -> npt.NDArray[Any]:
        if not hasattr(leaf, "__array__"):
            raise TypeError(
                f"`{name}` must be an array or a nest (tuple, list, dict) of "
                "arrays, or a source with `__len__` and `__getitem__`. "
                f"Received: {type(leaf).__name__} at {path}. Make lists of "
                "numbers arrays with np.asarray."
            )
        values: npt.NDArray[Any] = np.asarray(leaf)
        if not values.ndim or values.dtype.hasobject:
            raise ValueError(
                f"`{name}` must have arrays with a first axis and a dtype of "
                f"fixed size. Received: shape {values.shape} and dtype "
                f"{values.dtype} at {path}."
            )
        return values

    arrays = _map(array, nest)
    if not _leaves(arrays):
        raise TypeError(
            f"`{name}` must hold at least one array. "
            f"Received: an empty {type(nest).__name__}."
        )
    return arrays


def _fill(
    path: str,
    count: int,
    spec: RecordSpec,
    out: npt.NDArray[Any],
    taken: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Copies `taken` into `out`, if it is what was asked for."""
    expected = (count, *spec.shape)
    if taken.shape != expected or taken.dtype != spec.dtype:
        raise ValueError(
            "`data[indices]` must have the dtype and trailing shape of the "
            f"first record: {expected} and {spec.dtype} at {path}. Received: "
            f"{taken.shape} and {taken.dtype}."
        )
    out[:count] = taken
    return out


def _map(
    function: Callable[..., Any], nest: Nest, *others: Nest, path: str = ""
) -> Nest:
    """Applies `function` to the path and the leaves of nests, in step."""
    keys = _keys(nest)
    for other in others:
        if _keys(other) != keys:
            raise ValueError(
                "`data[indices]` must have the structure of the first record. "
                f"Received: {_kind(other)} at {path or '/'}, where that has "
                f"{_kind(nest)}."
            )
    if keys is None:
        return function(path or "/", nest, *others)
    children = [
        _map(
            function,
            nest[key],
            *(other[key] for other in others),
            path=f"{path}/{key}",
        )
        for key in keys
    ]
    if isinstance(nest, dict):
        return dict(zip(keys, children, strict=True))
    if hasattr(nest, "_fields"):  # A NamedTuple.
        return type(nest)(*children)
    return children if isinstance(nest, list) else tuple(children)


def _keys(nest: Nest) -> list[Any] | None:
    """Returns the keys of a node of a nest, and `None` for a leaf."""
    if isinstance(nest, dict):
        return sorted(nest, key=str)  # Equal for equal dicts, in any order.
    return list(range(len(nest))) if isinstance(nest, (tuple, list)) else None


def _kind(nest: Nest) -> str:
    keys = _keys(nest)
    if keys is None:
        return "an array"
    return f"a {type(nest).__name__} with the keys {keys}"


def _leaves(nest: Nest) -> list[Any]:
    leaves: list[Any] = []
    _map(lambda _, leaf: leaves.append(leaf), nest)
    return leaves


def _shown(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join(map(str, shapes))
