"""Refuses functions of batches, in data sets, that mix the rows of a batch.

The graph of a function is read, as that of a model is. Where it does not prove
that rows are kept apart, the function is tried: some rows of a batch of random
numbers are exchanged, and the others must stay what they are.
"""

import itertools
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from keras_dp.gradients.capture.graph_of_call import GraphOfCall
from keras_dp.gradients.checks.trial import as_written
from keras_dp.gradients.operations import DRAWS, LOOPS
from keras_dp.keras_internals import (
    called_graph,
    registered_functions,
    trace_of,
)
from keras_dp.sampling.pipelines import Function, kinds_in, refusal

# The rows of a batch that is tried, and the length of other axes, where a
# pipeline does not know them.
_ROWS, _LENGTH = 7, 11
# A function may choose at random whether it mixes: several seeds are tried.
_TRIES = 4
_ROUNDING = 1e-4
_NEW = itertools.count()
# The graphs that were looked at: a data set is often trained on again.
_APART: weakref.WeakSet[Any] = weakref.WeakSet()


def check_keeps_rows_apart(functions: Iterable[Function], name: str) -> None:
    """Raises if a function of batches, in a pipeline, mixes their rows.

    Functions that cannot be tried, such as those of text or of Python, are not
    refused.
    """
    for function in functions:
        for stage, graph in _on_batches(function):
            if graph in _APART:
                continue
            if not _is_proven_apart(graph) and _mixes(graph):
                raise refusal(
                    name,
                    f"a function that mixes the rows of a batch, at {stage}",
                )
            _APART.add(graph)


def _on_batches(function: Function) -> Iterator[tuple[str, Any]]:
    """Yields a function of batches, and those of data sets inside of it."""
    if function.takes_batches:
        yield function.stage, function.graph
    for operation in function.graph.get_operations():
        if not operation.type.endswith(("MapDataset", "MapDatasetV2")):
            continue
        graph = called_graph(function.graph, operation.get_attr("f").name)
        if graph is not None:
            is_batched = "Batch" in operation.inputs[0].op.type
            yield from _on_batches(Function("Map", graph, is_batched))


def _given(graph: Any) -> list[tf.Tensor]:
    """Leaves out what the function captured."""
    captured = {inner.name for _, inner in graph.captures}
    return [each for each in graph.inputs if each.name not in captured]


def _results(graph: Any) -> list[tf.Tensor]:
    """Returns what a function returns; for a data set what it is made of."""
    left, found = list(graph.outputs), []
    while left:
        each = left.pop()
        if each.dtype == tf.variant:
            left += each.op.inputs
        elif each.dtype != tf.resource:
            found.append(each)
    return found


def _shapes(graph: Any) -> list[list[int]] | None:
    """Returns shapes of arguments for a batch, `None` if there are none."""
    given = _given(graph)
    if any(x.dtype == tf.variant or x.shape.rank is None for x in given):
        return None
    rows = {x.shape[0] for x in given if x.shape.rank} - {None} or {_ROWS}
    return [
        [max(rows) if k == 0 else n or _LENGTH for k, n in enumerate(x.shape)]
        for x in given
    ]


def _is_proven_apart(graph: Any) -> bool:
    """Whether the graph of a function shows that it keeps rows apart."""
    shapes = _shapes(graph)
    if not shapes:
        return False
    with tf.Graph().as_default():
        placed = {
            x.name: tf.compat.v1.placeholder(x.dtype, shape)
            for x, shape in zip(_given(graph), shapes, strict=True)
        }
        arranged = [each for each in placed.values() if each.shape.rank]
        shared = [each for each in placed.values() if not each.shape.rank]
        for _, inner in graph.captures:
            placed[inner.name] = tf.compat.v1.placeholder(
                inner.dtype, inner.shape
            )
            shared.append(placed[inner.name])
        try:
            results = _imported(graph, graph.as_graph_def(), placed)
        except ValueError:  # It takes no batch of this size.
            return False
        rows = max(shape[0] for shape in shapes if shape)
        read = GraphOfCall(arranged, rows, shared)
        return read.coupling(results) is None


def _imported(
    graph: Any, definition: Any, placed: dict[str, Any]
) -> list[tf.Tensor]:
    found: list[tf.Tensor] = tf.graph_util.import_graph_def(
        definition,
        input_map=placed,
        return_elements=[each.name for each in _results(graph)],
        name="",
    )
    return found


