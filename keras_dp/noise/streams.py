"""Words and normal variables of a seed, drawn in pieces that XLA compiles.

A seed is a 256-bit key of ChaCha20, and is used for one draw.

A draw is cut into pieces of equal shape, so that XLA compiles one piece once.
The pieces run on several cores, several at once on an accelerator, or in a loop
if the caller is compiled as a whole. The same pieces are drawn everywhere: a
seed gives the same numbers on all devices. No block of ChaCha20 is drawn twice:
the number of the piece is the high half of the numbers of its blocks, and the
last word of the nonce is different for each use. A piece has at most `2^32`
blocks.

The 16 words of a block make eight rounded normal variables. A piece of these
has eight more blocks, whose first words are a key: that of the next draw. So a
release runs one kernel.
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from absl import logging

from keras_dp._devices import has_accelerator, is_outside_xla
from keras_dp.noise import box_muller, chacha20, xla
from keras_dp.noise.xla import (
    Arithmetic,
    ArrayArithmetic,
    Lanes,
    TextArithmetic,
)

Array: TypeAlias = npt.NDArray[Any]

# The number of int64 in a seed.
LENGTH = 4

# The last word of the nonce, for each use.
FOR_SEEDS = 1
FOR_WORDS = 2
FOR_ROUNDED = 4
FOR_REFINED = 5

# The numbers of words and of normal variables in one block.
_WORDS = chacha20.WORDS_OF_BLOCK
_ROUNDED = 2 * (_WORDS // box_muller.WORDS_OF_PAIR)
_START = 1  # The place of a piece's number in the arguments of its scalars.
_PIECE = chacha20.COUNTER + 1  # The place of a piece's number in the state.
_ROUNDED_ROWS = 11  # A kernel has as many results as scalars.
# Blocks of a piece that make no noise, but the next key.
_KEY_BLOCKS = chacha20.WORDS_OF_KEY
# XLA compiles the lanes that are left over after vectors, on all cores, as a
# loop of its own. A kernel has none: it computes some lanes that nobody reads.
_VECTORS = 128

# Few different sizes, so that little is compiled; 2^14 blocks take 0.5 ms. A
# single block makes two new seeds. XLA takes longer to compile 2^10.
_SIZES = (1, 16, 256, 2048, 4096, 16384)
_ALIGNMENT = 64
# An accelerator draws so many pieces at once: fewer operations start.
_TOGETHER = 16

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

# Whoever needs a kernel that another thread compiles waits for it.
_TRYING = threading.Lock()
_TENSORS = Arithmetic()
_SLOW = (
    "Noise is drawn by ordinary TensorFlow operations, which take up to five "
    "times as long: the compiled kernel %s."
)


def size_of(like: tf.Tensor) -> int | tf.Tensor:
    """Returns the number of values, static if known."""
    count = like.shape.num_elements()
    return tf.size(like) if count is None else count


def words(
    count: int | tf.Tensor, seed: tf.Tensor, use: int = FOR_WORDS
) -> tf.Tensor:
    """Returns `[count]` words of 64 bits, as int64."""
    return tf.bitcast(_halves(count, seed, use), tf.int64)


def rounded_normals(
    count: int | tf.Tensor, seed: tf.Tensor, stddev: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rounded normal variables, and the next seed.

    Guarantee: their law is that of rounded real normal variables, up to a total
    variation of `2^-97` each (docs/finite_precision.md, theorem 3).

    They are computed in float64, from 64 bits for the radius and as many for
    the angle. A block that has one too near a half-integer to round is computed
    again, from twice as many bits.

    The stddev is 0 or in `[2^24, 2^25)`. The seed must not be used again; the
    next one is from blocks that serve nothing else. The variables are int32.
    """

    def draw(lanes: int, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        drawn, doubts, key = _drawn(_ROUNDED_PIECE, lanes, seed, start, stddev)
        in_doubt = _in_doubt(doubts)

        def refine(
            drawn: tf.Tensor, in_doubt: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor]:
            # The first block that is in doubt.
            place = tf.argmax(tf.cast(in_doubt, tf.int32))
            piece = tf.reshape(start, [-1])[place // lanes]
            block = _refined(seed, piece, place % lanes, stddev)
            places = [[row, place] for row in range(_ROUNDED)]
            return (
                tf.tensor_scatter_nd_update(drawn, places, block),
                tf.tensor_scatter_nd_update(in_doubt, [[place]], [False]),
            )

        def refined() -> tf.Tensor:
            return tf.while_loop(
                lambda _, in_doubt: tf.reduce_any(in_doubt),
                refine,
                (drawn, in_doubt),
            )[0]

        # One piece in about a hundred of the largest has such a block.
        settled = tf.cond(tf.reduce_any(in_doubt), refined, lambda: drawn)
        return settled, key

    def spec(lanes: int) -> tuple[tf.TensorSpec, tf.TensorSpec]:
        return (
            tf.TensorSpec([_ROUNDED, lanes], tf.int32),
            tf.TensorSpec([_KEY_BLOCKS], tf.uint32),
        )

    drawn, keys = _in_pieces(draw, count, _ROUNDED, spec)
    # Keys of further pieces are not used.
    key = tf.reshape(tf.reshape(keys, [-1])[:_KEY_BLOCKS], [LENGTH, 2])
    key = tf.bitcast(key, tf.int64)
    return tf.reshape(drawn, [-1])[:count], key


def _in_doubt(doubts: tf.Tensor) -> tf.Tensor:
    return doubts >= 0


def _refined(*arguments: tf.Tensor) -> tf.Tensor:
    # XLA cannot call Python. Few draws come here, and a trace without the exact
    # arithmetic has much fewer operations.
    if tf.executing_eagerly() or is_outside_xla():
        block = tf.numpy_function(
            _refined_by_numpy, arguments, tf.int32, stateful=False
        )
        return tf.ensure_shape(block, [_ROUNDED])
    return _refined_block(*arguments)


def _refined_by_numpy(
    seed: Array, piece: Array, lane: Array, stddev: Array
) -> Array:
    key = seed.view(np.uint32)
    first = [*chacha20.CONSTANTS, *key, np.uint32(lane), np.uint32(piece), 0]
    states = [np.full(2, word, np.uint32) for word in first]
    uses = np.array([FOR_ROUNDED, FOR_REFINED], np.uint32)
    blocks = chacha20.block(ArrayArithmetic(), [*states, uses])
    pairs = np.stack(blocks, 1).reshape(2, -1, box_muller.WORDS_OF_PAIR)
    found: Array = box_muller.refined(np, pairs[0], pairs[1], stddev)
    return found


def _refined_block(
    seed: tf.Tensor, piece: tf.Tensor, lane: tf.Tensor, stddev: tf.Tensor
) -> tf.Tensor:
    uses = tf.constant([FOR_ROUNDED, FOR_REFINED])
    blocks = _portable_blocks(_state(seed, piece, uses, lane), 2)
    pairs = tf.reshape(tf.transpose(blocks), [2, -1, box_muller.WORDS_OF_PAIR])
    of = box_muller.OF_TENSORS
    return box_muller.refined(of, pairs[0], pairs[1], stddev)


def _halves(count: int | tf.Tensor, seed: tf.Tensor, use: int) -> tf.Tensor:
    """Returns words of 32 bits as uint32 `[count, 2]`."""

    def draw(lanes: int, start: tf.Tensor) -> tf.Tensor:
        return _drawn(
            _WORD_PIECE, lanes, seed, start, tf.constant(use, tf.uint32)
        )

    def spec(lanes: int) -> tf.TensorSpec:
        return tf.TensorSpec([_WORDS, lanes], tf.uint32)

    drawn = _in_pieces(draw, 2 * count, _WORDS, spec)
    return tf.reshape(tf.reshape(drawn, [-1])[: 2 * count], [-1, 2])


def _in_pieces(
    draw: Callable[[int, tf.Tensor], Any],
    count: int | tf.Tensor,
    each: int,
    spec: Callable[[int], Any],
) -> Any:
    """Draws at least `count` values in equal pieces, `each` from a lane.

    `draw` takes the number of lanes of a piece and its own number, and returns
    a tensor or a tuple of tensors, which end with the axis of the lanes; `spec`
    returns their specs. On an accelerator, where there are several pieces,
    `draw` takes several numbers, and returns their lanes one after another.

    Several pieces are returned along a new first axis.
    """
    lanes = _SIZES[-1]
    if tf.is_tensor(count):
        pieces = tf.maximum(1, (count + lanes * each - 1) // (lanes * each))
    else:
        blocks = max(1, -(-count // each))
        for size in _SIZES:
            if blocks <= size:
                return draw(size, tf.constant(0))
        pieces = -(-blocks // lanes)
        lanes = -(-blocks // (pieces * _ALIGNMENT)) * _ALIGNMENT
    if has_accelerator():
        return _in_groups(functools.partial(draw, lanes), pieces, spec(lanes))
    eager = tf.executing_eagerly()  # TensorFlow warns of any number there.
    return tf.map_fn(
        functools.partial(draw, lanes),
        tf.range(pieces),
        parallel_iterations=None if eager else os.cpu_count() or 1,
        fn_output_signature=spec(lanes),
    )


def _in_groups(
    draw: Callable[[tf.Tensor], Any], pieces: int | tf.Tensor, spec: Any
) -> Any:
    """Draws at least so many pieces, of the given specs, in groups."""
    together = _TOGETHER
    if not tf.is_tensor(pieces):
        together = min(together, pieces)
    groups = (pieces + together - 1) // together

    def by_piece(part: tf.Tensor, of: tf.TensorSpec) -> tf.Tensor:
        *rows, lanes = of.shape
        apart = tf.reshape(part, [*rows, together, lanes])
        return tf.experimental.numpy.moveaxis(apart, -2, 0)

    def group(number: tf.Tensor) -> Any:
        each = tf.range(together, dtype=number.dtype)
        drawn = draw(number * together + each)
        return keras.tree.map_structure(by_piece, drawn, spec)

    grouped = keras.tree.map_structure(
        lambda of: tf.TensorSpec([together, *of.shape], of.dtype), spec
    )
    drawn = tf.map_fn(group, tf.range(groups), fn_output_signature=grouped)
    return keras.tree.map_structure(
        lambda part: tf.reshape(part, [-1, *part.shape[2:]]), drawn
    )


class _Piece(NamedTuple):
    """Two ways to draw a piece of ChaCha20: by a kernel, or portably.

    Both draw the same: words, `[16, lanes]` of uint32, or what `_finished`
    returns. Portably, they draw `pieces * lanes` where the numbers of several
    pieces are given.

    `scalars` takes the seed, the number of the piece and a last argument of a
    `kind`, and returns what all lanes of the kernel share. `body` is the kernel
    of a lane, `computed` takes the number of lanes and returns how many are
    computed, and `finished` makes of their results what is drawn. `portable`
    takes the lanes and the arguments. `agree` compares what two ways have
    drawn; `last` is a last argument for this test.
    """

    scalars: Callable[..., Sequence[tf.Tensor]]
    body: xla.Body
    computed: Callable[[int], int]
    finished: Callable[[Sequence[Any], int], Any]
    portable: Callable[..., Any]
    agree: Callable[[Any, Any], tf.Tensor]
    last: float
    kind: tf.DType


def _drawn(piece: _Piece, lanes: int, *arguments: tf.Tensor) -> Any:
    with _TRYING:
        is_trusted = _is_trusted(piece, lanes)
    if not is_trusted:
        pieces = arguments[_START].shape.num_elements()
        return xla.compiled(piece.portable, lanes, kinds=pieces)(*arguments)
    return _by_kernel(piece, lanes, *arguments)


def _by_kernel(piece: _Piece, lanes: int, *arguments: tf.Tensor) -> Any:
    # Scalars are made outside: XLA compiles a loop for each that it slices out
    # of a tensor, which takes as long as the kernel.
    scalars = piece.scalars(*arguments)
    return xla.compiled(_run_kernel, piece, lanes)(*scalars)


def _run_kernel(piece: _Piece, lanes: int, *scalars: tf.Tensor) -> Any:
    rows = xla.run(piece.body, piece.computed(lanes), scalars)
    return piece.finished(rows, lanes)


def _by_numpy(piece: _Piece, lanes: int, *arguments: tf.Tensor) -> Any:
    """Returns what the kernel should draw."""
    scalars = piece.scalars(*arguments)
    rows = xla.run_by_numpy(piece.body, piece.computed(lanes), scalars)
    return piece.finished(rows, lanes)


def _stacked(rows: Sequence[Any], lanes: int) -> tf.Tensor:
    del lanes
    return tf.stack(rows)


def _with_key(lanes: int) -> int:
    return -(-(lanes + _KEY_BLOCKS) // _VECTORS) * _VECTORS


def _portable_words(lanes: int, *arguments: tf.Tensor) -> tf.Tensor:
    return tf.stack(_portable_block(lanes, _state(*arguments)))


def _portable_rounded(
    lanes: int, seed: tf.Tensor, start: tf.Tensor, stddev: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    state = _state(seed, start, FOR_ROUNDED)
    block = _portable_block(lanes + _KEY_BLOCKS, state)
    rows = _rounded_of(_TENSORS, block, stddev)
    return _finished(rows, lanes, start.shape.num_elements())


def _finished(
    rows: Sequence[tf.Tensor], lanes: int, pieces: int = 1
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the parts of rows of rounded normal variables.

    The rows are those of `_rounded_of`. The lanes of the key follow the `lanes`
    of each piece; what else there is is left out. The parts are the variables,
    int32 `[8, pieces * lanes]`; float32 `[pieces * lanes]`, negative where a
    block is right; and keys, uint32 `[pieces * 8]`.
    """

    def part(row: tf.Tensor, first: int, last: int) -> tf.Tensor:
        apart = tf.reshape(row, [pieces, -1])
        return tf.reshape(apart[:, first:last], [pieces * (last - first)])

    # One copy: a slice of all rows, once they are stacked, would be another.
    drawn = tf.stack([part(row, 0, lanes) for row in rows[:_ROUNDED]])
    doubts = part(rows[_ROUNDED], 0, lanes)
    key = part(rows[_ROUNDED + 1], lanes, lanes + _KEY_BLOCKS)
    return tf.bitcast(drawn, tf.int32), tf.bitcast(doubts, tf.float32), key


def _scalars_of_rounded(
    seed: tf.Tensor, start: tf.Tensor, stddev: tf.Tensor
) -> list[tf.Tensor]:
    # A float64 in [2^24, 2^25) is this many steps of 2^-28, exactly.
    steps = tf.cast(stddev * 2.0**28, tf.int64)
    low, high = tf.unstack(tf.bitcast(steps, tf.uint32))
    return [*_words_of_seed(seed), tf.cast(start, tf.uint32), high, low]


def _rounded_body(
    arithmetic: TextArithmetic | ArrayArithmetic,
    lane: Lanes,
    shared: Sequence[Lanes],
) -> Sequence[Lanes]:
    *key, start, high, low = shared
    constants = [arithmetic.word(word) for word in chacha20.CONSTANTS]
    nonce = [start, arithmetic.word(0), arithmetic.word(FOR_ROUNDED)]
    block = chacha20.block(arithmetic, [*constants, *key, lane, *nonce])
    stddev = arithmetic.as_double(high) * 2.0**4
    stddev = stddev + arithmetic.as_double(low) * 2.0**-28
    none = arithmetic.word(0)
    rows = _rounded_of(arithmetic, block, stddev)
    return rows + [none] * (_ROUNDED_ROWS - len(rows))


def _rounded_of(
    arithmetic: Arithmetic, block: Sequence[Lanes], stddev: Lanes
) -> list[Lanes]:
    """Returns the bits of 8 rounded normal variables from 16 words.

    Then follow those of a float32, which is negative if all of them are right,
    and the first word.
    """
    each = box_muller.WORDS_OF_PAIR
    rows, doubts = [], []
    for i in range(len(block) // each):
        one, other, error = box_muller.pair(
            arithmetic, block[each * i : each * (i + 1)]
        )
        values = one * stddev, other * stddev
        rows += [arithmetic.bits_of_rounded(value) for value in values]
        farthest = arithmetic.maximum(*map(arithmetic.off_grid, values))
        doubts.append(farthest + error * stddev)
    doubt = functools.reduce(arithmetic.maximum, doubts) - 0.5
    bits = arithmetic.bits_of_float(arithmetic.narrowed(doubt))
    return [*rows, bits, block[0]]


def _words_of_seed(seed: tf.Tensor) -> list[tf.Tensor]:
    words = tf.reshape(tf.bitcast(seed, tf.uint32), [chacha20.WORDS_OF_KEY])
    return tf.unstack(words)


def _state(
    seed: tf.Tensor,
    start: tf.Tensor,
    use: tf.Tensor | int,
    lane: tf.Tensor | int = 0,
) -> list[tf.Tensor]:
    """Returns the state of a block of a piece, the first one by default.

    The number of the piece is a scalar, or `[pieces]`.
    """
    constants = [tf.constant(word, tf.uint32) for word in chacha20.CONSTANTS]
    return [
        *constants,
        *_words_of_seed(seed),
        tf.cast(lane, tf.uint32),
        tf.cast(start, tf.uint32),
        tf.constant(0, tf.uint32),
        tf.cast(use, tf.uint32),
    ]


def _word_body(
    arithmetic: TextArithmetic | ArrayArithmetic,
    lane: Lanes,
    shared: Sequence[Lanes],
) -> Sequence[Lanes]:
    state = list(shared)
    state[chacha20.COUNTER] = shared[chacha20.COUNTER] + lane
    return chacha20.block(arithmetic, state)


def _portable_block(lanes: int, state: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns blocks `[pieces * lanes]`, by operations of every device."""
    start = tf.reshape(state[_PIECE], [-1, 1])
    lane = state[chacha20.COUNTER] + tf.cast(tf.range(lanes), tf.uint32)
    each = tf.broadcast_to(lane, [tf.size(start), lanes])
    first = [*state]
    first[chacha20.COUNTER] = tf.reshape(each, [-1])
    first[_PIECE] = tf.repeat(tf.reshape(start, [-1]), lanes)
    return tf.unstack(_portable_blocks(first, tf.size(each)))


def _portable_blocks(
    state: Sequence[tf.Tensor], lanes: int | tf.Tensor
) -> tf.Tensor:
    """Returns the words `[16, lanes]` of states of scalars or `[lanes]`."""
    first = [tf.broadcast_to(word, [lanes]) for word in state]
    rows = tf.reshape(tf.stack(first), [4, 4, lanes])
    return tf.reshape(chacha20.blocks(rows), [_WORDS, lanes])


def _same(one: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    return tf.reduce_all(one == other)


def _same_rounded(one: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> Any:
    (drawn, doubts, key), (others, their_doubts, other_key) = one, other
    same = (drawn == others) | _in_doubt(doubts) | _in_doubt(their_doubts)
    apart = tf.abs(doubts - their_doubts)
    return (
        tf.reduce_all(same)
        & tf.reduce_all(apart <= _MOST_APART)
        & _same(key, other_key)
    )


_WORD_PIECE = _Piece(
    scalars=_state,
    body=_word_body,
    computed=lambda lanes: lanes,
    finished=_stacked,
    portable=_portable_words,
    agree=_same,
    last=FOR_WORDS,
    kind=tf.uint32,
)
_ROUNDED_PIECE = _Piece(
    scalars=_scalars_of_rounded,
    body=_rounded_body,
    computed=_with_key,
    finished=_finished,
    portable=_portable_rounded,
    agree=_same_rounded,
    last=2.0**24,
    kind=tf.float64,
)


@functools.cache
@tf.autograph.experimental.do_not_convert
def _is_trusted(piece: _Piece, lanes: int) -> bool:
    """Returns whether a kernel computes what it should, for a number of lanes.

    Once in each process, before the kernel draws anything, its result for one
    piece is compared with that of NumPy. If it cannot be run, or the two
    differ, a warning is logged, and ordinary operations draw everything. On a
    machine with an accelerator, these always do.
    """
    if has_accelerator():
        return False
    with tf.init_scope(), tf.device("CPU"):
        seed, start = tf.constant([1, -2, 3, 2**62], tf.int64), tf.constant(5)
        last = tf.constant(piece.last, piece.kind)
        try:
            found = _by_kernel(piece, lanes, seed, start, last)
        except _NO_KERNEL as error:
            logging.warning(
                _SLOW, f"cannot be run: {type(error).__name__}: {error}"
            )
            return False
        agree = piece.agree(found, _by_numpy(piece, lanes, seed, start, last))
    if not agree:
        logging.warning(_SLOW, "computes something else")
    return bool(agree)
