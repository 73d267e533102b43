"""Schedules become factors that are known before the first round."""

import keras
import numpy as np
import pytest

from keras_dp._schedules import factors_of, in_step


def factors(schedule, rounds=4):
    return factors_of(schedule, rounds, noise=schedule)


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        (
            keras.optimizers.schedules.PolynomialDecay(1.0, 4, 0.2),
            (1.0, 0.8, 0.6, 0.4),
        ),
        (
            keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.1]),
            (1.0, 1.0, 0.1, 0.1),
        ),
        (lambda step: 2**step, (1.0, 2.0, 4.0, 8.0)),
        (np.array([1, 2, 3, 1 / 3]), (1.0, 2.0, 3.0, 0.333333)),
        ([np.float32(0.1)] * 4, (0.1,) * 4),
    ],
)
def test_have_six_digits_whoever_computes_them(schedule, want) -> None:
    assert factors(schedule) == want


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (keras.optimizers.schedules.PolynomialDecay(1.0, 3, 0.0), "finite and"),
        (
            lambda step: 1.0 - step,
            r"finite and > 0 .* Received: 0\.0 in round 1",
        ),
        (lambda step: float("nan"), "finite and > 0"),
        ([1.0, 1.0, np.inf, 1.0], "inf in round 2"),
        ([1.0, 0.5], "a factor for each of the 4 rounds"),
        ([1.0] * 5, "a factor for each of the 4 rounds"),
    ],
)
def test_that_end_or_lose_their_meaning_are_refused(schedule, message) -> None:
    with pytest.raises(ValueError, match=f"^`noise` must .*{message}"):
        factors(schedule)


@pytest.mark.parametrize("schedule", [0.5, "decay", lambda step: "much"])
def test_that_are_none_are_refused(schedule) -> None:
    with pytest.raises(TypeError, match=r"^`noise` must be a"):
        factors(schedule)


def test_rounds_in_step_are_those_of_the_definition() -> None:
    one, two, three = [("a", 5), ("b", 2)], [(1, 1), (2, 4), (3, 9)], [("x", 6)]

    got = [each for each, n in in_step(one, two, three) for _ in range(n)]

    columns = (
        [v for v, n in column for _ in range(n)] for column in (one, two)
    )
    assert got == [(*pair, "x") for pair in zip(*columns, strict=False)][:6]
