"""Random access to the records of TFRecord files."""

import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp.errors import DamagedRecordsError
from keras_dp.sampling.crc32c import masked_crc32c
from keras_dp.sampling.nests import Nest
from keras_dp.sampling.record_files import (
    Path,
    RecordFile,
    Shards,
    checked_indices,
)

Integers = npt.NDArray[np.int64]

# Length (8 bytes), its CRC (4), then the data, then the data's CRC (4).
_HEADER = struct.Struct("<QI")
_FOOTER_BYTES = 4
_FRAME_BYTES = _HEADER.size + _FOOTER_BYTES
# Read at once while lengths are scanned. What a longer record holds beyond
# that is skipped.
_SCAN_BYTES = 2**18
_INDEX_SUFFIX = ".offsets.npy"


class TFRecordShards:
    """Records of TFRecord files, read and parsed when they are drawn.

    Guarantee: position i is always the same record, and no part of a file
    belongs to two positions: offsets are those of a chain of lengths from the
    first byte to the last. Every record that is read is compared with its
    length and both checksums. A file that is damaged, or changed since it was
    scanned, raises an error that names the file and the offset.

    Files must not be compressed. Under the neighbouring relation a record of
    the file is an example.

    Attributes:
        paths: Of the files, in the order of their records.

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
        """Scans the lengths of all records.

        Args:
            paths: Files, at least one.
            parse: Turns serialized records into a nest of arrays `[records,
                ...]`, one row a record, always of the same structure, dtypes
                and trailing shapes. It runs in a thread that prepares batches,
                and may call TensorFlow.
            save_offsets: Whether to keep the offsets of each file beside it,
                under its name with the ending ".offsets.npy", and to use what
                is found there if it is not older than the file.

        Raises:
            OSError: A file cannot be read; `DamagedRecordsError` if it is no
                sound TFRecord file.
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
            indices: Increasing, in `[0, len(self))`.

        Raises:
            DamagedRecordsError: A file changed, or a record is damaged.
        """
        indices = checked_indices(indices, len(self))
        framed: list[bytes] = []
        where: list[tuple[str, int]] = []
        for shard, _, places in self._shards.parts(indices):
            starts = self._offsets[shard][places]
            sizes = self._offsets[shard][places + 1] - starts
            framed += self._files[shard].read(starts, sizes)
            where += [(self.paths[shard], start) for start in starts.tolist()]
        # At once for all files: a checksum of few records costs as much.
        return _checked(where, framed)


def _files(paths: Sequence[Path] | Path) -> list[RecordFile]:
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    if not len(paths):
        raise ValueError("`paths` must name at least one file. Received: [].")
    return [RecordFile(path) for path in paths]


def _checked(where: list[tuple[str, int]], framed: list[bytes]) -> list[bytes]:
    """Returns the data between headers and footers that are right.

    Args:
        where: Path and offset of each record.
        framed: Each record, with its header and footer.
    """
    data = [each[_HEADER.size : -_FOOTER_BYTES] for each in framed]
    headers = [_HEADER.unpack_from(each) for each in framed]
    lengths = [length for length, _ in headers]
    sound = np.array(lengths, np.uint64) == [len(each) for each in data]
    _raise_first(where, sound, "has another length than it had")
    _check_lengths(where, headers)
    footers = b"".join([each[-_FOOTER_BYTES:] for each in framed])
    sound = masked_crc32c(data) == np.frombuffer(footers, "<u4")
    _raise_first(where, sound, "does not match its checksum")
    return data


def _check_lengths(
    where: list[tuple[str, int]], headers: list[tuple[int, int]]
) -> None:
    written = np.array([crc for _, crc in headers], np.uint32)
    lengths = [length.to_bytes(8, "little") for length, _ in headers]
    _raise_first(
        where,
        masked_crc32c(lengths) == written,
        "has a length that does not match its checksum (is the file "
        "compressed, or no TFRecord file?)",
    )


def _raise_first(
    where: list[tuple[str, int]], sound: npt.NDArray[np.bool_], fault: str
) -> None:
    if not sound.all():
        path, start = where[int(np.argmin(sound))]
        raise DamagedRecordsError(
            f"The record at offset {start} of {path} {fault}."
        )


def _offsets(file: RecordFile, save: bool) -> Integers:
    """Returns where each record starts, and where the last one ends."""
    if not save:
        return _scanned(file)
    saved = _saved(file)
    if saved is None:
        saved = _scanned(file)
        # Under its name complete, or not at all; writers replace each other.
        temporary = f"{file.path}.{os.getpid()}{_INDEX_SUFFIX}"
        np.save(temporary, saved)
        os.replace(temporary, file.path + _INDEX_SUFFIX)
    return saved


def _saved(file: RecordFile) -> Integers | None:
    """Returns saved offsets that may be those of the file.

    Whether they are is seen when a record is read: offsets are a chain without
    gaps, and each length is compared with the one in the file.
    """
    path = file.path + _INDEX_SUFFIX
    try:
        if os.stat(path).st_mtime_ns < file.modified:
            return None
        offsets: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    whole = (
        offsets.ndim == 1
        and offsets.dtype == np.int64
        and len(offsets) > 0
        and offsets[0] == 0
        and offsets[-1] == file.size
        and (np.diff(offsets) >= _FRAME_BYTES).all()
    )
    return np.asarray(offsets) if whole else None


def _scanned(file: RecordFile) -> Integers:
    """Follows the lengths through a file, and checks their checksums."""
    scanned, start = [np.zeros(1, np.int64)], 0
    while start < file.size:
        begin, size = start, min(_SCAN_BYTES, file.size - start)
        (block,) = file.read(np.array([begin]), np.array([size]))
        starts, headers = [], []
        while start + _HEADER.size <= begin + size:
            headers.append(_HEADER.unpack_from(block, start - begin))
            starts.append(start)
            start += headers[-1][0] + _FRAME_BYTES
        _check_lengths([(file.path, each) for each in starts], headers)
        if not starts or start > file.size:
            raise DamagedRecordsError(
                f"{file.path} ends within the record at offset "
                f"{starts[-1] if starts else start}. Was it cut off?"
            )
        scanned.append(np.array([*starts[1:], start], np.int64))
    return np.concatenate(scanned)
