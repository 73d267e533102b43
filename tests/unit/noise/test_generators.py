"""Seeds, and the rounded normal variables that are drawn from them."""

import numpy as np
import pytest
import tensorflow as tf

import keras_dp
from keras_dp.noise import grid, seeds, streams, xla
from tests.unit.noise import needs_kernels

FULL = sorted(set(streams._SIZES) - {256})


UNIT = tf.constant(2.0**24, tf.float64)


def seed_of(number=3):
    return seeds.fresh(number)


def drawn(leaves, seed, factor=1.0):
    return grid.draws(leaves, factor * UNIT, seed)


class TestSeeds:
    def test_are_keys_of_256_bits_that_differ_from_call_to_call(self):
        """Each bit is set in some seeds: 2^-99 to be wrong, times 256."""
        every = np.array([seeds.fresh(None) for _ in range(100)])
        bits = np.unpackbits(every.view(np.uint8), axis=1)

        assert (every.dtype, bits.shape) == (np.int64, (100, 256))
        assert (bits.min(axis=0) == 0).all()
        assert (bits.max(axis=0) == 1).all()


class TestRoundedNormals:
    LEAVES = (
        tf.zeros([3, 4]),
        tf.zeros([], tf.float64),
        tf.zeros([0, 2]),
        tf.zeros([7], tf.float64),
        tf.zeros([5]),
    )

    @pytest.mark.full
    @pytest.mark.parametrize("compiled", [False, True])
    def test_have_the_shapes_of_the_leaves(self, compiled):
        draw = tf.function(drawn, jit_compile=compiled)

        noise, _ = draw(list(self.LEAVES), seed_of())

        for one, leaf in zip(noise, self.LEAVES, strict=True):
            assert (one.shape, one.dtype) == (leaf.shape, tf.int32)
        values = np.concatenate([np.ravel(one) for one in noise])
        assert len(np.unique(values)) == 25

    @pytest.mark.full
    @pytest.mark.parametrize("count", [1, 128, 129, 400_000])
    def test_never_repeat_within_a_draw(self, count):
        """In pairs, as single numbers repeat by chance."""
        (draw,), _ = drawn([tf.zeros([count, 2])], seed_of())

        assert len(np.unique(draw.numpy().view(np.uint64))) == count

    def test_of_shapes_that_are_not_known_are_drawn(self):
        draw = tf.function(
            lambda leaf, seed: drawn([leaf], seed),
            input_signature=[
                tf.TensorSpec([None], tf.float32),
                tf.TensorSpec([4], tf.int64),
            ],
        )

        for count in (0, 7):
            (noise,), following = draw(tf.zeros([count]), seed_of())
            assert noise.shape == [count]
            assert len(np.unique(following)) == 4


SIZES = [256, 16192, *(pytest.param(n, marks=pytest.mark.full) for n in FULL)]


@needs_kernels
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("lanes", SIZES)
@pytest.mark.parametrize(
    ("piece", "last"),
    [
        (streams._WORD_PIECE, tf.constant(streams.FOR_WORDS, tf.uint32)),
        (streams._ROUNDED_PIECE, 1.25 * UNIT),
    ],
    ids=["words", "normals"],
)
def test_pieces_of_every_size_are_what_ordinary_operations_draw(
    piece, last, lanes, pieces
) -> None:
    seed, start = tf.constant([4, -5, 6, 2**61], tf.int64), tf.constant(7)

    found = streams._by_kernel(piece, lanes, pieces, seed, start, last)

    assert piece.agree(found, piece.portable(lanes, pieces, seed, start, last))
    other = piece.portable(lanes, pieces, seed, start + 1, last)
    assert not piece.agree(found, other)  # Control.


@pytest.fixture
def forget_kernels():
    """Tries and compiles kernels anew, now and after the test."""

    def forget():
        streams._is_trusted.cache_clear()
        xla.compiled.cache_clear()

    yield forget
    forget()


