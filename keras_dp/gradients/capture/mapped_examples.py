"""Maps a function over examples: vectorized, where TensorFlow does it right.

TensorFlow 2.21 writes past the memory of the product of `[n, 1, rows, k]` and a
matrix on CPUs (its issue 117700). The product of one example `[1, rows, k]` and
a matrix becomes such a product when it is vectorized. A function that has one
is called for one example after another.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp.errors import PrivateTrainingError
from keras_dp.gradients.operations import BATCHED_PRODUCT
from keras_dp.keras_internals import function_nodes, trace_of


def map_examples(function: Callable[[Any], Any], rows: Any) -> Any:
    """Returns a nest of the results for each example, `[batch, ...]`.

    The function maps a row of each tensor to a nest of tensors.

    Raises:
        PrivateTrainingError: TensorFlow runs no graphs.
    """
    if tf.executing_eagerly():
        # Only a graph shows the products.
        if tf.config.functions_run_eagerly():
            raise PrivateTrainingError(
                "`tf.config.run_functions_eagerly` must be off while per-"
                "example gradients are computed, which needs graphs. Received: "
                "on. Call tf.config.run_functions_eagerly(False); to debug a "
                "step, compile the model with run_eagerly=True."
            )
        mapped = tf.function(
            lambda rows: map_examples(function, rows), autograph=False
        )
        return mapped(rows)
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    try:
        results = tf.vectorized_map(function, rows)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        # It has an operation that cannot be vectorized, such as a CTC loss.
        return _one_by_one(function, rows)
    if not _lose_memory(graph.get_operations()[before:]):
        return results
    # TensorFlow never runs what nothing uses.
    return _one_by_one(function, rows)


def _one_by_one(function: Callable[[Any], Any], rows: Any) -> Any:
    row = keras.tree.map_structure(
        lambda leaf: tf.TensorSpec(leaf.shape[1:], leaf.dtype), rows
    )
    trace = trace_of(tf.function(function, autograph=False), row)
    signature = keras.tree.map_structure(
        lambda each: tf.TensorSpec(each.shape, each.dtype),
        trace.structured_outputs,
    )
    return tf.map_fn(function, rows, fn_output_signature=signature)


def operation_types(nodes: list[Any]) -> set[str]:
    """Returns the types of `NodeDef`s, with those of functions they call."""
    nodes, kinds, seen = list(nodes), set(), {""}
    while nodes:
        node = nodes.pop()
        kinds.add(node.op)
        for value in node.attr.values():
            called = {each.name for each in (value.func, *value.list.func)}
            for name in called - seen:
                nodes += function_nodes(name)
            seen |= called
    return kinds


def _lose_memory(operations: list[tf.Operation]) -> bool:
    if any(map(_is_lost_product, operations)):
        return True
    # Inside functions, shapes are not looked at.
    others = [x.node_def for x in operations if x.type != BATCHED_PRODUCT]
    return BATCHED_PRODUCT in operation_types(others)


def _is_lost_product(operation: tf.Operation) -> bool:
    if operation.type != BATCHED_PRODUCT:
        return False
    left, right = (each.shape for each in operation.inputs)
    if left.rank is None or right.rank is None:
        return True
    return (
        left.rank == 4
        and left[1] in (1, None)
        and all(length in (1, None) for length in right[:-2])
    )
