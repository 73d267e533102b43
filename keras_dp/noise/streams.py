"""Words and normal variables of a seed, drawn in pieces that XLA compiles.

A seed is a 256-bit key of ChaCha20, and is used for one draw.

A draw is cut into pieces of equal shape, which stay in the cache of a core. XLA
compiles one loop over them, which writes into one buffer, and runs each piece
on several cores. Ordinary operations draw several pieces at once. The same
pieces are drawn everywhere: a seed gives the same numbers on all devices. No
block of ChaCha20 is drawn twice: the number of the piece is the high half of
the numbers of its blocks, and the last word of the nonce is different for each
use. A piece has at most `2^32` blocks.

The 16 words of a block make eight rounded normal variables. A piece of these
has eight more blocks, whose first words are a key: that of the next draw. So a
release runs one kernel.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

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
# Ordinary operations draw so many pieces at once: fewer of them start.
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
    drawn, doubts, keys = _in_pieces(_ROUNDED_PIECE, count, seed, stddev)
    lanes = drawn.shape[-1]

    def refine(
        drawn: tf.Tensor, in_doubt: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        # The first block that is in doubt.
        place = tf.argmax(tf.cast(in_doubt, tf.int32), output_type=tf.int32)
        places = tf.stack([[place // lanes, place % lanes]])
        return (
            _refined(drawn, places, seed, stddev),
            tf.tensor_scatter_nd_update(in_doubt, [[place]], [False]),
        )

    def refined() -> tf.Tensor:
        in_doubt = _in_doubt(doubts)
        if _may_call_python():
            return _refined(drawn, tf.where(in_doubt), seed, stddev)
        return tf.while_loop(
            lambda _, in_doubt: tf.reduce_any(in_doubt),
            refine,
            (drawn, tf.reshape(in_doubt, [-1])),
        )[0]

    # One piece in about a hundred of the largest has such a block.
    settled = tf.cond(_in_doubt(tf.reduce_max(doubts)), refined, lambda: drawn)
    # Keys of further pieces are not used.
    key = tf.bitcast(tf.reshape(keys[0], [LENGTH, 2]), tf.int64)
    return tf.reshape(settled, [-1])[:count], key


def _in_doubt(doubts: tf.Tensor) -> tf.Tensor:
    return doubts >= 0


def _may_call_python() -> bool:
    # XLA cannot. Few draws are refined, and a trace without the exact
    # arithmetic has much fewer operations.
    return tf.executing_eagerly() or is_outside_xla()


def _refined(
    drawn: tf.Tensor, places: tf.Tensor, seed: tf.Tensor, stddev: tf.Tensor
) -> tf.Tensor:
    """Returns what was drawn, with the blocks of some places computed again.

    A place, of `[places, 2]`, is a piece and a lane.
    """
    places = tf.cast(places, tf.int64)
    pieces, lanes = tf.unstack(places[:, tf.newaxis], axis=2)
    rows = pieces * _ROUNDED + tf.range(_ROUNDED, dtype=tf.int64)
    values = tf.reshape(rows * drawn.shape[-1] + lanes, [-1])
    flat = tf.reshape(drawn, [-1])
    if _may_call_python():
        found = tf.numpy_function(
            _refined_by_numpy, (places, seed, stddev), tf.int32, stateful=False
        )
    else:
        found = _refined_block(places[0], seed, stddev)
    size = flat.shape.num_elements()
    has_place = size is not None and size <= tf.int32.max
    if _may_call_python() and has_place and not has_accelerator():
        # In place: nobody else has what was drawn, which may be large.
        flat = tf.raw_ops.InplaceUpdate(
            x=flat, i=tf.cast(values, tf.int32), v=found
        )
    else:
        flat = tf.tensor_scatter_nd_update(flat, values[:, tf.newaxis], found)
    return tf.reshape(flat, tf.shape(drawn))


def _refined_by_numpy(places: Array, seed: Array, stddev: Array) -> Array:
    key = seed.view(np.uint32)
    pieces, lanes = np.repeat(places.T.astype(np.uint32)[..., None], 2, axis=2)
    uses = np.array([FOR_ROUNDED, FOR_REFINED], np.uint32)
    state = [*chacha20.CONSTANTS, *key, lanes, pieces, 0, uses]
    states = [np.zeros_like(lanes) + np.uint32(word) for word in state]
    blocks = np.stack(chacha20.block(ArrayArithmetic(), states), axis=-1)
    pairs = np.moveaxis(blocks, 1, 0).reshape(2, -1, box_muller.WORDS_OF_PAIR)
    return box_muller.refined_by_integers(pairs[0], pairs[1], float(stddev))


def _refined_block(
    place: tf.Tensor, seed: tf.Tensor, stddev: tf.Tensor
) -> tf.Tensor:
    piece, lane = tf.unstack(place)
    uses = tf.constant([FOR_ROUNDED, FOR_REFINED])
    blocks = _portable_blocks(_state(seed, piece, uses, lane), 2)
    pairs = tf.reshape(tf.transpose(blocks), [2, -1, box_muller.WORDS_OF_PAIR])
    return box_muller.refined(pairs[0], pairs[1], stddev)


def _halves(count: int | tf.Tensor, seed: tf.Tensor, use: int) -> tf.Tensor:
    """Returns words of 32 bits as uint32 `[count, 2]`."""
    kind = tf.constant(use, tf.uint32)
    (drawn,) = _in_pieces(_WORD_PIECE, 2 * count, seed, kind)
    return tf.reshape(tf.reshape(drawn, [-1])[: 2 * count], [-1, 2])


def _in_pieces(
    piece: "_Piece", count: int | tf.Tensor, seed: tf.Tensor, last: tf.Tensor
) -> list[tf.Tensor]:
    """Draws equal pieces that have at least `count` values.

    Their parts are returned along a new first axis.
    """
    lanes, together = _SIZES[-1], _TOGETHER
    if tf.is_tensor(count):
        each = lanes * piece.values
        pieces = tf.maximum(1, (count + each - 1) // each)
        if not has_accelerator():
            together = 1
    else:
        blocks = max(1, -(-count // piece.values))
        pieces = -(-blocks // lanes)
        if pieces == 1:
            lanes = next(size for size in _SIZES if blocks <= size)
        else:
            lanes = -(-blocks // (pieces * _ALIGNMENT)) * _ALIGNMENT
        if pieces <= together or _has_kernel(piece, lanes, pieces):
            return _drawn(piece, lanes, pieces, seed, tf.constant(0), last)
    parts = tf.map_fn(
        lambda group: _drawn(
            piece, lanes, together, seed, group * together, last
        ),
        tf.range((pieces + together - 1) // together),
        fn_output_signature=_along(together, piece.parts(lanes)),
    )
    return [tf.reshape(part, [-1, *part.shape[2:]]) for part in parts]


def _along(count: int, specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Returns the specs of parts along a new first axis."""
    return [tf.TensorSpec([count, *of.shape], of.dtype) for of in specs]


