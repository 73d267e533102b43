"""Lists the operations that may run while a model is called.

They keep nothing of the data. TensorFlow marks every operation with a side
effect as stateful. The tables of `operations.py` name the stateful operations
that are *allowed*, so that an unknown one is refused.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

from keras_dp.gradients import operations

_ALLOWED = (
    operations.READS
    | operations.ASSERTIONS
    | operations.DRAWS
    | operations.RECURRENCES
    | operations.MEMORY
    # The functions that these call are examined, too.
    | operations.CALLS
    | operations.CONDITIONS
    | operations.CASES
    | operations.LOOPS
    | operations.COMPILED
)


def keeps_nothing(kind: str) -> bool:
    """Whether an operation of this type keeps nothing of its inputs."""
    if kind in operations.PYTHON:
        return False
    return kind in _ALLOWED or not _definition(kind).is_stateful


def is_function(kind: str) -> bool:
    """Whether this is the name of a function instead of an operation."""
    return _definition(kind) is None


def forbidden_in(
    functions: Iterable[str], nodes_of: Callable[[str], Iterable[Any]]
) -> str | None:
    """Returns the name of a forbidden operation in functions, `None` without.

    The functions that they call are searched, too.
    """
    left = list(functions)
    seen = set(left)
    while left:
        name = left.pop()
        for node in nodes_of(name):
            called = functions_called_by(node)
            if not is_function(node.op) and not keeps_nothing(node.op):
                return f"{name}/{node.name}"
            left += called - seen
            seen |= called
    return None


def functions_called_by(node: Any) -> set[str]:
    """Returns the names of the functions that a `NodeDef` calls."""
    if is_function(node.op):
        return {node.op}
    values = [node.attr[each] for each in function_attributes(node.op)]
    names = {f.name for v in values for f in (v.func, *v.list.func)}
    return names - {""}


@functools.cache
def function_attributes(kind: str) -> tuple[str, ...]:
    """Returns the attributes of a type of operation that hold functions."""
    definition = _definition(kind)
    if definition is None:
        return ()
    return tuple(a.name for a in definition.attr if "func" in a.type)


@functools.cache
def _definition(kind: str) -> Any:
    """Returns the definition of a type of operation, `None` if there is none.

    A function that runs eagerly has its own name in place of a type.
    """
    try:
        return tf.Graph().op_def_for_type(kind)
    except RuntimeError:
        return None
