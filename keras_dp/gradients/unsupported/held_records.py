"""Refuses models that hold records of the training data.

A function may close over records, or weights may begin as records. The trained
model then contains them without noise. The graph of a step shows all constants
and variables, which are compared with the records of one batch. Records that
were changed before, such as scaled or averaged ones, are not found, nor are
those that this batch does not have.
"""

import collections
import math
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.operations import CONSTANT
from keras_dp.gradients.unsupported.variable_writes import (
    functions_called,
    layer_in,
)
from keras_dp.keras_internals import called_graph

# A record with so many different numbers, or with so many that are no integers,
# is equal to a row of the model by no chance.
_NUMBERS, _FRACTIONS = 8, 4


def check_holds_no_records(
    model: keras.Model, graph: tf.Graph, records: list[np.ndarray]
) -> None:
    """Raises if a constant or a variable of a graph has the rows of records.

    The records are arrays `[batch, ...]`, without padding.
    """
    values = list(_values(graph))
    for leaf in records:
        size = math.prod(leaf.shape[1:])
        if leaf.dtype.kind not in "fiu" or size < _FRACTIONS or len(leaf) < 2:
            continue
        found = [value for value in values if _fits(value[1], size)]
        rows = _own_rows(leaf) if found else leaf[:0]
        for name, tensor in found:
            if any(_has_record(each, rows) for each in _tables(tensor, size)):
                layer = layer_in(model, name)
                owner = "" if layer is None else f"layer {layer.path!r}, "
                raise UnsupportedLayerError(
                    "The model must hold no records of its training data: they "
                    "leave it without noise, and no ledger covers that. "
                    f"Received: {owner}{name!r} of shape "
                    f"{tuple(tensor.shape)!r}, with rows that equal records. "
                    "Remove them from the model; or, if they are public, from "
                    "the data."
                )


def _values(graph: tf.Graph) -> Iterator[tuple[str, Any]]:
    """Yields the constants and variables of a graph and its functions."""
    yield from ((variable.name, variable) for variable in graph.variables)
    for outer, inner in graph.captures:
        if not tf.is_symbolic_tensor(outer) and outer.dtype != tf.resource:
            users = inner.consumers()
            yield (users[0].name if users else inner.name), outer
    graphs, seen = [graph], {id(graph)}
    for each in graphs:
        for operation in each.get_operations():
            if operation.type == CONSTANT:
                yield operation.name, operation.outputs[0]
            for name in functions_called(operation):
                body = called_graph(each, name)
                if body is not None and id(body) not in seen:
                    seen.add(id(body))
                    graphs.append(body)


def _fits(tensor: Any, size: int) -> bool:
    """Whether numbers can be read as rows, or columns, of some size."""
    dtype, shape = tf.as_dtype(tensor.dtype), tensor.shape
    is_of_numbers = dtype.is_floating or dtype.is_integer
    if not is_of_numbers or not shape.is_fully_defined():
        return False
    ends = {math.prod(shape[axis:]) for axis in range(shape.rank)}
    return size in ends or (shape.rank == 2 and size == shape[0])


def _tables(tensor: Any, size: int) -> list[np.ndarray]:
    """Returns numbers as rows of some size, in each way that there is."""
    if tf.is_symbolic_tensor(tensor):
        tensor = tf.make_ndarray(tensor.op.get_attr("value"))
    values = np.asarray(tensor)
    found = [np.reshape(values, [-1, size])] if values.size % size == 0 else []
    is_turned = values.ndim == 2 and len(values) == size
    return [*found, values.T] if is_turned else found


def _own_rows(leaf: np.ndarray) -> np.ndarray:
    """Returns the finite rows that only one record has."""
    rows = np.reshape(leaf, [len(leaf), -1])
    rows = rows[np.isfinite(rows).all(axis=1)]
    alike = collections.Counter(row.tobytes() for row in rows)
    return rows[np.array([alike[row.tobytes()] == 1 for row in rows], bool)]


def _tells(row: np.ndarray) -> bool:
    """Whether another row is equal to this one by no chance."""
    if row[0] in (0, 1) and (np.diff(row) == 1).all():
        return False  # Positions, which models number so, too.
    numbers = np.unique(row)
    fractions = int(np.count_nonzero(numbers % 1))
    return len(numbers) >= _NUMBERS or fractions >= _FRACTIONS


def _has_record(table: np.ndarray, rows: np.ndarray) -> bool:
    """Whether a table has one of these rows, and by no chance."""
    if not len(rows):
        return False
    rounded = rows
    if not tf.as_dtype(table.dtype).is_integer:
        rounded = rows.astype(table.dtype)  # As the model would round them.
    rounded = rounded.astype(np.float64)
    column = np.argmax(np.ptp(rounded, axis=0))
    found = np.isin(table[:, column].astype(np.float64), rounded[:, column])
    held = {row.astype(np.float64).tobytes() for row in table[found]}
    # Different records may be alike once they are rounded, such as all ones.
    return any(each.tobytes() in held and _tells(each) for each in rounded)