class _Piece(NamedTuple):
    """Two ways to draw a piece of ChaCha20: by a kernel, or portably.

    Both draw the same, along a first axis of pieces. `parts` takes the number
    of lanes, and returns the specs of what is drawn of one piece. `values` is
    how many values a lane has.

    `scalars` takes the seed, the number of the piece and a last argument of a
    `kind`, and returns what all lanes of the kernel share; `number` is where
    these have the number of the piece. `body` is the kernel of a lane,
    `computed` takes the number of lanes and returns how many are computed, and
    `finished` makes of their results what is drawn. `portable` takes the lanes
    and pieces, and the arguments of `scalars`. `agree` compares what two ways
    have drawn; `last` is a last argument for this test.
    """

    parts: Callable[[int], Sequence[tf.TensorSpec]]
    values: int
    scalars: Callable[..., Sequence[tf.Tensor]]
    number: int
    body: xla.Body
    computed: Callable[[int], int]
    finished: Callable[[Sequence[Any], int], Any]
    portable: Callable[..., Any]
    agree: Callable[[Any, Any], tf.Tensor]
    last: float
    kind: tf.DType


def _drawn(
    piece: _Piece, lanes: int, pieces: int, *arguments: tf.Tensor
) -> Any:
    """Draws pieces of a seed, from the number of the first one on."""
    if _has_kernel(piece, lanes, pieces):
        return _by_kernel(piece, lanes, pieces, *arguments)
    return xla.compiled(piece.portable, lanes, pieces)(*arguments)


