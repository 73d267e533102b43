"""A file of records, which must not change while it is in use."""

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple, Self

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
