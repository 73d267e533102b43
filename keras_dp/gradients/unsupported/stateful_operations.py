"""Lists the operations that may run while a model is called.

They keep nothing of the data. TensorFlow marks every operation with a side
effect as stateful. The list names the stateful operations that are *allowed*,
so that an unknown one is refused.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf

_READS = {
    "LookupTableExportV2",
    "LookupTableFindV2",
    "LookupTableSizeV2",
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarHandleOp",
    "VarIsInitializedOp",
    "VariableShape",
}
# They end the step, or do nothing.
_ASSERTIONS = {"Assert", "CheckNumerics", "CheckNumericsV2"}
# Their state counts draws and holds no data.
_DRAWS = {
    "Multinomial",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomPoissonV2",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "StatelessRandomGetAlg",
    "TruncatedNormal",
}
# They are stateful because of the dropout inside, which Keras does not use.
_RECURRENCES = {
    f"CudnnRNN{back}{version}"
    for back in ("", "Backprop")
    for version in ("", "V2", "V3")
}
# It makes a tensor to write to. It is stateful so that each call makes one.
_MEMORY = {"Empty"}
# The functions that they call are examined too.
_CALLS = {"Case", "If", "StatefulPartitionedCall", "While", "XlaCallModule"}
_ALLOWED = _READS | _ASSERTIONS | _DRAWS | _RECURRENCES | _MEMORY | _CALLS
# It runs Python, which may keep anything, although it is declared stateless.
_FORBIDDEN = {"PyFuncStateless"}

ASSIGNMENTS = {"AssignAddVariableOp", "AssignSubVariableOp", "AssignVariableOp"}


def keeps_nothing(kind: str) -> bool:
    """Whether an operation of this type keeps nothing of its inputs."""
    if kind in _FORBIDDEN:
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

    Args:
        functions: The names of the functions.
        nodes_of: Maps the name of a function to the nodes of its body.
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
    """Returns the names of the functions that a node calls.

    Args:
        node: A `NodeDef` of TensorFlow.
    """
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
