"""Keeps the offsets of a file's records in a second file next to it.

The file has the .npy format, so that other tools can read it. Here it is read
more strictly than by `np.load`: it holds exactly the bytes that are written for
as many offsets, and its size is bounded before it is read.
"""

import io
import os

import numpy as np
import numpy.typing as npt

from keras_dp.sampling.record_files import RecordFile

Integers = npt.NDArray[np.int64]

_SUFFIX = ".offsets.npy"
_OFFSET_BYTES = 8


def save(file: RecordFile, offsets: Integers) -> None:
    """Writes the offsets of a file next to it.

    The index appears under its name complete or not at all. Of two processes
    that write it at once, one replaces the other's.

    Args:
        file: A file of records.
        offsets: Start of each record, and the end of the last one, in bytes.
    """
    temporary = f"{file.path}.{os.getpid()}{_SUFFIX}"
    with open(temporary, "wb") as opened:
        opened.write(_header(len(offsets)))
        opened.write(offsets.astype("<i8").tobytes())
    os.replace(temporary, file.path + _SUFFIX)


def load(file: RecordFile, shortest: int) -> Integers | None:
    """Returns saved offsets that may be those of the file, else `None`.

    Offsets that pass are a chain without gaps from the first byte to the last.
    They may still be wrong: whoever reads a record compares its length with the
    one in the file.

    Args:
        file: A file of records.
        shortest: Bytes that each record has at least, >= 1.
    """
    try:
        index = RecordFile(file.path + _SUFFIX)
        most = file.size // shortest + 1
        too_large = index.size > len(_header(most)) + _OFFSET_BYTES * most
        if too_large or index.modified < file.modified:
            return None
        (content,) = index.read(np.array([0]), np.array([index.size]))
    except OSError:  # An index that cannot be read is no index.
        return None
    return _chain(content, file.size, shortest)


def _chain(content: bytes, size: int, shortest: int) -> Integers | None:
    """Returns the offsets in an index if they can be right."""
    start = len(_header(1))  # Headers are padded to one length.
    count, rest = divmod(len(content) - start, _OFFSET_BYTES)
    if count < 1 or rest or content[:start] != _header(count):
        return None
    offsets = np.frombuffer(content, "<i8", offset=start).astype(np.int64)
    # Differences of numbers in [0, size] do not overflow.
    inside = offsets.min() >= 0 and offsets.max() <= size
    if not inside or offsets[0] != 0 or offsets[-1] != size:
        return None
    return offsets if (np.diff(offsets) >= shortest).all() else None


def _header(count: int) -> bytes:
    """Returns what a .npy file of `count` offsets begins with."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<i8", "fortran_order": False, "shape": (count,)}
    )
    return header.getvalue()
