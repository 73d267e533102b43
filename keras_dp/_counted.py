"""Lists of values, each with the number of times that it comes in a row."""

from collections.abc import Iterable, Iterator
from typing import Any


def in_step(
    *columns: Iterable[tuple[Any, int]],
) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yields what several lists of counted values hold at the same time.

    It ends with the shortest list.

    >>> list(in_step([("a", 3), ("b", 2)], [("x", 1), ("y", 9)]))
    [(('a', 'x'), 1), (('a', 'y'), 2), (('b', 'y'), 2)]
    """
    iterators = [iter(column) for column in columns]
    values: list[Any] = [None] * len(iterators)
    left = [0] * len(iterators)
    while True:
        for place, iterator in enumerate(iterators):
            while not left[place]:
                found = next(iterator, None)
                if found is None:
                    return
                values[place], left[place] = found
        count = min(left)
        left = [each - count for each in left]
        yield tuple(values), count


def first_of(
    rounds: Iterable[tuple[Any, int]], count: int
) -> list[tuple[Any, int]]:
    """Returns the first `count` of counted values, or fewer.

    >>> first_of([("a", 3), ("b", 2)], 4)
    [('a', 3), ('b', 1)]
    """
    return [(value, n) for (value, _), n in in_step(rounds, [(None, count)])]


def rest_of(
    rounds: Iterable[tuple[Any, int]], count: int
) -> list[tuple[Any, int]]:
    """Returns counted values without the first `count`.

    >>> rest_of([("a", 3), ("b", 2)], 4)
    [('b', 1)]
    """
    rest = []
    for value, n in rounds:
        left = n - min(n, count)
        count -= n - left
        if left:
            rest.append((value, left))
    return rest
