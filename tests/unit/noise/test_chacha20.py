"""The generator is ChaCha20, and no block is drawn twice."""

import struct

import numpy as np
import pytest
import tensorflow as tf

from keras_dp.noise import chacha20, seeds, streams, xla
from tests.unit.noise import needs_kernels

MASK = 0xFFFFFFFF
LANES = 37  # Not a multiple of a vector register.

# RFC 8439, section 2.3.2.
KEY = bytes(range(32))
NONCE = bytes.fromhex("000000090000004a00000000")
KEYSTREAM = bytes.fromhex(
    "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
    "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
)
# And appendix A.1, test vector 5: key, nonce, counter, key stream.
VECTORS = [
    (KEY, NONCE, 1, KEYSTREAM),
    (
        bytes(32),
        bytes(11) + b"\x02",
        0,
        bytes.fromhex(
            "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
            "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d"
        ),
    ),
]


def initial(key, nonce, counter):
    return [
        *struct.unpack("<4I", b"expand 32-byte k"),
        *struct.unpack("<8I", key),
        counter,
        *struct.unpack("<3I", nonce),
    ]


def reference(state):
    """A block by the text of the RFC, on Python's integers."""
    words = list(state)

    def mix(a, b, c, d):
        for x, y, z, bits in (
            (a, b, d, 16),
            (c, d, b, 12),
            (a, b, d, 8),
            (c, d, b, 7),
        ):
            words[x] = (words[x] + words[y]) & MASK
            word = words[z] ^ words[x]
            words[z] = ((word << bits) | (word >> (32 - bits))) & MASK

    for _ in range(10):
        for i in range(4):
            mix(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            mix(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return [(a + b) & MASK for a, b in zip(words, state, strict=True)]


def lanes_of(state):
    """Initial states of `LANES` blocks."""
    lanes = [tf.fill([LANES], word) for word in tf.unstack(state)]
    lanes[chacha20.COUNTER] += tf.cast(tf.range(LANES), tf.uint32)
    return tf.reshape(tf.stack(lanes), [4, 4, LANES])


@tf.function(jit_compile=True)
def fused(state):
    """Key stream of `LANES` blocks, by the kernel."""
    shared = tf.unstack(state)
    return tf.stack(xla.run(streams._word_body, LANES, shared))


def by_rows(state):
    """Key stream of `LANES` blocks, by ordinary operations."""
    return tf.reshape(chacha20.blocks(lanes_of(state)), [16, LANES])


by_rows_compiled = tf.function(by_rows, jit_compile=True)


WAYS = [
    pytest.param(fused, marks=needs_kernels, id="kernel"),
    pytest.param(by_rows, id="eager"),
    pytest.param(by_rows_compiled, id="xla"),
]
each_way = pytest.mark.parametrize("way", WAYS)


@pytest.mark.parametrize(
    ("key", "nonce", "counter", "stream"), VECTORS, ids=range(len(VECTORS))
)
def test_the_reference_is_that_of_the_rfc(key, nonce, counter, stream):
    words = reference(initial(key, nonce, counter))

    assert struct.pack("<16I", *words) == stream


@each_way
def test_all_blocks_are_those_of_the_reference(way):
    generator = np.random.default_rng(5)
    for start in (0, 12345, MASK - LANES):
        key, nonce = generator.bytes(32), generator.bytes(12)

        found = way(tf.constant(initial(key, nonce, start), tf.uint32)).numpy()

        for lane in range(LANES):
            expected = reference(initial(key, nonce, start + lane))
            assert found[:, lane].tolist() == expected


def stream_of(seed, piece, use, blocks):
    """The words of a piece, as the layout of pieces says."""
    key = seed.numpy().astype("<i8").tobytes()
    nonce = struct.pack("<3I", piece, 0, use)
    each = [reference(initial(key, nonce, i)) for i in range(blocks)]
    return np.array(each, np.uint32).T.ravel()


SEED = tf.constant([1, -2, 2**62, -(2**63)], tf.int64)


class TestStreams:
    @pytest.mark.parametrize("count", [1, 7, 128, 129, 300])
    def test_words_are_the_key_stream_under_the_seed(self, count):
        size = next(s for s in streams._SIZES if count <= 8 * s)
        whole = stream_of(SEED, 0, streams.FOR_WORDS, size)

        found = streams.words(count, SEED)

        np.testing.assert_array_equal(found, whole.view(np.int64)[:count])

    def test_new_seeds_are_another_part_of_it(self):
        whole = stream_of(SEED, 0, streams.FOR_SEEDS, 16)

        found = tf.stack(seeds.split(SEED, 3))

        expected = whole.view(np.int64)[:12].reshape(3, 4)
        np.testing.assert_array_equal(found, expected)

    def test_pieces_are_numbered(self, monkeypatch):
        monkeypatch.setattr(streams, "_SIZES", (16, 64))
        parts = [stream_of(SEED, i, streams.FOR_WORDS, 64) for i in range(3)]

        found = streams.words(3 * 64 * 8 - 5, SEED)

        expected = np.concatenate(parts).view(np.int64)[:-5]
        np.testing.assert_array_equal(found, expected)

    @pytest.mark.parametrize("compiled", [False, True])
    def test_graphs_draw_what_eager_code_draws(self, compiled):
        def draw(seed):
            return streams.words(999, seed)

        graph = tf.function(draw, jit_compile=compiled)

        np.testing.assert_array_equal(graph(SEED), draw(SEED))

    @needs_kernels
    def test_kernels_are_trusted_here(self):
        """On machines with CPUs only, which is what the speed needs."""
        assert streams._is_trusted(streams._WORD_PIECE, 16)
        assert streams._is_trusted(streams._ROUNDED_PIECE, 16)

    @needs_kernels
    def test_a_wrong_kernel_is_not_trusted(self, caplog, monkeypatch):
        by_numpy = xla.run_by_numpy

        def wrong(*arguments):
            rows = by_numpy(*arguments)
            return [rows[0] ^ (np.arange(16) == 7), *rows[1:]]

        monkeypatch.setattr(xla, "run_by_numpy", wrong)
        streams._is_trusted.cache_clear()

        assert not streams._is_trusted(streams._WORD_PIECE, 16)
        assert "computes something else" in caplog.text
        streams._is_trusted.cache_clear()

    def test_a_kernel_that_cannot_be_compiled_is_not_trusted(self):
        def body(*_):
            raise ValueError("No such operation.")

        piece = streams._WORD_PIECE._replace(body=body)

        assert not streams._is_trusted(piece, 16)
