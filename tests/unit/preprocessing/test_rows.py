"""Sums of rows are exact."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_dp.preprocessing.rows import (
    exact_sum,
    number_chunks,
    whole_total,
)

wholes = st.lists(
    st.integers(-(2**53), 2**53).map(float), min_size=1, max_size=50
)


@given(numbers=wholes, times=st.integers(1, 300))
def test_totals_of_large_numbers_are_rounded_once(numbers, times) -> None:
    parts = [np.array([each]) for each in numbers] * times

    (total,) = whole_total(parts)

    exact = Fraction(sum(map(int, numbers)) * times)
    assert abs(Fraction(float(total)) - exact) <= abs(exact) * Fraction(
        1, 2**52
    )


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_rows_are_rounded_towards_zero(numbers) -> None:
    for number in numbers:
        (alone,) = exact_sum([np.array([[number]])])
        assert abs(alone) <= abs(number)
        assert abs(alone - number) <= 2.0**-30

    each = [exact_sum([np.array([[number]])])[0] for number in numbers]
    (together,) = exact_sum([np.array(numbers)[:, np.newaxis]])
    assert Fraction(float(together)) == sum(map(Fraction, map(float, each)))


def test_batches_must_be_alike() -> None:
    data = tf.data.Dataset.from_generator(
        lambda: [np.ones(3), np.ones(3), np.ones(4)],
        output_signature=tf.TensorSpec([None], tf.float32),
    ).padded_batch(2)

    with pytest.raises(ValueError, match="one shape"):
        list(number_chunks(data))


def test_no_batch_is_refused() -> None:
    data = tf.data.Dataset.from_tensor_slices(np.ones((0, 3))).batch(2)

    with pytest.raises(ValueError, match="at least one batch"):
        list(number_chunks(data))
