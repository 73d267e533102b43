"""CRC-32C of many byte strings at once, without a compiled extension."""

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]

# The polynomial of Castagnoli et al. (1993), bits reversed.
_POLYNOMIAL = 0x82F63B78
# From state 0, these four bytes lead to the initial state 0xFFFFFFFF.
_PREFIX = bytes.fromhex("54641f64")
# Bytes that are taken in sequence; all such chunks run side by side. Longer
# ones cost steps, shorter ones cost more of them to be put together.
_CHUNK_BYTES = 64
_MASK_DELTA = np.uint32(0xA282EAD8)


def masked_crc32c(strings: Sequence[bytes]) -> Words:
    """Returns the masked CRC-32C of each string, as TFRecord files have it.

    A CRC is linear: the state after zero bytes from state 0 is 0, and that of
    a string is the sum of what its chunks contribute. So each string is
    preceded by zeros, up to a whole number of chunks; all chunks are processed
    side by side, and neighbours put together pair by pair.

    Args:
        strings: Any number, of any lengths.

    Returns:
        Shape `[len(strings)]`.

    Source: RFC 3720, section 12.1 and appendix B.4 (CRC-32C);
    tensorflow/core/lib/hash/crc32c.h (the mask). Ours is computed in chunks.

    >>> [hex(crc) for crc in masked_crc32c([b"", b"123456789"])]
    ['0xa282ead8', '0xc78ab0e5']
    """
    if not strings:
        return np.empty(0, np.uint32)
    lengths = np.fromiter(map(len, strings), np.int64, len(strings))
    counts = -(-(lengths + len(_PREFIX)) // _CHUNK_BYTES)
    padding = counts * _CHUNK_BYTES - lengths - len(_PREFIX)
    zeros = [bytes(size) + _PREFIX for size in range(_CHUNK_BYTES)]
    pieces: list[bytes] = [b""] * (2 * len(strings))
    pieces[0::2] = [zeros[size] for size in padding.tolist()]
    pieces[1::2] = strings
    crc = ~_joined(_chunk_states(b"".join(pieces)), counts)
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + _MASK_DELTA


def _chunk_states(data: bytes) -> Words:
    """Returns the state after each chunk, from state 0."""
    words = np.frombuffer(data, "<u4").reshape(-1, _CHUNK_BYTES // 4)
    low, high = _tables_of_words()
    state = np.zeros(len(words), np.uint32)
    for column in np.ascontiguousarray(words.T):
        state ^= column
        halves = state.astype("<u4", copy=False).view("<u2")
        state = low.take(halves[0::2]) ^ high.take(halves[1::2])
    return state


def _joined(states: Words, counts: npt.NDArray[np.int64]) -> Words:
    """Returns the state after all chunks of each string.

    Args:
        states: After each chunk, string by string.
        counts: Chunks of each string, at least 1.
    """
    level = 0
    while (counts > 1).any():
        # An odd number gets a chunk of zeros in front.
        odd = counts % 2
        places = np.arange(len(states)) + np.repeat(np.cumsum(odd), counts)
        even = np.zeros(len(states) + int(odd.sum()), np.uint32)
        even[places] = states
        states = _after_zeros(even[0::2], level) ^ even[1::2]
        counts = (counts + odd) // 2
        level += 1
    return states


def _after_zeros(states: Words, level: int) -> Words:
    """Returns the states after `_CHUNK_BYTES * 2**level` bytes of zeros."""
    table = _table_of_zeros(level)
    byte = states.astype("<u4", order="C").view(np.uint8).reshape(-1, 4)
    result: Words = table[0].take(byte[:, 0])
    for index in range(1, 4):
        result = result ^ table[index].take(byte[:, index])
    return result


def _after_four_zeros(states: Words) -> Words:
    """Returns the states after four bytes of zeros, by the definition."""
    one, polynomial = np.uint32(1), np.uint32(_POLYNOMIAL)
    for _ in range(32):
        states = (states >> one) ^ ((states & one) * polynomial)
    return states


@functools.cache
def _tables_of_words() -> tuple[Words, Words]:
    """Returns what the low and the high half of a word lead to."""
    halves = np.arange(2**16, dtype=np.uint32)
    return (
        _after_four_zeros(halves),
        _after_four_zeros(halves << np.uint32(16)),
    )


@functools.cache
def _table_of_zeros(level: int) -> Words:
    """Returns what each byte of a state leads to, shape `[4, 256]`."""
    shifts = np.arange(4, dtype=np.uint32)[:, np.newaxis] * np.uint32(8)
    table: Words = np.arange(256, dtype=np.uint32) << shifts
    if level:
        return _after_zeros(
            _after_zeros(table.reshape(-1), level - 1), level - 1
        ).reshape(4, 256)
    for _ in range(_CHUNK_BYTES // 4):
        table = _after_four_zeros(table)
    return table
