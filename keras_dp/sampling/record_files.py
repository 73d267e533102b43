"""Reads parts of files that must not change while they are in use."""

import contextlib
import io
import os
import stat
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from keras_dp.errors import DamagedRecordsError

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Integers = npt.NDArray[np.int64]


class FileState(NamedTuple):
    """The state of a file, by which a later change is noticed.

    Attributes:
        inode: Number of the file under its name.
        size: In bytes.
        modified: Time of the last change, in nanoseconds.
    """

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        """Returns the state that a system call found."""
        return cls(found.st_ino, found.st_size, found.st_mtime_ns)


class RecordFile:
    """A file that must stay as it was when this object was made.

    Guarantee: if the file was exchanged, cut off or written to since then,
    reading raises an error, as far as the inode, the size and the time of the
    last change show it. A read never returns fewer bytes than were asked for.

    Attributes:
        path: The given path, as text.
        size: The size of the file, in bytes.
    """

    def __init__(self, path: Path) -> None:
        """Looks at the file.

        Raises:
            OSError: The file cannot be read, or is not a regular file.
            TypeError: `path` is not a path.
            ValueError: `path` holds a null character.
        """
        if not isinstance(path, (str, bytes, os.PathLike)):
            raise TypeError(f"`path` must be a path. Received: path={path!r}.")
        self.path = os.fsdecode(path)
        if "\0" in self.path:
            raise ValueError(
                "`path` must not hold a null character. "
                f"Received: path={self.path!r}."
            )
        found = os.stat(self.path)
        if not stat.S_ISREG(found.st_mode):
            # To read a pipe could wait for ever.
            raise DamagedRecordsError(f"{self.path} must be a regular file.")
        self._state = FileState.of(found)

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._state.size

    def check_unchanged(self) -> None:
        """Raises if the file has changed since this object was made.

        Raises:
            OSError: The file was exchanged, cut off or written to, or cannot be
                looked up.
        """
        self._check(os.stat(self.path))

    def read(self, starts: Integers, sizes: Integers) -> list[bytes]:
        """Returns parts of the file.

        Args:
            starts: Offset of each part, in bytes.
            sizes: Size of each part, in bytes.

        Raises:
            OSError: The file changed, or cannot be read.
        """
        with self._opened() as file:
            return [
                self._part(file, start, size)
                for start, size in zip(
                    starts.tolist(), sizes.tolist(), strict=True
                )
            ]

    def read_into(self, rows: Sequence[memoryview], starts: Integers) -> None:
        """Fills each row with the bytes from its offset on.

        Raises:
            OSError: The file changed, or cannot be read.
        """
        with self._opened() as file:
            for row, start in zip(rows, starts.tolist(), strict=True):
                file.seek(start)
                if file.readinto(row) != len(row):
                    row[:] = self._part(file, start, len(row))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[io.FileIO]:
        """Opens the file for one batch: shards may outnumber descriptors."""
        with open(self.path, "rb", buffering=0) as file:
            self._check(os.fstat(file.fileno()))
            yield file
            self._check(os.fstat(file.fileno()))

    def _part(self, file: io.FileIO, start: int, size: int) -> bytes:
        file.seek(start)
        part = file.read(size)
        while len(part) < size:  # A call may return less than it was asked for.
            more = file.read(size - len(part))
            if not more:
                raise DamagedRecordsError(
                    f"{self.path} ends within the {size} bytes at offset "
                    f"{start}. Was it cut off while it was in use?"
                )
            part += more
        return part

    def _check(self, found: os.stat_result) -> None:
        if FileState.of(found) != self._state:
            raise DamagedRecordsError(
                f"{self.path} must not change while it is in use. It was "
                "exchanged, cut off or written to since it was opened. Make "
                "the source anew once the file is complete."
            )


class Shards:
    """The places of records that are numbered through several files."""

    def __init__(self, counts: Sequence[int]) -> None:
        """Lays the shards one behind the other."""
        self._starts = np.cumsum([0, *counts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def parts(self, indices: Integers) -> Iterator[tuple[int, slice, Integers]]:
        """Yields what falls into each shard that is asked.

        Args:
            indices: Increasing.

        Yields:
            The number of a shard, which of the indices it has, and where these
            records are in the shard.
        """
        bounds = np.searchsorted(indices, self._starts)
        for shard in np.flatnonzero(np.diff(bounds)).tolist():
            chosen = slice(int(bounds[shard]), int(bounds[shard + 1]))
            yield shard, chosen, indices[chosen] - self._starts[shard]


def checked_indices(indices: Any, size: int) -> Integers:
    """Returns `indices` as a vector.

    The messages name no index, because it is secret which records were drawn.

    Raises:
        TypeError: The indices are not integers.
        ValueError: The indices do not increase, or one is not in `[0, size)`.
    """
    rule = f"`indices` must be a vector of increasing integers in [0, {size})."
    given = np.asarray(indices)
    if not given.size:  # An empty list has no dtype of its own.
        given = np.empty(given.shape, np.int64)
    if given.dtype.kind not in "iu":
        raise TypeError(f"{rule} Received: dtype {given.dtype}.")
    if given.ndim != 1:
        raise ValueError(f"{rule} Received: shape {given.shape}.")
    if given.size and (given[0] < 0 or given[-1] >= size):
        raise ValueError(f"{rule} Received: an index out of this range.")
    if (given[1:] <= given[:-1]).any():
        raise ValueError(f"{rule} Received: indices that do not increase.")
    return given.astype(np.int64, copy=False)
