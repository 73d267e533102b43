"""Factors of the axes of a variable, as factors of both sides of products."""

import math
from collections.abc import Sequence

import tensorflow as tf

from keras_dp.gradients.records.records import outer_product

_ROWS, _LEFT, _RIGHT = range(3)


def sides(
    factors: Sequence[tf.Tensor],
    inner: tuple[int, ...],
    order: tuple[int, ...],
    rows: int,
    left: int,
) -> tuple[tf.Tensor, tf.Tensor] | None:
    """Returns factors of the left and the right side of outer products.

    Gradients `[rows, left, right]` have the shape of the variable when they are
    reshaped to `inner`, transposed by `order`, and reshaped once more. The
    product of the results at `[row, l]` and `[row, r]` is the product of the
    factors of that entry of the variable.

    Args:
        factors: A vector for each axis of the variable, of one dtype.
        inner: See above.
        order: See above.
        rows: The number of rows.
        left: The width of the left side.

    Returns:
        Tensors `[rows, left]` and `[rows, right]`. `None` if there are none,
        because an axis of the variable is made of both sides.
    """
    kinds = _kinds(inner, rows, left)
    products = {
        side: [
            size if kind in {_ROWS, side} else 1
            for size, kind in zip(inner, kinds, strict=True)
        ]
        for side in (_LEFT, _RIGHT)
    }
    found = {
        side: tf.ones(shape, factors[0].dtype)
        for side, shape in products.items()
    }
    blocks = _blocks(
        [factor.shape[0] for factor in factors],
        [inner[axis] for axis in order],
    )
    for outer, places in blocks:
        axes = [order[place] for place in places]
        own = {kinds[axis] for axis in axes if inner[axis] > 1} - {_ROWS}
        if len(own) > 1:
            return None
        part = outer_product(
            [factors[axis] for axis in outer], factors[0].dtype
        )
        part = tf.reshape(part, [inner[axis] for axis in axes])
        in_order = sorted(range(len(axes)), key=axes.__getitem__)
        shape = [n if axis in axes else 1 for axis, n in enumerate(inner)]
        side = own.pop() if own else _LEFT
        found[side] *= tf.reshape(tf.transpose(part, in_order), shape)
    return (
        tf.reshape(found[_LEFT], [rows, left]),
        tf.reshape(found[_RIGHT], [rows, -1]),
    )


def _kinds(inner: tuple[int, ...], rows: int, left: int) -> list[int]:
    """Returns whether each axis belongs to the rows, the left or the right."""
    kinds, before = [], 1
    for size in inner:
        kinds.append(
            _ROWS
            if before < rows
            else _LEFT
            if before < rows * left
            else _RIGHT
        )
        before *= size
    return kinds


def _blocks(
    one: list[int], two: list[int]
) -> list[tuple[list[int], list[int]]]:
    """Returns the smallest runs of axes of two shapes that have equal sizes.

    Axes of size 1 join the run before them, or the first one.
    """
    ends_one, ends_two = _ends(one), _ends(two)
    ends = sorted(set(ends_one) & set(ends_two) - {1}) or [1]

    def runs(each: list[int]) -> list[list[int]]:
        return [
            [
                axis
                for axis, end in enumerate(each)
                if (start < end or (first and end == 1)) and end <= stop
            ]
            for first, start, stop in zip(
                [True] + [False] * len(ends), [1, *ends], ends, strict=False
            )
        ]

    return list(zip(runs(ends_one), runs(ends_two), strict=True))


def _ends(sizes: list[int]) -> list[int]:
    return [math.prod(sizes[: axis + 1]) for axis in range(len(sizes))]
