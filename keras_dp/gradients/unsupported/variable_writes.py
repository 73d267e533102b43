"""Finds what a model writes to variables while it is called in training.

Such a value would leave the model without noise: statistics that a layer keeps
of its inputs, targets that a loss remembers. In a compiled step every write is
an operation of its graph, whichever variable it goes to; in an eager one the
model's variables are compared.
"""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.keras_internals import seed_generators_of


@contextlib.contextmanager
def without_stores(model: keras.Model) -> Iterator[None]:
    """Raises if what runs inside writes to anything but seeds.

    Raises:
        UnsupportedLayerError: The message names the write.
    """
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        before = {id(operation) for operation in graph.get_operations()}
        inner = _inner_stores(graph)
        yield
        _check_graph(model, graph, before, inner)
        return
    state = [(v, v.numpy()) for v in _state_variables(model)]
    yield
    written = [
        (variable, value)
        for variable, value in state
        if variable.numpy().tobytes() != value.tobytes()
    ]
    for variable, value in written:
        variable.assign(value)  # What was written must not stay.
    if written:
        raise _refusal(f"The variable {written[0][0].path!r} is written")


def seed_ids(model: keras.Model) -> set[int]:
    """Returns the ids of the variables that hold states of seeds."""
    return {id(generator.state) for generator in seed_generators_of(model)}


def _state_variables(model: keras.Model) -> list[keras.Variable]:
    seeds = seed_ids(model)
    return [
        v for v in model.variables if not v.trainable and id(v) not in seeds
    ]


def _check_graph(
    model: keras.Model, graph: tf.Graph, before: set[int], inner: set[str]
) -> None:
    seeds = seed_ids(model)
    handles = {
        id(variable.value.handle)
        for variable in model.variables
        if id(variable) in seeds
    }
    allowed = {
        id(internal)
        for external, internal in graph.captures
        if id(external) in handles
    }
    for operation in graph.get_operations():
        if (
            id(operation) not in before
            and _is_store(operation.type)
            and id(operation.inputs[0]) not in allowed
        ):
            raise _refusal(f"The operation {operation.name!r} writes")
    new = _inner_stores(graph) - inner
    if new:
        raise _refusal(f"The operation {min(new)!r} writes")


def _inner_stores(graph: tf.Graph) -> set[str]:
    """Returns the writes inside loops, conditions and nested functions."""
    return {
        f"{function.signature.name}/{node.name}"
        for function in graph.as_graph_def().library.function
        for node in function.node_def
        if _is_store(node.op)
    }


def _is_store(kind: str) -> bool:
    if kind.startswith("ResourceScatter"):
        return True
    return kind.startswith("Assign") and kind.endswith("VariableOp")


def _refusal(what: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"{what} to a variable while the model and its loss are called in "
        "training mode. It would carry what it has seen of the data out of "
        "the model without noise. Freeze the layer with layer.trainable = "
        "False, or remove what keeps statistics."
    )
