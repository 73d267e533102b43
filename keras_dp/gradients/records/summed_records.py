"""Gradients of a variable that is used in several ways."""

from collections.abc import Sequence

import tensorflow as tf

from keras_dp.gradients.records.outer_product_records import (
    OuterProductRecords,
)
from keras_dp.gradients.records.records import (
    GradientRecords,
    MaterializedRecords,
)
from keras_dp.gradients.records.row_records import RowRecords
from keras_dp.gradients.records.split_kernel_records import SplitKernelRecords


class SummedRecords(MaterializedRecords):
    """A variable used in several ways: its gradient is the sum of all.

    The norms have cross terms, for which the gradients are materialized.
    """

    def __init__(self, parts: Sequence[GradientRecords]) -> None:
        super().__init__(tf.add_n([part.materialize() for part in parts]))


def summed(parts: Sequence[GradientRecords]) -> GradientRecords:
    """Returns the records of a variable from those of each of its uses."""
    total, *others = parts
    for other in others:
        joint = _joined(total, other)
        if joint is None:
            return SummedRecords(parts)
        total = joint
    return total


def _joined(
    one: GradientRecords, other: GradientRecords
) -> GradientRecords | None:
    """Returns the sum of two uses of one kind, `None` if they are not."""
    if isinstance(one, OuterProductRecords):
        if (
            isinstance(other, OuterProductRecords)
            and one.arrangement == other.arrangement
        ):
            return one.joined(other)
    elif isinstance(one, SplitKernelRecords):
        return one.joined(other)
    elif isinstance(one, RowRecords):
        if isinstance(other, RowRecords):
            return one.joined(other)
    elif isinstance(one, MaterializedRecords) and isinstance(
        other, MaterializedRecords
    ):
        return MaterializedRecords(one.gradients + other.gradients)
    return None
