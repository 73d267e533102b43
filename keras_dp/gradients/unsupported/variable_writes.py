"""Finds values of the data that a model keeps while it is called in training.

Such a value would leave the model without noise. Examples are statistics of the
inputs in a variable or a lookup table, targets that a loss remembers, and a
list in Python.

In a compiled step, a value can be kept only by an operation of its graph, or of
a function that the graph calls. In an eager step, the operations are observed
while they run, and the attributes of all layers are compared, because Python
code runs, too. Eager Python code is not searched for values that it keeps
outside the layers or inside objects of other classes.
"""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.operations import ASSIGNMENTS
from keras_dp.gradients.unsupported import stateful_operations
from keras_dp.keras_internals import (
    attributes_of,
    eager_operations,
    function_nodes,
    layers_of,
    seed_generators_of,
)


@contextlib.contextmanager
def without_variable_writes(model: keras.Model) -> Iterator[None]:
    """Raises at the end if an operation inside keeps values of the data.

    Only the states of seeds may be written. In an eager step, all variables are
    set back before the error is raised.

    Args:
        model: The model that is called inside.

    Raises:
        UnsupportedLayerError: The message names the operation and, if they are
            known, the layer and the variable.
    """
    if tf.executing_eagerly():
        with _eagerly(model):
            yield
        return
    graph = tf.compat.v1.get_default_graph()
    before = {id(operation) for operation in graph.get_operations()}
    yield
    _check_operations(
        model,
        graph,
        [each for each in graph.get_operations() if id(each) not in before],
    )


def _check_operations(
    model: keras.Model, graph: tf.Graph, operations: list[tf.Operation]
) -> None:
    paths = _paths_by_handle(model)
    paths = {
        id(internal): paths[id(external)]
        for external, internal in graph.captures
        if id(external) in paths
    }
    bodies = _bodies(graph)
    for operation in operations:
        kind, inputs, name = operation.type, operation.inputs, operation.name
        if not stateful_operations.keeps_nothing(kind):
            path = paths.get(id(inputs[0]), "") if len(inputs) else ""
            if kind not in ASSIGNMENTS or path is not None:
                raise _refusal(model, name, name, path)
        forbidden = stateful_operations.forbidden_in(
            functions_called(operation), bodies.__getitem__
        )
        if forbidden:
            raise _refusal(model, forbidden, name)


def functions_called(operation: tf.Operation) -> set[str]:
    """Returns the names of the functions that an operation calls."""
    if not stateful_operations.function_attributes(operation.type):
        return set()
    return stateful_operations.functions_called_by(operation.node_def)


def _bodies(graph: tf.Graph) -> dict[str, Any]:
    """Returns the nodes of each function that a graph knows."""
    return {
        function.signature.name: function.node_def
        for function in graph.as_graph_def().library.function
    }


@contextlib.contextmanager
def _eagerly(model: keras.Model) -> Iterator[None]:
    paths = _paths_by_handle(model)
    values = [(v, tf.identity(v.value)) for v in model.variables]
    refusals: list[UnsupportedLayerError] = []

    def observe(kind: str, inputs: Sequence[Any]) -> None:
        scope = tf.get_current_name_scope()
        if stateful_operations.is_function(kind):
            forbidden = stateful_operations.forbidden_in([kind], function_nodes)
            if forbidden:
                refusals.append(_refusal(model, forbidden, scope))
        elif not stateful_operations.keeps_nothing(kind):
            path = paths.get(id(inputs[0]), "") if len(inputs) else ""
            if kind not in ASSIGNMENTS or path is not None:
                refusals.append(_refusal(model, kind, scope, path))

    layers = layers_of(model)
    with changed_attributes(layers) as changed, eager_operations(observe):
        yield
    if changed:
        refusals.append(_refusal(model, changed[0], ""))
    if refusals:
        for variable, value in values:
            variable.assign(value)  # A written value must not stay.
        raise refusals[0]


