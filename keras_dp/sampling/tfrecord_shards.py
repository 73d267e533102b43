"""Random access to the records of TFRecord files."""

import array
import itertools
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from keras_dp.errors import DamagedRecordsError
from keras_dp.sampling import saved_offsets
from keras_dp.sampling.nests import Nest
from keras_dp.sampling.record_files import (
    Path,
    RecordFile,
    Shards,
    checked_indices,
)

Integers = npt.NDArray[np.int64]

# Length (8 bytes), its CRC (4), then the data, then the data's CRC (4).
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _LENGTH.size + _CRC.size
_HEADER = np.dtype([("length", "<u8"), ("crc", "<u4")])
_FRAME_BYTES = _HEADER_BYTES + _CRC.size
# A scan reads this many bytes at once, and skips the rest of a longer record.
_SCAN_BYTES = 2**18
# The format stores CRCs rotated by 15 bits plus this number, modulo 2^32.
_MASK_DELTA = 0xA282EAD8


class TFRecordShards:
    """The records of TFRecord files, read and parsed when they are drawn.

    Guarantee: index i is always the same record, and no part of a file belongs
    to two records, because the records of a file follow each other without a
    gap, from the first byte to the last. The length and both checksums of every
    record are checked when it is read. If a file is damaged, or was changed
    since it was scanned, an error names the file and the offset.

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
        save_offsets: bool = False,
    ) -> None:
        """Finds where each record starts: by a scan, or in saved offsets.

        Args:
            paths: The path of a file, or a list of at least one.
            parse: A function from a list of serialized records to a nest of
                arrays `[records, ...]`, with one row for each record and always
                the same structure, dtypes and trailing shapes. It runs in the
                thread that prepares batches, and may call TensorFlow.
            save_offsets: Whether to save the offsets of the records of each
                file next to it, in a file with the ending ".offsets.npy". Saved
                offsets are used if they are not older than the file, and cover
                it without a gap. Otherwise the file is scanned again.

        Raises:
            DamagedRecordsError: A file is not a sound TFRecord file.
            OSError: A file cannot be read, or its offsets cannot be saved.
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
        self._offsets = [_offsets(file, save_offsets) for file in self._files]
        self._shards = Shards([len(each) - 1 for each in self._offsets])

    def __len__(self) -> int:
        return len(self._shards)

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
        indices = checked_indices(indices, len(self))
        parts = []
        for shard, _, found in self._shards.parts(indices):
            starts = self._offsets[shard][found]
            sizes = self._offsets[shard][found + 1] - starts
            _check_long(self._files[shard], starts, sizes)
            parts.append(_Part(self._files[shard], starts, sizes))
        return _records(parts)


class _Part(NamedTuple):
    """Some records of one file.

    Attributes:
        file: The file that holds the records.
        starts: The offset of each record, in bytes.
        sizes: The number of bytes up to the next record, at least
            `_FRAME_BYTES`.
    """

    file: RecordFile
    starts: Integers
    sizes: Integers


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


def _check_long(file: RecordFile, starts: Integers, sizes: Integers) -> None:
    """Reads the lengths of long records before the records themselves.

    Wrong offsets must not make a reader allocate the whole file.

    Raises:
        DamagedRecordsError: The length of a record is not its size.
    """
    long = sizes > _SCAN_BYTES
    if long.any():
        headers = file.read(starts[long], np.full(long.sum(), _HEADER_BYTES))
        for header, start, size in zip(
            headers, starts[long].tolist(), sizes[long].tolist(), strict=True
        ):
            _check_length(file, start, header, size)