def _has_kernel(piece: _Piece, lanes: int, pieces: int) -> bool:
    with _TRYING:
        return _is_trusted(piece, lanes, pieces)


def _by_kernel(
    piece: _Piece, lanes: int, pieces: int, *arguments: tf.Tensor
) -> Any:
    # Scalars are made outside: XLA compiles a loop for each that it slices out
    # of a tensor, which takes as long as the kernel.
    scalars = piece.scalars(*arguments)
    return xla.compiled(_run_kernels, piece, lanes, pieces)(*scalars)


def _run_kernels(
    piece: _Piece, lanes: int, pieces: int, *scalars: tf.Tensor
) -> Any:
    def run(number: tf.Tensor) -> Any:
        shared = [*scalars]
        shared[piece.number] += number
        rows = xla.run(piece.body, piece.computed(lanes), shared)
        return piece.finished(rows, lanes)

    if pieces == 1:
        return run(tf.constant(0, tf.uint32))
    parts = tf.map_fn(
        run,
        tf.cast(tf.range(pieces), tf.uint32),
        fn_output_signature=_along(1, piece.parts(lanes)),
    )
    return [tf.squeeze(part, 1) for part in parts]


def _by_numpy(piece: _Piece, lanes: int, *arguments: tf.Tensor) -> Any:
    """Returns what the kernel should draw of one piece."""
    scalars = piece.scalars(*arguments)
    rows = xla.run_by_numpy(piece.body, piece.computed(lanes), scalars)
    return piece.finished(rows, lanes)


def _by_piece(
    rows: Sequence[tf.Tensor], pieces: int, first: int, last: int
) -> tf.Tensor:
    """Returns some lanes of rows, `[pieces, rows, last - first]`."""
    # One copy: a slice of all rows, once they are stacked, would be another.
    each = [tf.reshape(row, [pieces, -1])[:, first:last] for row in rows]
    return tf.stack(each, axis=1)


def _stacked(
    rows: Sequence[tf.Tensor], lanes: int, pieces: int = 1
) -> list[tf.Tensor]:
    return [_by_piece(rows, pieces, 0, lanes)]


