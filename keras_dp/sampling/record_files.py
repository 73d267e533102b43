"""Files of records, which must not change while they are in use."""

import array
import contextlib
import io
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp._nests import Nest
from keras_dp.errors import DamagedRecordsError

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Integers = npt.NDArray[np.int64]

# A record is its length, the CRC of the length, its data, and their CRC.
_HEADER, _CRC = struct.Struct("<QI"), struct.Struct("<I")
_LENGTH_BYTES, _HEADER_BYTES = 8, _HEADER.size
_FRAME_BYTES = _HEADER_BYTES + _CRC.size
# A scan reads this many bytes at once, and skips the rest of a longer record.
_SCAN_BYTES = 2**18
# The format stores CRCs rotated by 15 bits plus this number, modulo 2^32.
_MASK_DELTA = 0xA282EAD8


class RecordFile:
    """A file that must stay as it was when this object was made.

    Guarantee: if the file was exchanged, cut off or written to since then,
    reading raises an error, as far as the inode, the size and the time of the
    last change show it. A read never returns fewer bytes than were asked for.
    """

    def __init__(self, path: Path) -> None:
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
        self._state = _state(found)

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._state[1]

    def check_unchanged(self) -> None:
        """Raises if the file has changed since this object was made."""
        self._check(os.stat(self.path))

    def read(self, starts: Integers, sizes: Integers) -> list[bytes]:
        """Returns parts of the file, by their offsets and sizes in bytes."""
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
        if _state(found) != self._state:
            raise DamagedRecordsError(
                f"{self.path} must not change while it is in use. It was "
                "exchanged, cut off or written to since it was opened. Make "
                "the source anew once the file is complete."
            )


def _state(found: os.stat_result) -> tuple[int, int, int]:
    """Returns a file's inode, its bytes, and when it was last changed."""
    return found.st_ino, found.st_size, found.st_mtime_ns


class TFRecordShards:
    """The records of TFRecord files, read and parsed when they are drawn.

    Guarantee: index i is always the same record, and no part of a file belongs
    to two records, because the records of a file follow each other without a
    gap, from the first byte to the last. The checksums of all lengths are
    checked by a scan, and the checksum of a record when it is read. If a file
    is damaged, or was changed since it was scanned, an error names it.

    Files must not be compressed. Each record of a file is one example.

    Attributes:
        paths: Paths of the files, in the order of their records.

    >>> import tempfile, tensorflow as tf
    >>> path = tempfile.mkdtemp() + "/shard-0.tfrecord"
    >>> with tf.io.TFRecordWriter(path) as writer:
    ...     for label in range(100):
    ...         feature = tf.train.Feature(
    ...             int64_list=tf.train.Int64List(value=[label]))
    ...         writer.write(tf.train.Example(features=tf.train.Features(
    ...             feature={"label": feature})).SerializeToString())
    >>> features = {"label": tf.io.FixedLenFeature([], tf.int64)}
    >>> source = TFRecordShards(
    ...     [path], parse=lambda s: tf.io.parse_example(s, features)["label"])
    >>> len(source), source[np.array([3, 7, 99])].numpy()
    (100, array([ 3,  7, 99]))

    Source: the format is that of
    tensorflow/core/lib/io/record_writer.h (`RecordWriter`).
    """

    def __init__(
        self,
        paths: Sequence[Path] | Path,
        *,
        parse: Callable[[list[bytes]], Nest],
    ) -> None:
        """Scans the files, to find where each record starts.

        Args:
            paths: The path of a file, or a list of at least one.
            parse: A function from a list of serialized records to a nest of
                arrays `[records, ...]`, with one row for each record and always
                the same structure, dtypes and trailing shapes. It runs in the
                thread that prepares batches, and may call TensorFlow.

        Raises:
            DamagedRecordsError: A file is not a sound TFRecord file.
            ImportError: google-crc32c is not installed.
            OSError: A file cannot be read.
            TypeError: `parse` is not a function, or a path is of another kind.
            ValueError: There is no path.
        """
        if not callable(parse):
            raise TypeError(
                "`parse` must be a function of a list of serialized records. "
                f"Received: parse={parse!r}."
            )
        self._files = _files(paths)
        self.paths = tuple(file.path for file in self._files)
        self._parse = parse
        self._offsets = [_scanned(file) for file in self._files]
        counts = [len(each) - 1 for each in self._offsets]
        self._starts = np.cumsum([0, *counts], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, indices: Integers) -> Nest:
        return self._parse(self.serialized(indices))

    def serialized(self, indices: Integers) -> list[bytes]:
        """Returns the records at `indices` as they were written.

        Args:
            indices: Integers in increasing order, in `[0, len(self))`.

        Raises:
            DamagedRecordsError: A file changed, or a record is damaged.
            TypeError: `indices` are not integers.
            ValueError: `indices` do not increase, or are out of range.
        """
        indices = _checked(indices, len(self))
        records = []
        bounds = np.searchsorted(indices, self._starts)
        for shard in np.flatnonzero(np.diff(bounds)).tolist():
            chosen = indices[bounds[shard] : bounds[shard + 1]]
            found = chosen - self._starts[shard]
            starts = self._offsets[shard][found]
            sizes = self._offsets[shard][found + 1] - starts
            records += _records(self._files[shard], starts, sizes)
        return records