@pytest.fixture
def as_on_an_accelerator(monkeypatch, forget_kernels):
    """Groups of two pieces of 64 blocks, by ordinary operations."""
    monkeypatch.setattr(streams, "_SIZES", (16, 64))
    monkeypatch.setattr(streams, "_TOGETHER", 2)

    def change():
        monkeypatch.setattr(streams, "has_accelerator", lambda: True)
        forget_kernels()

    return change


@needs_kernels
@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        pytest.param("eager", 100, marks=pytest.mark.nightly),
        ("eager", 5 * 512),
        ("compiled", 6 * 512 - 3),
        pytest.param("unknown count", 5 * 512, marks=pytest.mark.nightly),
    ],
)
def test_an_accelerator_draws_the_same_numbers(
    as_on_an_accelerator, kind, count
) -> None:
    """The last group of five pieces has one piece too many."""

    def draw(seed):
        many = tf.constant(count) if kind == "unknown count" else count
        return (
            *streams.rounded_normals(many, seed, 1.25 * UNIT),
            streams.words(many, seed),
        )

    def drawn(seed):
        compiled = kind == "compiled"
        step = (
            draw
            if kind == "eager"
            else tf.function(draw, jit_compile=compiled, autograph=False)
        )
        return [part.numpy() for part in step(seed)]

    want, other = drawn(seed_of(1)), drawn(seed_of(2))
    as_on_an_accelerator()

    for one, two, control in zip(drawn(seed_of(1)), want, other, strict=True):
        np.testing.assert_array_equal(one, two)
        assert (one != control).mean() > 0.9


@needs_kernels
class TestWithoutTheKernel:
    @pytest.mark.full
    @pytest.mark.parametrize(
        "error",
        [
            ImportError("gone"),
            AttributeError("gone"),
            tf.errors.UnimplementedError(None, None, "gone"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_ordinary_operations_draw_the_same(
        self, error, monkeypatch, caplog, forget_kernels
    ):
        """Its entrance has no public name, and may go away."""
        seed = tf.constant([1, -2, 3, 2**62], tf.int64)
        want, key = streams.rounded_normals(1000, seed, UNIT)

        def gone(*_):
            raise error

        monkeypatch.setattr(streams.xla, "run", gone)
        forget_kernels()
        got, same_key = streams.rounded_normals(1000, seed, UNIT)

        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(same_key, key)
        assert "ordinary TensorFlow operations" in caplog.text
        assert "gone" in caplog.text

    def test_a_defect_of_ours_is_not_hidden(self, monkeypatch, forget_kernels):
        def defect(*_):
            raise IndexError

        monkeypatch.setattr(streams.xla, "run", defect)
        forget_kernels()
        with pytest.raises(IndexError):
            streams.rounded_normals(1000, seeds.fresh(None), UNIT)


def test_a_seed_is_not_made_where_it_would_be_kept() -> None:
    query = keras_dp.dp_queries.GaussianSumQuery(1.0, 1.0)

    @tf.function(autograph=False)
    def step():
        return query.initial_global_state().seed

    with pytest.raises(RuntimeError, match="must be made eagerly"):
        step()


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64"])
def test_small_leaves_are_answered_as_each_alone(dtype):
    """Bit for bit, in their shapes, beside large leaves and none."""
    generator = np.random.default_rng(0)
    shapes = [(3,), (2, 4), (grid._LARGEST_JOINED + 1,), (), (0, 5), (3,)]
    sums = [
        tf.constant(1e9 * generator.standard_normal(shape), dtype)
        for shape in shapes
    ]
    divisors = [1.0, 3.0, 3.0, 1.0, 3.0, 1.0]

    found, _ = grid.noised(sums, 0.0, seed_of(), divisors=divisors)

    for own, one, divisor in zip(found, sums, divisors, strict=True):
        (alone,), _ = grid.noised([one], 0.0, seed_of(), divisors=[divisor])
        np.testing.assert_array_equal(own, alone, strict=True)
    whole, _ = grid.noised(sums, 0.0, seed_of())
    assert np.asarray(found[1] != whole[1]).all()  # Control.
