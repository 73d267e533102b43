"""Sums of rows are exact."""

from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from keras_dp.preprocessing.rows import (
    exact_sum,
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
