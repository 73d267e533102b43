"""Rounded normal variables beside their definition, in mpmath.

The lemmas are those of docs/finite_precision.md. Seeds are fixed. Had they been
free, the tests of laws would fail for a correct library with probability
`FALSE_ALARM`.
"""

import functools

import mpmath
import numpy as np
import pytest
import tensorflow as tf

from keras_dp._devices import outside_xla
from keras_dp.noise import box_muller, seeds, streams
from keras_dp.noise.xla import Arithmetic

FALSE_ALARM = 1e-6
STDDEV = 1.3 * 2.0**24
UNIT = tf.constant(STDDEV, tf.float64)
HALF_BITS = 2**32 - 1


@pytest.fixture(autouse=True)
def many_digits():
    with mpmath.workprec(400):
        yield


def rng():
    return np.random.default_rng(1)


def words(count):
    """Words of pairs: most random, some with extreme radii and angles."""
    drawn = rng().integers(0, 2**32, (count, 4), np.uint32)
    drawn[:9, :2] = 0
    drawn[9:18, :2] = HALF_BITS
    drawn[18:27, 2:] = 0
    drawn[27:36, 2:] = HALF_BITS
    drawn[36:45, 0] = 0
    drawn[45:54, 0] >>= np.arange(9, 27, 2, np.uint32)
    drawn[54:63, 0] |= ~(np.uint32(HALF_BITS) >> np.arange(9, 27, 2, np.uint32))
    drawn[63:72, 2:] = [2**31, 0]
    return drawn


def of_words(parts):
    """Returns the integer of words of 32 bits, from the highest on."""
    return functools.reduce(lambda whole, part: whole * 2**32 + part, parts, 0)


def sides(drawn, more=(0, 0)):
    """Returns the two factors of the radius, in the order of the variables."""
    *_, angle, rest = drawn
    signed = angle - 2**32 * (angle >= 2**31)
    turn = mpmath.mpf(signed * 2**94 + (rest >> 2) * 2**64 + of_words(more))
    turn *= mpmath.pi / 2**127
    sine, cosine = mpmath.sin(turn), mpmath.cos(turn)
    cosine *= -1 if rest & 1 else 1
    return (sine, cosine) if rest & 2 else (cosine, sine)


def radius(v):
    return mpmath.sqrt(-2 * mpmath.log(v))


def definition(drawn, more):
    """Returns the two integers of eight words."""
    v = mpmath.mpf(of_words([*drawn[:2], *more[:2]]) or 1) / 2**128
    scale = mpmath.mpf(STDDEV) * radius(v)
    return [int(mpmath.nint(scale * s)) for s in sides(drawn, more[2:])]


def fast(drawn):
    """Returns pairs in float64, `[pairs, 2]`, and their error."""
    columns = [tf.constant(column) for column in drawn.T]
    one, other, error = box_muller.pair(Arithmetic(), columns)
    values = np.stack([one, other], axis=1) * STDDEV
    return values, np.asarray(error) * STDDEV


def is_in_doubt(values, error):
    return np.abs(values - np.rint(values)).max(axis=1) + error >= 0.5


@functools.cache
def near_half_integers():
    """Words next to those where a variable passes a half-integer.

    Returns words, the place of the variable in its pair, and its rounded value,
    which no further bits change.
    """
    drawn, places, rounded = [], [], []
    for i, own in enumerate(rng().integers(0, 2**32, (100, 4), np.uint32)):
        parts = own.tolist()
        parts[0] >>= i % 24  # Into the tail.
        side = sides(parts)[i % 2]
        v = mpmath.mpf(of_words(parts[:2])) / 2**64
        below = mpmath.floor(STDDEV * radius(v) * abs(side))
        half = (below + 0.5) / (STDDEV * abs(side))
        limit = 2**64 * mpmath.exp(-(half**2) / 2)
        for shift in (-2, -1, 1, 2):
            m = int(limit) + shift
            size = below + (m < limit)
            drawn.append([m >> 32, m & HALF_BITS, *parts[2:]])
            places.append(i % 2)
            rounded.append(int(mpmath.sign(side) * size))
    return np.array(drawn, np.uint32), np.array(places), np.array(rounded)


@pytest.mark.parametrize(
    "way", ["integers", "graph", pytest.param("XLA", marks=pytest.mark.full)]
)
def test_refined_variables_are_those_of_the_definition(way):
    drawn, more = words(150), rng().integers(0, 2**32, (150, 4), np.uint32)
    more[9::7] = 0
    more[3::7] = HALF_BITS
    if way == "integers":
        found = box_muller.refined_by_integers(drawn, more, STDDEV)
    else:
        core = tf.function(
            box_muller.refined, jit_compile=way == "XLA", autograph=False
        )
        found = core(tf.constant(drawn), tf.constant(more), UNIT).numpy()

    rows = zip(drawn.tolist(), more.tolist(), strict=True)
    expected = [definition(*row) for row in rows]
    np.testing.assert_array_equal(found.reshape(-1, 2), expected)


