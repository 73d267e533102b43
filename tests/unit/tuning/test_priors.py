"""Priors of settings look at no result, and give what they say."""

import math

import pytest

from keras_dp.tuning import Choice, LogUniform, Uniform
from keras_dp.tuning.priors import checked_space, drawn, values_of


@pytest.mark.parametrize(
    ("kind", "arguments", "error"),
    [
        (Choice, ([],), ValueError),
        (Choice, ("text",), TypeError),
        (Choice, (3,), TypeError),
        (Uniform, (1.0, 1.0), ValueError),
        (Uniform, (0.0, math.nan), ValueError),
        (Uniform, (0.0, math.inf), ValueError),
        (LogUniform, (0.0, 1.0), ValueError),
        (LogUniform, (2.0, 1.0), ValueError),
    ],
)
def test_other_bounds_are_refused(kind, arguments, error) -> None:
    with pytest.raises(error, match=r"must be|must hold"):
        kind(*arguments)


@pytest.mark.parametrize(
    "space",
    [[1, 2], lambda results: results, {"rate": [0.1, 1.0]}, {"rate": 0.1}],
)
def test_what_may_depend_on_results_is_refused(space) -> None:
    with pytest.raises(TypeError, match="`space` must"):
        checked_space(space)


def test_a_space_without_settings_is_refused() -> None:
    with pytest.raises(ValueError, match="call make_private"):
        checked_space({})


def test_each_setting_has_a_draw_of_its_own() -> None:
    draws = iter([0.0, 0.5])

    found = drawn(
        {"one": Choice([1, 2]), "two": Choice([1, 2])}, lambda: next(draws)
    )

    assert found == {"one": 1, "two": 2}


def test_values_that_make_plans_are_counted() -> None:
    space = {"epochs": Choice([2, 3, 2]), "batch_size": Uniform(1, 9)}

    assert values_of(space, "epochs", None) == (2, 3)
    assert values_of(space, "other", 7) == (7,)
    with pytest.raises(ValueError, match="a Choice"):
        values_of(space, "batch_size", None)
