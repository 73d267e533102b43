"""`masked_crc32c` is the CRC-32C of its definition."""

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.sampling.crc32c import masked_crc32c

LENGTHS = [0, 1, 3, 4, 5, 59, 60, 61, 63, 64, 65, 124, 125, 128, 700, 5000]


def by_definition(data):
    """Bit by bit, from the polynomial 0x1EDC6F41, then masked."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def strings(lengths):
    generator = np.random.default_rng(1)
    return [generator.bytes(length) for length in lengths]


# RFC 3720, appendix B.4, unmasked.
PUBLISHED = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "crc"), PUBLISHED)
def test_published_values(data, crc):
    (masked,) = masked_crc32c([data])

    rotated = (int(masked) - 0xA282EAD8) & 0xFFFFFFFF
    assert (rotated >> 17 | rotated << 15) & 0xFFFFFFFF == crc


def test_strings_of_any_lengths_side_by_side():
    data = strings([*LENGTHS, *LENGTHS[::-1], *range(200)])

    expected = [by_definition(each) for each in data]

    assert masked_crc32c(data).tolist() == expected
    assert masked_crc32c(data[:1]).tolist() == expected[:1]


def test_no_strings():
    assert masked_crc32c([]).shape == (0,)


def test_zeros_count():
    """Which a state of 0 would not see: strings that differ in zeros only."""
    data = [bytes(size) for size in range(300)]

    assert masked_crc32c(data).tolist() == [by_definition(x) for x in data]


def test_every_flipped_bit_is_seen():
    (data,) = strings([150])
    flipped = [
        data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :]
        for i in range(len(data))
        for bit in range(8)
    ]

    assert masked_crc32c([data])[0] not in masked_crc32c(flipped)


def test_it_is_what_tensorflow_writes(tmp_path):
    data = strings([0, 1, 100, 3136])
    with tf.io.TFRecordWriter(str(tmp_path / "a")) as writer:
        for each in data:
            writer.write(each)

    written = (tmp_path / "a").read_bytes()

    ends = np.cumsum([len(each) + 16 for each in data])
    footers = [written[end - 4 : end] for end in ends]
    np.testing.assert_array_equal(
        masked_crc32c(data), np.frombuffer(b"".join(footers), "<u4")
    )