def _mixes(graph: Any) -> bool:
    """Whether rows change where others are exchanged."""
    shapes, given = _shapes(graph), _given(graph)
    if not shapes or any(x.dtype == tf.string for x in given):
        return False
    if any("PyFunc" in kind for kind in kinds_in(graph)):
        return False  # Python may do anything with such numbers.
    first, second = zip(*map(_pair, given, shapes), strict=True)
    rows = max(shape[0] for shape in shapes if shape)
    try:
        for seed in range(1, _TRIES + 1):
            before, after = (_run(graph, x, seed) for x in (first, second))
            if _differ(before, after, rows):
                # Not by something that has no seed.
                return not _differ(before, _run(graph, first, seed), rows)
    except (tf.errors.OpError, ValueError):
        pass  # It takes no such numbers.
    return False


def _pair(tensor: tf.Tensor, shape: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Returns an argument, and another one that shares the kept rows."""
    first = np.random.Generator(np.random.Philox(0)).random(shape)
    second = 3 - 2 * first
    if not tensor.dtype.is_floating:
        most = 255 if tensor.dtype == tf.uint8 else 1
        first = np.round(first * most)
        second = most - first
    kept = _kept(shape[0]) if shape else ...
    second[kept] = first[kept]
    kind = tensor.dtype.as_numpy_dtype
    return first.astype(kind), second.astype(kind)


def _kept(rows: int) -> np.ndarray:
    """Returns the rows that stay the same: neither the first nor the last."""
    inner = np.arange(1, max(2, rows - 1))
    generator = np.random.Generator(np.random.Philox(1))
    return generator.permutation(inner)[: max(1, rows // 2 - 1)]


def _run(graph: Any, arguments: Any, seed: int) -> list[np.ndarray]:
    """Returns the results of a function, all of whose draws have one seed.

    Variables that it writes, such as the states of seeds, are set back.
    """
    definition = _seeded(graph.as_graph_def(), seed)

    # A new function draws its numbers anew.
    @tf.function(autograph=False)
    def run(*leaves: tf.Tensor) -> list[tf.Tensor]:
        names = [each.name for each in _given(graph)]
        placed: dict[str, Any] = dict(zip(names, leaves, strict=True))
        here = tf.compat.v1.get_default_graph()
        for outer, inner in graph.captures:
            placed[inner.name] = here.capture(outer)
        return _imported(graph, definition, placed)

    before = [(each, each.read_value()) for each in graph.variables]
    try:
        for variable, value in before:
            if value.dtype.is_integer:  # It may be the state of a seed.
                variable.assign(value + tf.cast(seed, value.dtype))
        leaves = list(map(tf.constant, arguments))
        functions = definition.library.function
        with tf.device("CPU:0"), registered_functions(functions), as_written():
            return [np.asarray(x) for x in trace_of(run, *leaves)(*leaves)]
    finally:
        for variable, value in before:
            variable.assign(value)


def _seeded(definition: Any, seed: int) -> Any:
    """Returns a graph all of whose draws have one seed, in their order."""
    library = definition.library.function
    # TensorFlow would take the functions that it knows by these names.
    names = {
        f.signature.name: f"{f.signature.name}_{next(_NEW)}" for f in library
    }
    for each in library:
        each.signature.name = names[each.signature.name]
    for node in (*definition.node, *(n for f in library for n in f.node_def)):
        node.op = names.get(node.op, node.op)
        for value in node.attr.values():
            for called in (value.func, *value.list.func):
                if called.name in names:
                    called.name = names[called.name]
        if node.op in DRAWS and "seed2" in node.attr:
            node.attr["seed"].i = node.attr["seed2"].i = seed
        if node.op in LOOPS:
            node.attr["parallel_iterations"].i = 1
    return definition


def _differ(one: list[np.ndarray], two: list[np.ndarray], rows: int) -> bool:
    kept = _kept(rows)
    for a, b in zip(one, two, strict=True):
        if a.shape[:1] != (rows,) or a.dtype.kind not in "biuf":
            continue
        if not np.allclose(
            a[kept].astype(float),
            b[kept].astype(float),
            rtol=_ROUNDING,
            atol=_ROUNDING,
            equal_nan=True,
        ):
            return True
    return False
