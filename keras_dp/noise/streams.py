"""Words and normal variables of a seed, drawn in pieces that XLA compiles.

A seed is a tensor of int64. Its shape names its generator: `[4]` is the 256-bit
key of ChaCha20, `[2]` a seed of Philox. It is used for one draw.

A draw is cut into pieces of equal shape: a piece is compiled once, pieces run
on several cores where the caller is not compiled as a whole, and in a loop
where it is. Blocks of ChaCha20 are never drawn twice: the number of a piece is
the high half of the numbers of its blocks, and the last word of the nonce says
what they are used for. A piece has at most `2^32` blocks.
"""

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from absl import logging

from keras_dp.noise import box_muller, chacha20
from keras_dp.noise.xla import kernels
from keras_dp.noise.xla.arithmetic import (
    Arithmetic,
    Lanes,
    TensorArithmetic,
    TextArithmetic,
)

# Named, because `auto_select` is far slower under XLA on CPU.
PHILOX = "philox"
CHACHA20 = "chacha20"
LENGTHS = {CHACHA20: 4, PHILOX: 2}

# The last word of the nonce, for each use.
FOR_SEEDS = 1
FOR_WORDS = 2
FOR_NORMALS = 3

# The numbers of words, pairs and normal variables in one block.
_WORDS = chacha20.WORDS_OF_BLOCK
_PAIRS = _WORDS // box_muller.WORDS_OF_PAIR
_NORMALS = 2 * _PAIRS

# Few different sizes, so that little is compiled; 2^14 blocks take 0.5 ms. A
# single block makes two new seeds.
_SIZES = (1, 16, 256, 1024, 4096, 16384)
_ALIGNMENT = 64

# A relative error: compiled operations are contracted and reordered.
_MOST_APART = 1e-5
# Without the private operation, or with one of another signature or version.
_NO_KERNEL = (
    ImportError,
    AttributeError,
    TypeError,
    ValueError,
    tf.errors.OpError,
)

_TENSORS = TensorArithmetic()
_SLOW = (
    "Noise is drawn by ordinary TensorFlow operations, which take up to five "
    "times as long: the compiled kernel %s."
)


def generator_of(seed: tf.Tensor) -> str:
    """Returns the generator that a seed is of."""
    for name, length in LENGTHS.items():
        if seed.shape.as_list() == [length]:
            return name
    raise ValueError(
        "`seed` must be of shape [4], for ChaCha20, or [2], for Philox. "
        f"Received: seed of shape {seed.shape}."
    )


def words(
    count: int | tf.Tensor, seed: tf.Tensor, use: int = FOR_WORDS
) -> tf.Tensor:
    """Returns `[count]` words of 64 bits, as int64."""
    if generator_of(seed) == PHILOX:
        return tf.random.stateless_uniform(
            [count], seed, minval=None, maxval=None, dtype=tf.int64, alg=PHILOX
        )
    return tf.bitcast(_halves(count, seed, use), tf.int64)


def normals(
    count: int | tf.Tensor, seed: tf.Tensor, stddev: tf.Tensor
) -> tf.Tensor:
    """Returns `[count]` normal variables of the dtype of `stddev`."""
    if stddev.dtype == tf.float64:
        return _normals_in_float64(count, seed) * stddev
    if generator_of(seed) == PHILOX:

        def starts(pieces: int | tf.Tensor) -> tf.Tensor:
            return tf.random.split(seed, num=pieces, alg=PHILOX)

        def draw(lanes: int, start: tf.Tensor) -> tf.Tensor:
            return _compiled(_philox_piece, lanes)(start, stddev)

    else:
        starts = tf.range

        def draw(lanes: int, start: tf.Tensor) -> tf.Tensor:
            return _drawn(_NORMAL_PIECE, lanes, seed, start, stddev)

    return _in_pieces(draw, starts, count, _NORMALS, tf.float32)