def _with_key(lanes: int) -> int:
    return -(-(lanes + _KEY_BLOCKS) // _VECTORS) * _VECTORS


def _portable_words(
    lanes: int,
    pieces: int,
    seed: tf.Tensor,
    start: tf.Tensor,
    use: tf.Tensor,
) -> list[tf.Tensor]:
    state = _state(seed, start + tf.range(pieces), use)
    return _stacked(_portable_block(lanes, state), lanes, pieces)


def _portable_rounded(
    lanes: int,
    pieces: int,
    seed: tf.Tensor,
    start: tf.Tensor,
    stddev: tf.Tensor,
) -> list[tf.Tensor]:
    state = _state(seed, start + tf.range(pieces), FOR_ROUNDED)
    block = _portable_block(lanes + _KEY_BLOCKS, state)
    rows = _rounded_of(_TENSORS, block, stddev)
    return _finished(rows, lanes, pieces)


def _finished(
    rows: Sequence[tf.Tensor], lanes: int, pieces: int = 1
) -> list[tf.Tensor]:
    """Returns the parts of rows of rounded normal variables.

    The rows are those of `_rounded_of`. The lanes of the key follow the `lanes`
    of each piece; what else there is is left out. The parts of a piece are the
    variables, int32 `[8, lanes]`; float32 `[lanes]`, negative where a block is
    right; and a key, uint32 `[8]`.
    """
    drawn = _by_piece(rows[:_ROUNDED], pieces, 0, lanes)
    doubts = _by_piece(rows[_ROUNDED : _ROUNDED + 1], pieces, 0, lanes)
    last = lanes + _KEY_BLOCKS
    key = _by_piece(rows[_ROUNDED + 1 : _ROUNDED + 2], pieces, lanes, last)
    return [
        tf.bitcast(drawn, tf.int32),
        tf.bitcast(doubts[:, 0], tf.float32),
        key[:, 0],
    ]


def _parts_of_rounded(lanes: int) -> list[tf.TensorSpec]:
    return [
        tf.TensorSpec([_ROUNDED, lanes], tf.int32),
        tf.TensorSpec([lanes], tf.float32),
        tf.TensorSpec([_KEY_BLOCKS], tf.uint32),
    ]


def _scalars_of_rounded(
    seed: tf.Tensor, start: tf.Tensor, stddev: tf.Tensor
) -> list[tf.Tensor]:
    # A float64 in [2^24, 2^25) is this many steps of 2^-28, exactly.
    steps = tf.cast(stddev * 2.0**28, tf.int64)
    low, high = tf.unstack(tf.bitcast(steps, tf.uint32))
    return [tf.cast(start, tf.uint32), *_words_of_seed(seed), high, low]


def _rounded_body(
    arithmetic: TextArithmetic | ArrayArithmetic,
    lane: Lanes,
    shared: Sequence[Lanes],
) -> Sequence[Lanes]:
    start, *key, high, low = shared
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


def _same(one: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.reduce_all(one[0] == other[0])


def _same_rounded(one: Sequence[tf.Tensor], other: Sequence[tf.Tensor]) -> Any:
    (drawn, doubts, key), (others, their_doubts, other_key) = one, other
    unsure = _in_doubt(doubts) | _in_doubt(their_doubts)
    same = (drawn == others) | unsure[:, tf.newaxis]
    apart = tf.abs(doubts - their_doubts)
    return (
        tf.reduce_all(same)
        & tf.reduce_all(apart <= _MOST_APART)
        & tf.reduce_all(key == other_key)
    )


_WORD_PIECE = _Piece(
    parts=lambda lanes: [tf.TensorSpec([_WORDS, lanes], tf.uint32)],
    values=_WORDS,
    scalars=_state,
    number=_PIECE,
    body=_word_body,
    computed=lambda lanes: lanes,
    finished=_stacked,
    portable=_portable_words,
    agree=_same,
    last=FOR_WORDS,
    kind=tf.uint32,
)
_ROUNDED_PIECE = _Piece(
    parts=_parts_of_rounded,
    values=_ROUNDED,
    scalars=_scalars_of_rounded,
    number=0,
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
def _is_trusted(piece: _Piece, lanes: int, pieces: int = 1) -> bool:
    """Returns whether kernels draw what they should, in so many pieces.

    Once in each process, before the kernels draw anything, the last of their
    pieces is compared with that of NumPy. If they cannot be run, or the two
    differ, a warning is logged, and ordinary operations draw everything. On a
    machine with an accelerator, these always do.
    """
    if has_accelerator():
        return False
    with tf.init_scope(), tf.device("CPU"):
        seed, start = tf.constant([1, -2, 3, 2**62], tf.int64), tf.constant(5)
        last = tf.constant(piece.last, piece.kind)
        try:
            found = _by_kernel(piece, lanes, pieces, seed, start, last)
        except _NO_KERNEL as error:
            logging.warning(
                _SLOW, f"cannot be run: {type(error).__name__}: {error}"
            )
            return False
        expected = _by_numpy(piece, lanes, seed, start + pieces - 1, last)
        agree = piece.agree([part[-1:] for part in found], expected)
    if not agree:
        logging.warning(_SLOW, "computes something else")
    return bool(agree)