def _checked(indices: Any, size: int) -> Integers:
    """Messages name no index: it is secret which records were drawn."""
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


def _files(paths: Sequence[Path] | Path) -> list[RecordFile]:
    listed: Any = paths
    if isinstance(paths, (str, bytes, os.PathLike)):
        listed = [paths]
    if not isinstance(listed, Sequence):
        raise TypeError(
            "`paths` must be a path or a list of paths. "
            f"Received: paths={paths!r}."
        )
    if not listed:
        raise ValueError(
            "`paths` must name at least one file. Received: paths=[]."
        )
    return [RecordFile(path) for path in listed]


def _records(
    file: RecordFile, starts: Integers, sizes: Integers
) -> list[bytes]:
    """Returns the data of records whose checksums are right.

    `sizes` are the numbers of bytes up to the next record.
    """
    frames = file.read(starts + _HEADER_BYTES, sizes - _HEADER_BYTES)
    records = [frame[: -_CRC.size] for frame in frames]
    tails = b"".join(frame[-_CRC.size :] for frame in frames)
    crcs = np.array([_crc32c(each) for each in records], np.uint32)
    is_sound = _masked(crcs) == np.frombuffer(tails, "<u4")
    if not is_sound.all():
        start = int(starts[is_sound.argmin()])
        raise DamagedRecordsError(
            f"The record at offset {start} of {file.path} does not match its "
            "checksum."
        )
    return records


def _length(file: RecordFile, start: int, head: bytes) -> int:
    """Returns the number of bytes of data that a header announces."""
    length, checksum = _HEADER.unpack(head)
    if _masked(_crc32c(head[:_LENGTH_BYTES])) != checksum:
        raise DamagedRecordsError(
            f"The record at offset {start} of {file.path} has a length that "
            "does not match its checksum. Is the file compressed, or no "
            "TFRecord file?"
        )
    return int(length)


def _crc32c(data: bytes) -> int:
    with _check.needing("google-crc32c", "for TFRecord files", "cpu"):
        import google_crc32c
    return int(google_crc32c.value(data))


def _masked(crc: Any) -> Any:
    """Returns a CRC, or an array of uint32, as TFRecord files store it.

    Source: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _scanned(file: RecordFile) -> Integers:
    """Follows the lengths through a file, and checks their checksums."""
    offsets, start = array.array("q", [0]), 0
    while start < file.size:
        begin, size = start, min(_SCAN_BYTES, file.size - start)
        (block,) = file.read(np.array([begin]), np.array([size]))
        while start + _HEADER_BYTES <= begin + size:
            head = block[start - begin : start - begin + _HEADER_BYTES]
            end = start + _length(file, start, head) + _FRAME_BYTES
            if end > file.size:
                raise _cut_off(file, start)
            offsets.append(end)
            start = end
        if start == begin:
            raise _cut_off(file, start)
    return np.array(offsets, np.int64)


def _cut_off(file: RecordFile, start: int) -> DamagedRecordsError:
    return DamagedRecordsError(
        f"{file.path} ends within the record at offset {start}. Was it cut off?"
    )
