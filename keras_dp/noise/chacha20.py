"""The block function of ChaCha20, for many blocks (*lanes*) at once.

The state is the one of RFC 8439, section 2.3: constants, a key of eight words,
a counter, and a nonce of three words. The number of a block has 64 bits: its
low half is the counter, and its high half is the first word of the nonce. The
last word of the nonce is different for each use of a key.

Source: Nir and Langley (2018), RFC 8439, sections 2.1 to 2.4. We differ in the
number of a block, which has 64 bits instead of 32, as in Bernstein (2008),
"ChaCha, a variant of Salsa20".
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_dp.noise.xla import (
    Arithmetic,
    Lanes,
)

# "expand 32-byte k", as little-endian words.
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
WORDS_OF_KEY = 8
WORDS_OF_BLOCK = 16
COUNTER = 12  # Its place in the state.
DOUBLE_ROUNDS = 10

_COLUMNS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15))
_DIAGONALS = ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))


def quarter_round(
    arithmetic: Arithmetic, a: Lanes, b: Lanes, c: Lanes, d: Lanes
) -> tuple[Lanes, Lanes, Lanes, Lanes]:
    """Returns four words of the state after one quarter round."""
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotated(arithmetic, d ^ a, first)
        c = c + d
        b = _rotated(arithmetic, b ^ c, second)
    return a, b, c, d


def block(arithmetic: Arithmetic, state: Sequence[Lanes]) -> list[Lanes]:
    """Returns the 16 words of the key stream for an initial state."""
    words = list(state)
    for _ in range(DOUBLE_ROUNDS):
        for places in (*_COLUMNS, *_DIAGONALS):
            mixed = quarter_round(arithmetic, *(words[i] for i in places))
            for i, word in zip(places, mixed, strict=True):
                words[i] = word
    return [mixed + own for mixed, own in zip(words, state, strict=True)]


def blocks(state: tf.Tensor) -> tf.Tensor:
    """Returns the key stream for initial states, `[4, 4, blocks]` of uint32.

    It loops over the rounds, and rolls the rows of the state so that diagonals
    become columns. This is slow, but there is little to compile.
    """
    arithmetic = Arithmetic()

    def rolled(rows: Sequence[Lanes], step: int) -> list[Lanes]:
        return [tf.roll(row, step * i, 0) for i, row in enumerate(rows)]

    def double_round(i: tf.Tensor, *rows: tf.Tensor) -> list[tf.Tensor]:
        mixed = rolled(quarter_round(arithmetic, *rows), -1)
        return [i + 1, *rolled(quarter_round(arithmetic, *mixed), 1)]

    _, *mixed = tf.while_loop(
        lambda i, *_: i < DOUBLE_ROUNDS,
        double_round,
        [tf.constant(0), *tf.unstack(state)],
    )
    return tf.stack(mixed) + state


def _rotated(arithmetic: Arithmetic, words: Lanes, bits: int) -> Lanes:
    left = arithmetic.shifted_left(words, bits)
    return left | arithmetic.shifted_right(words, 32 - bits)
