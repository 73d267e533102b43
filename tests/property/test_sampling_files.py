"""Whatever a file holds, it is read soundly or refused."""

import struct

import google_crc32c
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from keras_dp.errors import DamagedRecordsError
from keras_dp.sampling.record_files import TFRecordShards

RECORDS = [b"", b"a", bytes(40), b"abc" * 9, bytes(range(256))]
LENGTHS = st.integers(0, 2**64 - 1) | st.integers(0, 300)
law = settings(max_examples=300)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return str(tmp_path_factory.mktemp("records") / "file")


def masked(data):
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def framed(length, data):
    """A record that announces any length, with checksums that are right."""
    head = struct.pack("<Q", length)
    parts = head, struct.pack("<I", masked(head)), data
    return b"".join([*parts, struct.pack("<I", masked(data))])


SOUND = b"".join(framed(len(each), each) for each in RECORDS)


def put(path, content):
    with open(path, "wb") as file:
        file.write(content)


def records_of(path):
    """Returns each record, or `None` where it is refused as damaged."""
    source = TFRecordShards(path, parse=lambda records: records)
    found = []
    for index in range(len(source)):
        try:
            found += source[np.array([index])]
        except DamagedRecordsError:
            found.append(None)
    return found


def test_the_records_of_these_tests_are_those_of_tensorflow(path):
    """Control: the files below differ from sound ones by what is said."""
    with tf.io.TFRecordWriter(path) as writer:
        for each in RECORDS:
            writer.write(each)

    with open(path, "rb") as file:
        assert file.read() == SOUND
    assert records_of(path) == RECORDS


@pytest.mark.full
def test_every_flipped_bit_is_found(path):
    for bit in range(8 * len(SOUND)):
        content = bytearray(SOUND)
        content[bit // 8] ^= 1 << bit % 8
        put(path, content)
        try:
            found = records_of(path)
        except DamagedRecordsError:
            continue  # The scan stopped at a length.

        assert found.count(None) == 1
        assert all(
            each in (None, record)
            for each, record in zip(found, RECORDS, strict=True)
        )


@law
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(path, content):
    """Random bytes match a checksum with probability 2^-32."""
    put(path, content)

    if content:
        with pytest.raises(DamagedRecordsError):
            records_of(path)
    else:
        assert records_of(path) == []


@law
@given(st.lists(st.tuples(LENGTHS, st.binary(max_size=40)), max_size=4))
@example([(2**64 - 1, b"")])
@example([(2**63 - 16, b"abc")])
@example([(2**64 - 16, bytes(20)), (3, b"abc")])
def test_lengths_with_right_checksums_are_read_or_refused(path, parts):
    """A record is either what was framed, or damaged; nothing else happens."""
    put(path, b"".join(framed(*part) for part in parts))
    sound = [data for length, data in parts if length == len(data)]

    try:
        found = records_of(path)
    except DamagedRecordsError:
        assert len(sound) < len(parts)
        return
    if len(sound) == len(parts):
        assert found == sound


@pytest.mark.full
@law
@given(
    hnp.arrays(
        hnp.scalar_dtypes() | st.just(np.dtype(np.int64)),
        hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
    )
)
@example(np.array([-1]))
@example(np.array([len(RECORDS)]))
@example(np.array([2**63], np.uint64))
@example(np.array([2, 2]))
@example(np.array([5, -(2**63), 7]))  # Their difference exceeds 64 bits.
@example(np.array([2**70]))
@example(np.array(["1"]))
@example(None)
def test_any_indices_are_answered_or_refused(path, indices):
    put(path, SOUND)
    source = TFRecordShards(path, parse=lambda records: records)

    refused = None
    try:
        records = source[indices]
    except (TypeError, ValueError) as error:
        refused = str(error)

    if refused is None:
        assert records == [RECORDS[int(index)] for index in indices]
    else:
        assert refused.startswith("`indices` must be a vector of increasing")