def _paths_by_handle(model: keras.Model) -> dict[int, str | None]:
    """Returns the path of each variable by the id of its handle.

    The path is `None` for the state of a seed, which may be written.
    """
    seeds = {id(generator.state) for generator in seed_generators_of(model)}
    return {
        id(handle): None if id(variable) in seeds else variable.path
        for variable in model.variables
        for handle in _handles(variable.value)
    }


def _handles(value: Any) -> list[Any]:
    """Returns the handle of a variable on each replica."""
    return [each.handle for each in getattr(value, "values", [value])]


def layer_in(model: keras.Model, scope: str) -> keras.Layer | None:
    """Returns the innermost layer of a name scope, `None` if it has none.

    Keras opens a scope of the layer's name for each call. TensorFlow appends a
    number to a name that it has seen. Among several layers of one name, the one
    with most of its path in the scope is chosen.
    """
    inside = [layer for layer in layers_of(model) if layer is not model]
    parts = [{part, re.sub(r"_\d+$", "", part)} for part in scope.split("/")]
    known = set().union(*parts)
    for names in reversed(parts):
        found = [layer for layer in inside if layer.name in names]
        if found:
            return max(
                found, key=lambda layer: len(known & {*layer.path.split("/")})
            )
    return None


def _refusal(
    model: keras.Model, operation: str, scope: str, path: str | None = None
) -> UnsupportedLayerError:
    """Returns the error of an operation that keeps data.

    It has the name of an operation, or of a Python attribute. The path is that
    of the variable that is written, if it belongs to the model.
    """
    layer = layer_in(model, scope)
    owner = (
        ""
        if layer is None
        else f"Layer {layer.path!r} of class {type(layer).__name__}: "
    )
    where = f" to the variable {path!r}" if path else ""
    return UnsupportedLayerError(
        f"{owner}{operation!r} writes{where} while the model and its loss are "
        "called in training mode. It would carry what it has seen of the data "
        "out of the model without noise. Freeze the layer with "
        "layer.trainable = False, or remove what keeps, prints or counts. "
        "Random numbers must come from a keras.random.SeedGenerator of the "
        "layer that uses them."
    )


_VALUES = (np.ndarray, np.generic, bool, int, float, complex, str, bytes)


@contextlib.contextmanager
def changed_attributes(layers: list[keras.Layer]) -> Iterator[list[str]]:
    """Compares the values in the attributes of layers, and in containers there.

    Containers are lists, tuples, sets and mappings, at any depth. Values inside
    other objects are not compared. An array that was written in place counts as
    another value. When the context ends, the yielded list gets the names of the
    attributes whose tensors, arrays, numbers or texts are others than before.
    """
    changed: list[str] = []
    before = [_values(attributes_of(layer)) for layer in layers]
    yield changed
    for layer, old in zip(layers, before, strict=True):
        new = _values(attributes_of(layer))
        changed += [
            f"{layer.path}.{name}"
            for name in new
            if not _are_same(old.get(name, []), new[name])
        ]


def _values(attributes: Mapping[str, Any]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in attributes.items():
        found[name] = []
        _collect(value, found[name], set())
    return found


def _collect(value: Any, found: list[Any], seen: set[int]) -> None:
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        value = value.tolist()
    if isinstance(value, Mapping):
        value = list(value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        if id(value) not in seen:  # A list may hold itself.
            seen.add(id(value))
            for each in value:
                _collect(each, found, seen)
    elif isinstance(value, _VALUES) or (
        tf.is_tensor(value) and not isinstance(value, tf.Variable)
    ):
        found.append(value)
        if isinstance(value, np.ndarray):
            # It may be written in place.
            contents = np.ascontiguousarray(value).tobytes()
            found.append(hashlib.blake2b(contents).digest())


def _are_same(old: list[Any], new: list[Any]) -> bool:
    return len(old) == len(new) and all(
        one is two
        or (not (hasattr(one, "shape") or hasattr(two, "shape")) and one == two)
        for one, two in zip(old, new, strict=True)
    )