def _records(parts: list[_Part]) -> list[bytes]:
    """Returns the data of records whose length and checksums are right.

    Raises:
        DamagedRecordsError: One of them is not.
    """
    if not parts:
        return []
    sizes = np.concatenate([part.sizes for part in parts])
    ends = np.cumsum(sizes)
    begins = ends - sizes
    # One buffer for all: memory of a thread is handed back when it is freed,
    # and costs a page fault each time.
    frames = np.empty(ends[-1], np.uint8)
    view = frames.data
    bounds = list(zip(begins.tolist(), ends.tolist(), strict=True))
    rows = iter([view[begin:end] for begin, end in bounds])
    for file, starts, _ in parts:
        file.read_into(list(itertools.islice(rows, len(starts))), starts)
    records = [
        bytes(view[begin + _HEADER_BYTES : end - _CRC.size])
        for begin, end in bounds
    ]
    # All at once: in Python, a comparison takes longer than a checksum.
    heads = _at(frames, begins, _HEADER)
    tails = _at(frames, ends - _CRC.size, np.dtype("<u4"))
    lengths, which = np.unique(sizes - _FRAME_BYTES, return_inverse=True)
    checksums = _masked([_LENGTH.pack(length) for length in lengths.tolist()])
    is_sound = (
        (heads["length"] == lengths[which].astype(np.uint64))
        & (heads["crc"] == checksums[which])
        & (tails == _masked(records))
    )
    if not is_sound.all():
        first = int(is_sound.argmin())
        begin, end = bounds[first]
        raise _fault(parts, first, bytes(view[begin:end]))
    return records


def _at(
    frames: npt.NDArray[np.uint8], places: Integers, dtype: np.dtype[Any]
) -> npt.NDArray[Any]:
    """Returns the value that stands at each place."""
    each = frames[places[:, np.newaxis] + np.arange(dtype.itemsize)]
    values: npt.NDArray[Any] = each.view(dtype)[:, 0]
    return values


def _fault(parts: list[_Part], index: int, frame: bytes) -> DamagedRecordsError:
    """Returns what is wrong with a record."""
    for file, starts, _ in parts:
        if index < len(starts):
            start = int(starts[index])
            try:
                _check_length(file, start, frame, len(frame))
            except DamagedRecordsError as error:
                return error
            return _damaged(file, start, "does not match its checksum")
        index -= len(starts)
    raise IndexError(index)


def _masked(parts: list[bytes]) -> npt.NDArray[np.uint32]:
    """Returns the masked checksum of each part; see `_masked_crc32c`."""
    crcs = np.array([google_crc32c.value(part) for part in parts], np.uint32)
    rotated = crcs >> np.uint32(15) | crcs << np.uint32(17)
    return rotated + np.uint32(_MASK_DELTA)  # Modulo 2^32.


def _check_length(file: RecordFile, start: int, head: bytes, size: int) -> None:
    if _LENGTH.unpack_from(head)[0] + _FRAME_BYTES != size:
        raise _damaged(file, start, "has another length than it had")
    _length(file, start, head)


def _length(file: RecordFile, start: int, head: bytes) -> int:
    """Returns the number of bytes of data that a header announces.

    Args:
        file: That holds the record.
        start: Offset of the record.
        head: Bytes from there on, at least `_HEADER_BYTES`.
    """
    length: int = _LENGTH.unpack_from(head)[0]
    (checksum,) = _CRC.unpack_from(head, _LENGTH.size)
    if _masked_crc32c(head[: _LENGTH.size]) != checksum:
        raise _damaged(
            file,
            start,
            "has a length that does not match its checksum (is the file "
            "compressed, or no TFRecord file?)",
        )
    return length


def _masked_crc32c(data: bytes) -> int:
    """Returns the checksum of TFRecord files.

    Source: tensorflow/core/lib/hash/crc32c.h (`Mask`).
    """
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _damaged(file: RecordFile, start: int, fault: str) -> DamagedRecordsError:
    return DamagedRecordsError(
        f"The record at offset {start} of {file.path} {fault}."
    )


def _offsets(file: RecordFile, save: bool) -> Integers:
    """Returns where each record starts, and where the last one ends."""
    saved = saved_offsets.load(file, _FRAME_BYTES) if save else None
    if saved is not None:
        return saved
    scanned = _scanned(file)
    if save:
        saved_offsets.save(file, scanned)
    return scanned


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