def _normals_in_float64(count: int | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    pairs = (count + 1) // 2
    drawn = words(2 * pairs, seed)
    both = box_muller.pair_in_float64(drawn[:pairs], drawn[pairs:])
    return tf.concat(both, axis=0)[:count]


def _halves(count: int | tf.Tensor, seed: tf.Tensor, use: int) -> tf.Tensor:
    """Returns words of 32 bits as uint32 `[count, 2]`."""

    def draw(lanes: int, start: tf.Tensor) -> tf.Tensor:
        return _drawn(
            _WORD_PIECE, lanes, seed, start, tf.constant(use, tf.uint32)
        )

    drawn = _in_pieces(draw, tf.range, 2 * count, _WORDS, tf.uint32)
    return tf.reshape(drawn, [-1, 2])


def _in_pieces(
    draw: Callable[[int, tf.Tensor], tf.Tensor],
    starts: Callable[[int | tf.Tensor], tf.Tensor],
    count: int | tf.Tensor,
    each: int,
    dtype: tf.DType,
) -> tf.Tensor:
    """Returns `[count]` values from pieces of lanes with `each` values.

    Args:
        draw: Returns a piece of so many lanes.
        starts: Returns, for so many pieces, what tells `draw` them apart.
        count: Number of values.
        each: Values of a lane.
        dtype: Dtype of the values.
    """
    lanes = _SIZES[-1]
    if tf.is_tensor(count):
        pieces = (count + lanes * each - 1) // (lanes * each)
    else:
        blocks = -(-count // each)
        for size in _SIZES:
            if blocks <= size:
                return draw(size, starts(1)[0])[:count]
        pieces = -(-blocks // lanes)
        lanes = -(-blocks // (pieces * _ALIGNMENT)) * _ALIGNMENT
    drawn = tf.map_fn(
        functools.partial(draw, lanes),
        starts(pieces),
        parallel_iterations=os.cpu_count() or 1,
        fn_output_signature=tf.TensorSpec([lanes * each], dtype),
    )
    return tf.reshape(drawn, [-1])[:count]


@functools.cache
def _compiled(
    piece: Callable[..., tf.Tensor], *configuration: Any
) -> Callable[..., tf.Tensor]:
    """Returns a piece that XLA compiles once for all graphs that draw it.

    XLA compiles a function that is called eagerly apart from one that is called
    in a graph: so there is always a graph around it.
    """
    core = tf.function(
        functools.partial(piece, *configuration),
        jit_compile=True,
        autograph=False,
    )

    def in_graph(*arguments: tf.Tensor) -> tf.Tensor:
        return core(*arguments)

    return tf.function(in_graph, autograph=False)


class _Piece(NamedTuple):
    """How a piece of ChaCha20 is drawn: by a kernel, or portably.

    Attributes:
        scalars: Returns what all lanes of the kernel share, of the seed, the
            number of the piece, and the last argument.
        body: The formula of the kernel.
        portable: Draws `[lanes * each]` values with ordinary operations.
        dtype: The dtype of the values.
        last: An argument that the kernel is tried with.
    """

    scalars: Callable[..., Sequence[tf.Tensor]]
    body: kernels.Body
    portable: Callable[..., tf.Tensor]
    dtype: tf.DType
    last: float


def _drawn(
    piece: _Piece,
    lanes: int,
    seed: tf.Tensor,
    start: tf.Tensor,
    last: tf.Tensor,
) -> tf.Tensor:
    if not _is_trusted(piece, lanes):
        return _compiled(piece.portable, lanes)(seed, start, last)
    return _by_kernel(piece, lanes, seed, start, last)


def _by_kernel(
    piece: _Piece,
    lanes: int,
    seed: tf.Tensor,
    start: tf.Tensor,
    last: tf.Tensor,
) -> tf.Tensor:
    # Scalars are made outside: XLA compiles a loop for each that it slices out
    # of a tensor, which takes as long as the kernel.
    scalars = piece.scalars(seed, start, last)
    bits = _compiled(_kernel, piece.body, lanes)(*scalars)
    return tf.bitcast(tf.reshape(bits, [-1]), piece.dtype)


def _kernel(body: kernels.Body, lanes: int, *scalars: tf.Tensor) -> tf.Tensor:
    return kernels.run(body, lanes, scalars)


def _portable_words(
    lanes: int, seed: tf.Tensor, start: tf.Tensor, use: tf.Tensor
) -> tf.Tensor:
    block = _portable_block(lanes, _state(seed, start, use))
    return tf.reshape(tf.stack(block), [-1])


def _portable_normals(
    lanes: int, seed: tf.Tensor, start: tf.Tensor, stddev: tf.Tensor
) -> tf.Tensor:
    block = _portable_block(lanes, _state(seed, start, FOR_NORMALS))
    drawn = tf.stack(_normals_of(_TENSORS, block)) * stddev
    return tf.reshape(drawn, [-1])


def _scalars_of_normals(
    seed: tf.Tensor, start: tf.Tensor, stddev: tf.Tensor
) -> list[tf.Tensor]:
    return [
        *_words_of_seed(seed),
        tf.cast(start, tf.uint32),
        tf.bitcast(stddev, tf.uint32),
    ]


def _philox_piece(lanes: int, seed: tf.Tensor, stddev: tf.Tensor) -> tf.Tensor:
    blocks = tf.random.stateless_uniform(
        [_WORDS, lanes],
        seed,
        minval=None,
        maxval=None,
        dtype=tf.uint32,
        alg=PHILOX,
    )
    drawn = _normals_of(_TENSORS, tf.unstack(blocks))
    return tf.reshape(tf.stack(drawn) * stddev, [-1])


def _normals_of(arithmetic: Arithmetic, block: Sequence[Lanes]) -> list[Lanes]:
    """Returns 10 normal variables of 16 words, of which the last is unused."""
    each = box_muller.WORDS_OF_PAIR
    return [
        value
        for i in range(_PAIRS)
        for value in box_muller.pair(
            arithmetic, block[each * i : each * (i + 1)]
        )
    ]


def _words_of_seed(seed: tf.Tensor) -> list[tf.Tensor]:
    words = tf.reshape(tf.bitcast(seed, tf.uint32), [chacha20.WORDS_OF_KEY])
    return tf.unstack(words)


def _state(
    seed: tf.Tensor, start: tf.Tensor, use: tf.Tensor | int
) -> list[tf.Tensor]:
    """Returns the state of the first block of a piece, as scalars."""
    constants = [tf.constant(word, tf.uint32) for word in chacha20.CONSTANTS]
    none = tf.constant(0, tf.uint32)
    return [
        *constants,
        *_words_of_seed(seed),
        none,
        tf.cast(start, tf.uint32),
        none,
        tf.cast(use, tf.uint32),
    ]


def _word_body(
    arithmetic: TextArithmetic,
    lane: Lanes,
    shared: Sequence[Lanes],
) -> Sequence[Lanes]:
    state = list(shared)
    state[chacha20.COUNTER] = shared[chacha20.COUNTER] + lane
    return chacha20.block(arithmetic, state)


def _normal_body(
    arithmetic: TextArithmetic,
    lane: Lanes,
    shared: Sequence[Lanes],
) -> Sequence[Lanes]:
    *key, start, stddev = shared
    constants = [arithmetic.word(word) for word in chacha20.CONSTANTS]
    nonce = [start, arithmetic.word(0), arithmetic.word(FOR_NORMALS)]
    block = chacha20.block(arithmetic, [*constants, *key, lane, *nonce])
    factor = arithmetic.float_of_bits(stddev)
    return [
        arithmetic.bits_of_float(value * factor)
        for value in _normals_of(arithmetic, block)
    ]


def _portable_block(lanes: int, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns blocks `[lanes]` with the operations that every device has."""
    numbers = tf.cast(tf.range(lanes), tf.uint32)
    first = [tf.broadcast_to(word, [lanes]) for word in state]
    first[chacha20.COUNTER] += numbers
    rows = tf.reshape(tf.stack(first), [4, 4, lanes])
    drawn = tf.reshape(chacha20.blocks(rows), [_WORDS, lanes])
    return tf.unstack(drawn)


_WORD_PIECE = _Piece(_state, _word_body, _portable_words, tf.uint32, FOR_WORDS)
_NORMAL_PIECE = _Piece(
    _scalars_of_normals, _normal_body, _portable_normals, tf.float32, 1.0
)


@functools.cache
@tf.autograph.experimental.do_not_convert
def _is_trusted(piece: _Piece, lanes: int) -> bool:
    """Returns whether a kernel of so many lanes computes what it should.

    Once a process, and before it draws anything, a kernel computes a piece that
    ordinary operations compute too. If it cannot be run, or the two differ, a
    warning is logged, and the ordinary operations draw everything. On a machine
    with an accelerator they do so anyway.
    """
    if any(d.device_type != "CPU" for d in tf.config.list_physical_devices()):
        return False
    with tf.init_scope(), tf.device("CPU"):
        seed, start = tf.constant([1, -2, 3, 2**62], tf.int64), tf.constant(5)
        last = tf.constant(piece.last, piece.dtype)
        try:
            found = _by_kernel(piece, lanes, seed, start, last)
        except _NO_KERNEL as error:
            logging.warning(
                _SLOW, f"cannot be run: {type(error).__name__}: {error}"
            )
            return False
        # Compiling this too would take a second.
        expected = piece.portable(lanes, seed, start, last)
        if piece.dtype == tf.uint32:
            agree = tf.reduce_all(found == expected)
        else:
            most = _MOST_APART * tf.abs(expected)
            agree = tf.reduce_all(tf.abs(found - expected) <= most)
    if not agree:
        logging.warning(_SLOW, "computes something else")
    return bool(agree)
