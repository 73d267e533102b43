"""The script that reproduces the papers' numbers, against those numbers."""

import functools
import importlib.util
import math
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "papers_numbers.py"


@functools.cache
def papers():
    spec = importlib.util.spec_from_file_location("papers_numbers", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@functools.cache
def rows(table):
    return tuple(getattr(papers(), table)())


# By each paper's method, in the order of the rows, to the digits given here.
METHODS = {
    "abadi": "1.2586 9.353 23.02 26.39 16.847 1.2584 1.0354",
    "nasr_mnist": "7.576 2.679 2.265 1.755",
    "nasr_cifar": "20.99 7.651 3.795 16.20 17.06 1189 67.56 17.59",
    "three_tools": "19.87 20.04 5.745 5.740",
}
# The least epsilons, from the contour integral of a code that is not in this
# package, at the digits that it was printed with.
TRUTHS = {
    "abadi": "0.946867",
    "nasr_mnist": "6.0226 2.0802 1.7535 1.3420",
    "three_tools": "421.0 480.1 4.516 5.037",
}


def digits(text):
    """Returns the number and half a unit of its last digit."""
    _, _, decimals = text.partition(".")
    return float(text), 0.5000001 * 10.0 ** -len(decimals)


@pytest.mark.parametrize("table", METHODS)
def test_methods_give_what_they_are_known_to_give(table) -> None:
    values = [row.by_method() for row in rows(table)]

    known = METHODS[table].split()
    assert all(math.isnan(value) for value in values[len(known) :])
    for value, text in zip(values, known, strict=False):
        number, half = digits(text)
        assert value == pytest.approx(number, abs=half)


@pytest.mark.parametrize("table", METHODS)
def test_stated_numbers_are_reproduced(table) -> None:
    """All but two: 9.34 to 0.02, and 16.20 only by other assumptions."""
    for row in rows(table):
        if not row.stated:
            continue
        stated, half = digits(row.stated.partition(" ")[0])
        if row.stated == "9.34":
            half = 0.02
        got = row.by_method()
        if row.stated == "16.20":
            assert got > stated + 4
        elif row.stated.startswith("20"):
            assert got == pytest.approx(stated, abs=0.15)
        else:
            assert got == pytest.approx(stated, abs=half)


def test_fewer_rounds_give_what_is_stated() -> None:
    """16.20 after 3,759 rounds of the 6,000."""
    found = papers().rounds_that_give(16.20, 0.8, 1024 / 50_000)

    assert found == pytest.approx(3759, abs=1)


@pytest.mark.parametrize("table", TRUTHS)
def test_truths_are_what_they_are_known_to_be(table) -> None:
    for row, text in zip(rows(table), TRUTHS[table].split(), strict=False):
        number, half = digits(text)
        assert row.true() == pytest.approx(number, abs=half)


@pytest.mark.parametrize(
    ("table", "setting", "known"),
    [
        ("nasr_mnist", "noise 0.7, 12000 rounds", 6.334),
        ("nasr_mnist", "noise 1.3, 8000 rounds", 1.345),
        ("nasr_cifar", "noise 0.8, 6000 rounds", 18.60),
    ],
)
def test_drawing_with_replacement_costs_a_little_more(
    table, setting, known
) -> None:
    """Known from an integration of the binomial mixture itself."""
    (row,) = [
        row
        for row in rows(table)
        if row.setting == f"drawn with replacement: {setting}"
    ]

    assert row.true() == pytest.approx(known, abs=0.006)


@pytest.mark.parametrize("table", METHODS)
def test_nothing_is_below_the_truth_but_separate_samples(table) -> None:
    """Control: the rule of Three Tools is, by a factor of 20."""
    for row in rows(table):
        value = row.by_method()
        if math.isnan(value):
            continue
        truth = row.true()
        if row.setting.startswith("10 tensors"):
            assert value < truth / 20
        else:
            assert value > truth
