"""Schedules: a factor for each round, known before the first one."""

import decimal
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from keras_dp import _check

# A function of the round, such as a schedule of Keras, or a number per round.
Schedule: TypeAlias = Callable[[int], Any] | Sequence[float]
# Schedules of Keras compute in float32, and its last digits differ between
# machines. The factors must not.
_DIGITS = decimal.Context(prec=6)


def factors_of(
    schedule: Schedule, rounds: int, **named: Any
) -> tuple[float, ...]:
    """Returns the factor of each round, rounded to six digits.

    Args:
        schedule: Maps the number of a round, from 0, to its factor, such as a
            `keras.optimizers.schedules.LearningRateSchedule`; or a factor for
            each round.
        rounds: How many rounds there will be, >= 1.
        **named: The schedule again, under the name of its argument.

    Raises:
        TypeError: The schedule is something else, or a factor is no number.
        ValueError: It ends before the last round, or a factor is not finite
            and > 0.

    >>> factors_of(lambda step: 0.5**step, 3, noise=None)
    (1.0, 0.5, 0.25)
    >>> factors_of([1.0, 0.5], 3, noise=[1.0, 0.5])
    Traceback (most recent call last):
    ...
    ValueError: `noise` must have a factor for each of the 3 rounds. Received...
    """
    ((name, shown),) = named.items()
    _check.integer_at_least(1, rounds=rounds)
    if callable(schedule):
        values = [schedule(number) for number in range(rounds)]
    elif isinstance(schedule, Iterable) and not isinstance(schedule, str):
        values = list(schedule)
    else:
        raise TypeError(
            f"`{name}` must be a schedule of keras.optimizers.schedules, a "
            "function of the number of the round, or a factor for each round. "
            f"Received: {name}={_check.shown(shown)}."
        )
    if len(values) != rounds:
        raise ValueError(
            f"`{name}` must have a factor for each of the {rounds:,} rounds. "
            f"Received: {len(values):,} factors. Give as many as there are "
            "rounds, epochs * rounds_per_epoch."
        )
    return tuple(
        _factor(value, number, name) for number, value in enumerate(values)
    )


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


def counted(values: Iterable[Any]) -> list[tuple[Any, int]]:
    """Returns values, each with the number of times that it comes in a row.

    >>> counted("aab")
    [('a', 2), ('b', 1)]
    """
    return [
        (value, sum(1 for _ in group))
        for value, group in itertools.groupby(values)
    ]


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


def _factor(value: Any, number: int, name: str) -> float:
    """Returns one factor as a float.

    Raises:
        TypeError: It is no number.
        ValueError: It is not finite, or not > 0.
    """
    try:
        factor = float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"`{name}` must be a number in each round. Received: "
            f"{_check.shown(value)} in round {number:,}."
        ) from None
    if not 0 < factor < math.inf:
        raise ValueError(
            f"`{name}` must be finite and > 0 in each round. Received: "
            f"{factor!r} in round {number:,}. Give the schedule an end above 0."
        )
    return float(_DIGITS.create_decimal_from_float(factor))
