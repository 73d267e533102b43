"""Reads parts of files that must not change while they are in use."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from keras_dp.errors import DamagedRecordsError

Path = str | os.PathLike[str]
Integers = npt.NDArray[np.int64]


class FileState(NamedTuple):
    """What tells that a file was exchanged, cut off or written to.

    Attributes:
        inode: Number of the file under its name.
        size: In bytes.
        modified: Time of the last change, in nanoseconds.
    """

    inode: int
    size: int
    modified: int

    @classmethod
    def of(cls, stat: os.stat_result) -> Self:
        """Returns what a system call found."""
        return cls(stat.st_ino, stat.st_size, stat.st_mtime_ns)


class RecordFile:
    """A file as it was when it was first looked at.

    Guarantee: nothing is read, but an error raised, from a file that was
    exchanged, cut off or written to since then, as far as its inode, size and
    time of change tell; and never fewer bytes than were asked for.

    Attributes:
        path: As it was given, as text.
        size: In bytes.
    """

    def __init__(self, path: Path) -> None:
        """Looks at the file.

        Raises:
            OSError: It cannot be read.
        """
        self.path = os.fspath(path)
        self._state = FileState.of(os.stat(self.path))

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._state.size

    @property
    def modified(self) -> int:
        """Time of the last change, in nanoseconds."""
        return self._state.modified

    def check_unchanged(self) -> None:
        """Raises if the file under the name is another by now.

        Raises:
            OSError: It is, or cannot be looked at.
        """
        self._check(os.stat(self.path))

    def read(self, starts: Integers, sizes: Integers) -> list[bytes]:
        """Returns parts of the file.

        Args:
            starts: Offset of each part, in bytes.
            sizes: Of each part, in bytes.

        Raises:
            OSError: The file changed, or cannot be read.
        """
        parts = []
        with _Opened(self) as descriptor:
            for start, size in zip(
                starts.tolist(), sizes.tolist(), strict=True
            ):
                part = os.pread(descriptor, size, start)
                if len(part) != size:
                    part = self._rest(descriptor, part, start, size)
                parts.append(part)
        return parts

    def read_into(self, rows: Sequence[memoryview], starts: Integers) -> None:
        """Fills each row with the bytes from its offset on.

        Raises:
            OSError: The file changed, or cannot be read.
        """
        with _Opened(self) as descriptor:
            for row, start in zip(rows, starts.tolist(), strict=True):
                if os.preadv(descriptor, [row], start) != len(row):
                    row[:] = self._rest(descriptor, b"", start, len(row))

    def _rest(
        self, descriptor: int, part: bytes, start: int, size: int
    ) -> bytes:
        """Reads on where a system call returned less than it was asked for."""
        parts = [part]
        missing = size - len(part)
        while missing:
            more = os.pread(descriptor, missing, start + size - missing)
            if not more:
                raise DamagedRecordsError(
                    f"{self.path} ends within the {size} bytes at offset "
                    f"{start}. Was it cut off while it was in use?"
                )
            parts.append(more)
            missing -= len(more)
        return b"".join(parts)

    def _check(self, stat: os.stat_result) -> None:
        if FileState.of(stat) != self._state:
            raise DamagedRecordsError(
                f"{self.path} must not change while it is in use. It was "
                "exchanged, cut off or written to since it was opened. Make "
                "the source anew once the file is complete."
            )


class _Opened:
    """Opens a file for one batch, for shards may outnumber descriptors."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file

    def __enter__(self) -> int:
        self._descriptor = os.open(self._file.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._file._check(os.fstat(self._descriptor))
        except BaseException:
            os.close(self._descriptor)
            raise
        return self._descriptor

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self._file._check(os.fstat(self._descriptor))
        finally:
            os.close(self._descriptor)


class Shards:
    """Where records are that follow each other through several files."""

    def __init__(self, counts: Sequence[int]) -> None:
        """Lays the shards one behind the other.

        Args:
            counts: Records of each shard.
        """
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

    Raises:
        IndexError: They do not increase, or are out of `[0, size)`.
    """
    checked: Integers = np.asarray(indices, np.int64)
    inside = checked.ndim == 1 and (
        not checked.size or (checked[0] >= 0 and checked[-1] < size)
    )
    if not inside or (np.diff(checked) <= 0).any():
        raise IndexError(
            f"`indices` must be a vector of increasing indices in [0, {size})."
        )
    return checked
