"""Random access to arrays that are stored as several .npy files."""

import dataclasses
import tokenize
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _nests
from keras_dp.sampling.aligned import aligned_empty
from keras_dp.sampling.nests import Nest, mapped
from keras_dp.sampling.record_files import RecordFile, Shards, checked_indices

Integers = npt.NDArray[np.int64]

# Records as close as this are read at once, with what lies between them: a
# call of the system costs as much.
_SPAN_BYTES = 2**16
# NumPy parses the header of a file as Python code, and raises these if it is
# damaged.
_HEADER_ERRORS = (
    ValueError,
    TypeError,
    OverflowError,
    MemoryError,
    tokenize.TokenError,
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Stored:
    """An array in a file: records start at `offset`, one after the other."""

    file: RecordFile
    count: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class ArrayShards:
    """Records in several .npy files (shards), used as one data set.

    Records are read when they are drawn, through the page cache of the
    operating system, as from a memory map. But if a file is cut off, a memory
    map ends the process with a signal, and this raises an error.

    Guarantee: index i is always the same record. If a file was exchanged, cut
    off or written to since it was opened, an error names it.

    Attributes:
        shards: The number of shards.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for shard in range(2):
    ...     np.save(f"{folder}/x-{shard}.npy", np.ones([50, 28, 28]) * shard)
    ...     np.save(f"{folder}/y-{shard}.npy", np.arange(50) + 50 * shard)
    >>> source = ArrayShards(
    ...     [(f"{folder}/x-{i}.npy", f"{folder}/y-{i}.npy") for i in range(2)])
    >>> x, y = source[np.array([7, 49, 50])]
    >>> len(source), x.shape, x[:, 0, 0], y
    (100, (3, 28, 28), array([0., 0., 1.]), array([ 7, 49, 50]))
    """

    def __init__(self, shards: Sequence[Nest]) -> None:
        """Reads the header of each file.

        Args:
            shards: A list with a path, or a nest (tuple, dict) of paths such as
                `(x, y)`, for each shard. All arrays of a shard must have equal
                length. The arrays at one place of the nest must have equal
                dtype and record shape, and be in C order.

        Raises:
            OSError: A file cannot be read.
            ValueError: There is no shard, or a file does not fit the others.
        """
        if isinstance(shards, (str, bytes)) or not len(shards):
            raise ValueError(
                "`shards` must be a list of at least one path or nest of "
                f"paths. Received: shards={shards!r}."
            )
        self._stored = [mapped(_stored, shard) for shard in shards]
        self.shards = len(self._stored)
        first = self._stored[0]
        for stored in self._stored:
            mapped(_check_alike, first, stored)
        counts: list[int] = []
        for stored in self._stored:
            lengths = {
                leaf.file.path: leaf.count for leaf in _nests.leaves(stored)
            }
            if len(set(lengths.values())) != 1:
                raise ValueError(
                    "`shards` must have files of equal length in one shard. "
                    f"Received: {lengths}. Write each record of a shard into "
                    "all of its files."
                )
            counts += set(lengths.values())
        self._shards = Shards(counts)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, indices: Integers) -> Nest:
        indices = checked_indices(indices, len(self))
        size = len(indices)

        def empty(_: str, leaf: _Stored) -> npt.NDArray[Any]:
            return aligned_empty((size, *leaf.shape), leaf.dtype)

        out = mapped(empty, self._stored[0])
        for shard, chosen, places in self._shards.parts(indices):

            def read(
                _: str,
                leaf: _Stored,
                array: npt.NDArray[Any],
                chosen: slice = chosen,
                places: Integers = places,
            ) -> None:
                _read(leaf, places, array[chosen])

            mapped(read, self._stored[shard], out)
        return out


def _read(leaf: _Stored, places: Integers, out: npt.NDArray[Any]) -> None:
    """Fills `out` with the records at `places`, one row each."""
    rows = out.reshape(len(out), -1).view(np.uint8)
    size = rows.shape[1]
    starts = leaf.offset + places * size
    span = int(starts[-1] - starts[0]) + size
    if span > _SPAN_BYTES:
        leaf.file.read_into([row.data for row in rows], starts)
        return
    (part,) = leaf.file.read(starts[:1], np.array([span]))
    stored = np.frombuffer(part, np.uint8).reshape(-1, size)
    np.take(stored, places - places[0], axis=0, out=rows, mode="clip")


def _stored(_: str, path: Any) -> _Stored:
    """Reads the header of a .npy file, and checks the length of the file."""
    file = RecordFile(path)
    try:
        array = np.lib.format.open_memmap(file.path, mode="r")
    except _HEADER_ERRORS as error:
        raise ValueError(
            "`shards` must name sound .npy files, without Python objects. "
            f"Received: {file.path}."
        ) from error
    file.check_unchanged()
    if not array.ndim:
        raise ValueError(
            "`shards` must name .npy files with one entry a record. Received: "
            f"{file.path}."
        )
    if not array.flags.c_contiguous:
        raise ValueError(
            "`shards` must have arrays in C order, where records are not "
            f"scattered. Received: Fortran order in {file.path}."
        )
    return _Stored(
        file, len(array), array.shape[1:], array.dtype, int(array.offset)
    )


def _check_alike(_: str, first: _Stored, other: _Stored) -> None:
    if (first.shape, first.dtype) != (other.shape, other.dtype):
        raise ValueError(
            "`shards` must have records of equal shape and dtype in every "
            f"shard. Received: {first.shape} and {first.dtype} in "
            f"{first.file.path}, {other.shape} and {other.dtype} in "
            f"{other.file.path}."
        )
