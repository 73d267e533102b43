"""Access to records by their index, in arrays or in any other source."""

import dataclasses
import math
import mmap
from collections.abc import Iterator
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _nests
from keras_dp._nests import Nest, mapped
from keras_dp.sampling.kinds import as_array, check_kinds, is_dataset
from keras_dp.sampling.record_files import RecordFile

Indices = npt.NDArray[np.int64]

# Eigen asks for it where vectors are widest (AVX-512); the buffers of an
# ordinary array start anywhere at a multiple of 16.
ALIGNMENT_BYTES = 64
_MOST_SHOWN = 4
_RULE = "`data[indices]` must have the structure of the first record."


@dataclasses.dataclass(frozen=True, slots=True)
class RecordSpec:
    """The shape and dtype of one array of a record.

    Attributes:
        shape: The shape for one record, without the leading axis.
        dtype: The dtype in the source, in the byte order of the machine. For
            text, the length of later records may differ.

    >>> RecordSpec(shape=(28, 28), dtype=np.dtype("f4")).shape
    (28, 28)
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, array: npt.NDArray[Any]) -> Self:
        """Returns what the records of an array are."""
        return cls(array.shape[1:], array.dtype.newbyteorder("="))

    def fits(self, array: npt.NDArray[Any]) -> bool:
        """Whether an array holds records like this one."""
        other = self.of(array)
        are_text = other.dtype.kind == self.dtype.kind == "S"
        return other == self or (are_text and other.shape == self.shape)


class RandomAccessSource(Protocol):
    """A source of records, which need not fit in memory.

    Any class with these two methods will do. Index i must always be the same
    record. While a model trains, another thread, which prepares the batches,
    asks for the records.
    """

    def __len__(self) -> int:
        """Returns the number of records."""

    def __getitem__(self, indices: Indices) -> Nest:
        """Returns the records at `indices`, stacked.

        Args:
            indices: At least one integer, in increasing order.

        Returns:
            Nest of arrays `[len(indices), ...]`, always of the same
            structure, dtypes and trailing shapes.
        """


class Source:
    """The records of arrays or of a source, alike.

    The leaves of its structure are the `RecordSpec`s of one record.
    """

    def __init__(self, data: Nest | RandomAccessSource) -> None:
        """Looks at the shapes, and for a source at the first record."""
        self._source: RandomAccessSource | None = None
        self._is_mapped = False
        self._arrays: Nest = None
        self._files: list[RecordFile] = []
        if is_dataset(data):
            raise TypeError(
                "`data` must give access to its records in any order. Received:"
                f" {type(data).__name__}, which yields them in its own. Use "
                "from_dataset(dataset, ...) of the sampler, such as "
                "PoissonBatches.from_dataset(dataset, sampling_probability="
                "...), which stores the records."
            )
        if is_source(data):
            check_kinds(data, "data")
            self._source = data
            self._size = len(data)
            if self._size:
                first = as_arrays(data[np.arange(1)], "data[indices]")
                self._check_leading_axis(first, {1})
        else:
            first = self._arrays = as_arrays(data, "data")
            self._files = _mapped_files(data)
            self._is_mapped = any(
                isinstance(leaf, np.memmap) for leaf in _nests.leaves(data)
            )
            self._size = len(_nests.leaves(first)[0])
            self._check_leading_axis(first, {self._size})
        if not self._size:
            raise ValueError(
                "`data` must hold at least one record. Received: 0 records."
            )
        self.structure = mapped(lambda _, leaf: RecordSpec.of(leaf), first)

    def __len__(self) -> int:
        return self._size

    @property
    def in_memory(self) -> Nest:
        """Nest of arrays `[records, ...]`; `None` for what is read from files.

        Nothing is known of where a source has its records.
        """
        return None if self._is_mapped else self._arrays

    def in_rows(self, rows: Indices) -> Nest:
        """Returns the record that each row asks for, zeros where that is -1.

        No index occurs twice. Records on disk are read in the order of the
        data, which disks like best, whatever the order of the rows. The arrays
        are new: nobody else holds or writes to them. They start where
        TensorFlow may use them without a copy.
        """
        indices = np.sort(rows[rows >= 0])
        if not indices.size:
            return mapped(
                lambda _, spec: _zeros(len(rows), spec), self.structure
            )
        if self._source is not None:
            taken = self._answer(self._source, indices)
            places = np.where(rows < 0, rows, np.searchsorted(indices, rows))
            return mapped(lambda _, leaf: in_places(leaf, places), taken)
        for file in self._files:
            file.check_unchanged()
        if self._is_mapped:
            mapped(lambda _, leaf: _page_in(leaf, indices), self._arrays)
        placed = mapped(lambda _, leaf: in_places(leaf, rows), self._arrays)
        for file in self._files:
            file.check_unchanged()
        return placed

    def _answer(self, source: RandomAccessSource, indices: Indices) -> Nest:
        taken = as_arrays(source[indices], "data[indices]")
        mapped(
            lambda path, *leaves: _check_answer(path, indices, *leaves),
            self.structure,
            taken,
            rule=_RULE,
        )
        return taken

    def _check_leading_axis(self, arrays: Nest, lengths: set[int]) -> None:
        shapes = [leaf.shape for leaf in _nests.leaves(arrays)]
        if {shape[0] for shape in shapes} != lengths:
            where = "data" if self._source is None else "data[indices]"
            raise ValueError(
                f"`{where}` must have arrays of equal length along their first "
                "axis, one entry a record. Received: shapes "
                f"{_shown(shapes)}"
                + (" for 1 index." if self._source is not None else ".")
                + " Make a list of records one array with np.stack."
            )


def in_places(array: npt.NDArray[Any], rows: Indices) -> npt.NDArray[Any]:
    """Returns the entry that each row asks for, zeros where that is -1."""
    spec = RecordSpec.of(array)
    if not len(array):
        return _zeros(len(rows), spec)
    out = aligned_empty((len(rows), *spec.shape), spec.dtype)
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        # Only "raise" would copy the output first; "clip" makes 0 of -1.
        np.take(array, rows, axis=0, out=out, mode="clip")
    else:  # Here `take` would copy the whole array first.
        in_order = np.argsort(rows)
        in_order = in_order[rows[in_order] >= 0]
        out[in_order] = array[rows[in_order]]
    out[rows < 0] = np.zeros((), spec.dtype)
    return out


def _page_in(array: npt.NDArray[Any], indices: Indices) -> None:
    """Reads an entry of each page of the records, in the order of the data.

    The records are then in memory, and cost no more in the order of the rows.
    """
    if array.flags.c_contiguous and array.size:
        step = max(1, mmap.PAGESIZE // array.itemsize)
        array.reshape(len(array), -1)[:, ::step][indices]


def _zeros(size: int, spec: RecordSpec) -> npt.NDArray[Any]:
    out = aligned_empty((size, *spec.shape), spec.dtype)
    out[...] = np.zeros((), spec.dtype)
    return out


def _mapped_files(data: Nest) -> list[RecordFile]:
    """Returns the files of memory maps that are only read."""
    paths = {
        leaf.filename: RecordFile(leaf.filename)
        for leaf in _nests.leaves(data)
        if isinstance(leaf, np.memmap)
        and leaf.mode in ("r", "c")
        and leaf.filename is not None
    }
    return list(paths.values())


def is_source(data: Any) -> bool:
    """Whether data are a `RandomAccessSource` instead of arrays."""
    return (
        not isinstance(data, (tuple, list, dict, str, bytes))
        and not hasattr(data, "__array__")
        and hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
    )


def as_arrays(nest: Nest, name: str = "data") -> Nest:
    """Returns a nest with arrays of NumPy as leaves; see `as_array`."""

    def array(path: str, leaf: Any) -> npt.NDArray[Any]:
        if not hasattr(leaf, "__array__"):
            remedy = ""
            if isinstance(leaf, Iterator):
                remedy = (
                    " Make arrays of what it yields, or a data set by "
                    "tf.data.Dataset.from_generator."
                )
            raise TypeError(
                f"`{name}` must be an array or a nest (tuple, list, dict) of "
                "arrays, or a source with `__len__` and `__getitem__`. "
                f"Received: {type(leaf).__name__} at {path}.{remedy}"
            )
        return as_array(leaf, name, path)

    check_kinds(nest, name)
    arrays = mapped(array, nest)
    if not _nests.leaves(arrays):
        raise TypeError(
            f"`{name}` must hold at least one array. "
            f"Received: an empty {type(nest).__name__}."
        )
    return arrays


def _check_answer(
    path: str, indices: Indices, spec: RecordSpec, taken: npt.NDArray[Any]
) -> None:
    expected = (len(indices), *spec.shape)
    if len(taken) != len(indices) or not spec.fits(taken):
        raise ValueError(
            "`data[indices]` must have the dtype and trailing shape of the "
            f"first record: {expected} and {spec.dtype} at {path}. Received: "
            f"{taken.shape} and {taken.dtype}."
        )


def _shown(shapes: list[tuple[int, ...]]) -> str:
    if len(shapes) <= _MOST_SHOWN:
        return ", ".join(map(str, shapes))
    first = _shown(shapes[:_MOST_SHOWN])
    return f"{first} and {len(shapes) - _MOST_SHOWN:,} more"


def aligned_empty(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Returns a new array, not initialized."""
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return np.empty(shape, dtype)
    raw = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT_BYTES
    array: npt.NDArray[Any] = raw[start : start + size].view(dtype)
    return array.reshape(shape)