def test_logarithms_are_right_to_lemma_12():
    drawn, more = words(100), rng().integers(0, 2**32, (100, 4), np.uint32)
    parts = np.hstack([drawn[:, :2], more[:, :2]])
    parts = parts * 2.0 ** -np.array([32, 64, 96, 128])
    about = -np.log(np.sum(parts, axis=1)) * (1 + 2.0**-40)
    turn = box_muller._number(tf.linspace(np.float64(-0.5), 0.5, 100))

    found = box_muller._logarithms(tf.constant(parts), about, turn, UNIT)

    ell, squares = (each.numpy() for each in found)

    for i, row in enumerate(np.hstack([drawn[:, :2], more[:, :2]]).tolist()):
        v = mpmath.mpf(of_words(row)) / 2**128
        error = abs(value(ell[0, i]) * 2**16 + mpmath.log(v))
        assert error < mpmath.mpf(2) ** -150 + mpmath.mpf(2) ** -187 / v
        cosine = mpmath.cospi(mpmath.mpf(np.linspace(-0.5, 0.5, 100)[i]))
        for number, sign in zip(squares[:, i], (-1, 1), strict=True):
            exact = mpmath.mpf(STDDEV) ** 2 * (1 + sign * cosine)
            error = abs(value(number) / 2**16 - exact)
            assert error < mpmath.mpf(2) ** -157


def test_integers_are_right_to_lemma_13():
    drawn, more = words(100), rng().integers(0, 2**32, (100, 4), np.uint32)
    turns = [-(2**125), 0, 1, 2**125 - 1, *range(-(2**125), 2**125, 2**119)]
    unit = mpmath.mpf(2) ** -256

    for row in np.hstack([drawn[:, :2], more[:, :2]]).tolist():
        v = of_words(row)
        exact = -mpmath.log(mpmath.mpf(max(v, 1)) / 2**128)
        assert abs(box_muller._minus_log_of(v) * unit - exact) < 2**18 * unit
    for turn in turns:
        exact = mpmath.cospi(mpmath.mpf(turn) / 2**126)
        assert abs(box_muller._cosine_of(turn) * unit - exact) < 2**8 * unit


def value(number):
    """Returns the value of a number, exactly."""
    return sum(
        int(digit) * mpmath.mpf(2) ** (24 * (i - box_muller._FRACTION))
        for i, digit in enumerate(number)
    )


def test_no_further_bits_move_a_variable_by_more_than_its_error():
    drawn = words(1000)
    drawn[100:, 0] >>= np.arange(900, dtype=np.uint32) % 32
    values, errors = fast(drawn)

    shares = []
    for own, found, error in zip(drawn.tolist(), values, errors, strict=True):
        if error >= 0.5:
            continue  # In doubt, whatever the value.
        for m in (of_words(own[:2]), of_words(own[:2]) + 1):
            scale = mpmath.mpf(STDDEV) * radius(mpmath.mpf(m) / 2**64)
            for value, side in zip(found, sides(own), strict=True):
                shares.append(float(abs(value - scale * side) / error))

    assert max(shares) < 1
    assert max(shares) > 0.1  # A bound ten times smaller would not hold.
    assert np.mean(errors >= 0.5) < 0.1


def test_variables_near_half_integers_are_in_doubt_and_refined():
    drawn, places, rounded = near_half_integers()
    more = rng().integers(0, 2**32, drawn.shape, np.uint32)

    found = box_muller.refined_by_integers(drawn, more, STDDEV)

    assert is_in_doubt(*fast(drawn)).all()
    mine = found.reshape(-1, 2)[np.arange(len(places)), places]
    # The bits of the angle that follow move some variables, as they should.
    same = mine == rounded
    expected = [
        definition(*row)[place]
        for *row, place in zip(
            drawn.tolist(), more.tolist(), places, strict=True
        )
    ]
    np.testing.assert_array_equal(mine, expected)
    assert same.mean() > 0.5


def test_variables_near_half_integers_are_wrong_in_float64():
    """Control."""
    drawn, places, rounded = near_half_integers()
    values, _ = fast(drawn)

    found = np.rint(values[np.arange(len(places)), places])

    assert 0.2 < np.mean(found != rounded) < 0.8


class TestStream:
    def drawn(self, count=1000):
        return streams.rounded_normals(count, seeds.fresh(3), UNIT)[0].numpy()

    def doubt(self, monkeypatch, lanes):
        in_pieces = streams._in_pieces

        def doubtful(*arguments):
            drawn, doubts, keys = in_pieces(*arguments)
            own = tf.reshape(tf.range(tf.size(doubts)), tf.shape(doubts))
            found = [tf.equal(own, lane) for lane in lanes]
            found = functools.reduce(tf.logical_or, found)
            return drawn, tf.where(found, 0.0, doubts), keys

        monkeypatch.setattr(streams, "_in_pieces", doubtful)
        monkeypatch.setattr(streams, "_is_trusted", lambda *_: False)

    @pytest.mark.full
    @pytest.mark.parametrize(
        "sizes", [streams._SIZES, (64,)], ids=["one piece", "two"]
    )
    @pytest.mark.parametrize("way", ["graph", "NumPy", "eager", "XLA"])
    def test_blocks_drawn_again_are_the_same(self, monkeypatch, way, sizes):
        monkeypatch.setattr(streams, "_SIZES", sizes)
        expected = self.drawn()
        self.doubt(monkeypatch, [0, 7, 40])
        draw = functools.partial(streams.rounded_normals, 1000, stddev=UNIT)
        if way != "eager":
            draw = tf.function(draw, jit_compile=way == "XLA")

        with outside_xla(way == "NumPy"):
            found = draw(seed=seeds.fresh(3))[0].numpy()

        np.testing.assert_array_equal(found, expected)

    def test_no_other_block_is_drawn_again(self, monkeypatch):
        expected = self.drawn()
        self.doubt(monkeypatch, [5, 80])
        monkeypatch.setattr(
            streams,
            "_refined_by_numpy",
            lambda places, *_: np.full(8 * len(places), 2**20, np.int32),
        )

        changed = self.drawn() != expected

        lanes = 256  # Of one piece.
        places = [row * lanes + lane for row in range(8) for lane in (5, 80)]
        assert np.flatnonzero(changed).tolist() == sorted(
            place for place in places if place < 1000
        )
