"""Combinations of options in which every two values meet."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any


def pairwise(
    factors: dict[str, Sequence[Any]],
    allowed: Callable[..., bool] = lambda **_: True,
) -> list[dict[str, Any]]:
    """Returns few combinations that hold every pair of values.

    Most errors need one or two options at once, which the product of all
    options would repeat many times over.

    Args:
        factors: The values of each option.
        allowed: Whether a combination makes sense, by the options' names.
            Pairs that no such combination holds are left out.

    >>> pairwise({"a": "01", "b": "01", "c": "01"})
    [{'a': '0', 'b': '0', 'c': '0'}, {'a': '0', 'b': '1', 'c': '1'}, \
{'a': '1', 'b': '0', 'c': '1'}, {'a': '1', 'b': '1', 'c': '0'}]
    """
    # By the numbers of the values, which need not hash.
    numbers = itertools.product(*(range(len(f)) for f in factors.values()))
    rows = [
        (row, set(itertools.combinations(enumerate(numbered), 2)))
        for numbered in numbers
        if allowed(**(row := _row(factors, numbered)))
    ]
    left = set().union(*(pairs for _, pairs in rows))
    chosen = []
    while left:
        row, pairs = max(rows, key=lambda each: len(each[1] & left))
        left -= pairs
        chosen.append(row)
    return chosen


def _row(
    factors: dict[str, Sequence[Any]], numbered: tuple[int, ...]
) -> dict[str, Any]:
    return {
        name: values[number]
        for (name, values), number in zip(
            factors.items(), numbered, strict=True
        )
    }
