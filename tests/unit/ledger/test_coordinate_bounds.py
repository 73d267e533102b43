"""Bounds are values: what goes in comes out, rounded up, and compares so."""

import base64
import copy
import zlib

import numpy as np
import pytest

from keras_dp.ledger import CoordinateBounds


def text(array, level=9):
    return base64.b64encode(zlib.compress(array.tobytes(), level)).decode()


def test_levels_are_rounded_up_and_never_down():
    exact = np.random.default_rng(0).uniform(0, 3, [20, 50])
    exact[0, :4] = [1e-320, 1e-45, 1e-30, 0.1]

    rounded = CoordinateBounds.from_arrays(exact, [1] * 50).level_array()

    assert (rounded.astype(np.float64) >= exact).all()
    previous = np.nextafter(rounded, np.float32(-1)).astype(np.float64)
    assert (previous < exact).all()  # By less than one ulp.


def test_arrays_cannot_be_changed_from_outside():
    bounds = CoordinateBounds.from_arrays([[2.0, 1.0]], [1, 1])

    for array in (bounds.level_array(), bounds.count_array()):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 7


def test_sets_with_equal_arrays_are_equal_however_compressed():
    levels = np.zeros([3, 40], np.float32)
    counts = np.ones(40, np.int64)
    weak, strong = (
        CoordinateBounds(text(levels, level), text(counts, level))
        for level in (0, 9)
    )
    assert text(levels, 0) != text(levels, 9)

    negative = CoordinateBounds(text(-levels), text(counts))

    assert weak == strong == negative
    assert len({weak, strong, negative, copy.deepcopy(weak)}) == 1
    assert weak != CoordinateBounds.from_arrays(levels + 1, counts)


@pytest.mark.parametrize(
    ("levels", "counts", "rule"),
    [
        ([1.0, 2.0], [1, 1], r"\[vectors, levels\]"),
        ([[1.0, 2.0]], [1], r"\[vectors, levels\]"),
        ([[1.0, 2.0]], [1, 0], "each >= 1"),
        ([[1.0, 2.0]], [1, -3], "each >= 1"),
        ([[1.0, 2.0]], [1.5, 1.0], "integers"),
        ([[1.0, np.nan]], [1, 1], "finite and >= 0"),
        ([[1.0, -1e-9]], [1, 1], "finite and >= 0"),
        ([[1.0, np.inf]], [1, 1], "finite and >= 0"),
        ([[1e39, 1.0]], [1, 1], "finite and >= 0"),  # Above all float32.
        (np.ones([0, 2]), [1, 1], "levels"),
        (np.ones([1, 0]), np.ones(0, int), "counts"),
        ([[1.0, 2.0]], [2**62, 2**62], "fits 64 bits"),
    ],
)
def test_arrays_that_are_no_bounds_are_refused(levels, counts, rule):
    with pytest.raises(ValueError, match=rule):
        CoordinateBounds.from_arrays(levels, counts)


@pytest.mark.parametrize(
    "vectors", [[1.0, 2.0], np.ones([0, 3]), np.ones([3, 0])]
)
def test_what_is_no_set_of_vectors_is_refused(vectors):
    with pytest.raises(ValueError, match="`vectors` must"):
        CoordinateBounds.from_vectors(vectors)


@pytest.mark.parametrize(
    ("levels", "error"),
    [
        ("", ValueError),
        ("????", ValueError),
        ("AAAA", ValueError),
        (3, TypeError),
    ],
)
def test_texts_that_are_no_arrays_are_refused(levels, error):
    counts = text(np.ones(1, np.int64))

    with pytest.raises(error, match="`levels` must"):
        CoordinateBounds(levels, counts)


def test_levels_that_are_no_multiple_of_counts_are_refused():
    with pytest.raises(ValueError, match="`counts`"):
        CoordinateBounds(
            text(np.ones(3, np.float32)), text(np.ones(2, np.int64))
        )


@pytest.mark.standard
def test_a_text_that_unpacks_to_too_much_is_refused():
    """A megabyte of text could otherwise fill the memory."""
    bomb = base64.b64encode(zlib.compress(bytes(2**27))).decode()

    with pytest.raises(ValueError, match="`levels` must be base64"):
        CoordinateBounds(bomb, CoordinateBounds.from_arrays([[1]], [1]).counts)


def test_a_text_that_goes_on_after_its_end_is_refused():
    bounds = CoordinateBounds.from_arrays([[1.0]], [1])
    longer = base64.b64encode(base64.b64decode(bounds.levels) + b"x").decode()

    with pytest.raises(ValueError, match="`levels` must be base64"):
        CoordinateBounds(longer, bounds.counts)
