"""Reads the graph of a call of a model or of a layer, back from its results.

If every operation on the way is known to keep examples apart (`operations.py`),
what the call returns for an example depends on that example, on weights and on
random numbers only. This then holds for all inputs of these shapes and for all
values of the variables, and not just for those that were tried. The gradients
of such operations keep examples apart, too; those that `tf.custom_gradient`
replaced are traced and read as well.

An operation that is not known may still keep examples apart. That only means
that nothing was shown.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.gradients.capture.weight_uses import Use, known_use
from keras_dp.gradients.operations import (
    ASSIGNMENTS,
    CALLS,
    CASES,
    CONDITIONS,
    CONSTANT,
    KNOWN,
    LENGTH_OF_LIST,
    LOOPS,
    OF_SHAPES,
    OLD_LOOPS,
    ON_LISTS,
    PLACEHOLDERS,
    SEVERAL,
    arranged_axis,
    has_own_gradient,
    is_divided,
)
from keras_dp.gradients.unsupported.stateful_operations import (
    function_attributes,
    keeps_nothing,
)
from keras_dp.keras_internals import (
    called_graph,
    custom_gradient_of,
    mask_of,
)


class Coupling(NamedTuple):
    """The type and the name of an operation that may couple examples.

    The name has the scopes of the layers around it.
    """

    kind: str
    name: str


# A tensor is arranged by examples along an axis, which a number names. For a
# list of tensors, it is an axis of the elements. `None` stands for a tensor
# that depends on no example, and a set for one that depends on no example and
# on the wanted weights at these places. From a `Coupling` on, nothing is known.
State = int | Coupling | frozenset[int] | None


class GraphOfCall:
    """The tensors in the graph of a call, and what each depends on.

    Attributes:
        uses: The operations that make tensors which are arranged by examples of
            the wanted weights, among all that were read so far.
    """

    def __init__(
        self,
        inputs: Any,
        batch: int,
        shared: Iterable[Any] = (),
        weights: Sequence[tf.Tensor] = (),
        variables: Iterable[keras.Variable] = (),
    ) -> None:
        """Starts with what is known before the call.

        `inputs` are `[batch, ...]`, and `shared` tensors depend on no example.
        `weights` are the values of the wanted weights; if there are any,
        nothing may be drawn. Keras gives the value of `variables` in this call,
        so what reads one past Keras is not known.
        """
        self.uses: list[Use] = []
        self._batch, self._weights = batch, weights
        # A tensor of another graph may have the name of one of this graph.
        self._graph = tf.compat.v1.get_default_graph()
        self._known: dict[str, State] = {}
        self._know(shared, None)
        self._know(_tensors(inputs), 0)
        for place, weight in enumerate(weights):
            self._know([weight], frozenset([place]))
        for variable in variables:
            handles = _captured_handles(variable, self._graph)
            self._know(handles, Coupling("variable", variable.path))

    def _know(self, tensors: Iterable[Any], state: State) -> None:
        for each in tensors:
            if tf.is_symbolic_tensor(each) and each.graph is self._graph:
                self._known[each.name] = state

    def coupling(
        self, results: Iterable[Any], operations: Iterable[tf.Operation] = ()
    ) -> Coupling | None:
        """Returns the first operation that may couple examples, or `None`.

        The results must keep examples apart. What the operations assign to
        variables must depend on no example.
        """
        found = self._assigned(operations)
        if found is not None:
            return found
        for tensor in _tensors(results):
            state: State = _unknown(tensor.op)
            if tensor.graph is self._graph:
                state = self.batch_axis(tensor)
            if state is not None and state != 0:
                return _coupling(state, tensor.op)
        return None

    def _assigned(self, operations: Iterable[tf.Operation]) -> Coupling | None:
        for operation in operations:
            if operation.type in ASSIGNMENTS:
                state = self.batch_axis(operation.inputs[1])
                if state is not None:
                    return _coupling(state, operation)
        return None

    def batch_axis(self, tensor: tf.Tensor) -> State:
        """Returns the axis along which a tensor is arranged by examples.

        See `State` for tensors without one. All that the tensor needs is read.
        """
        left = [tensor.op] if tensor.name not in self._known else []
        while left:
            operation = left[-1]
            needed = [
                each.op
                for each in operation.inputs
                if each.name not in self._known
            ]
            if needed and operation.type not in OLD_LOOPS:
                left += reversed(needed)
                continue
            left.pop()
            if operation.outputs[0].name in self._known:
                continue  # Several others needed it.
            read = self._read(operation)
            if not isinstance(read, list):
                read = [read] * len(operation.outputs)
            for each, state in zip(operation.outputs, read, strict=True):
                self._known[each.name] = state
        return self._known[tensor.name]

    def _read(self, operation: tf.Operation) -> State | list[State]:
        """Returns what is known of each output of an operation, or of all."""
        unknown, kind = _unknown(operation), operation.type
        if self._weights:
            if operation.op_def.is_stateful:
                return unknown
            states = [
                self._known.get(x.name, unknown) for x in operation.inputs
            ]
            if any(isinstance(each, frozenset) for each in states):
                return self._of_weights(operation, states)
        if kind in OLD_LOOPS:
            return unknown
        if kind in PLACEHOLDERS:
            return None if _is_fixed(operation) else unknown
        states = [self._known[each.name] for each in operation.inputs]
        if kind in LOOPS:
            return self._loop(operation, states)
        for state in states:
            if isinstance(state, Coupling):
                return state
        if kind in OF_SHAPES:
            return None
        if kind in CALLS and not _has_other_gradient(operation):
            return self._body(operation, operation.get_attr("f"), states)
        if kind in CONDITIONS | CASES:
            return self._condition(operation, states)
        if function_attributes(kind) or not keeps_nothing(kind):
            return unknown
        if all(state is None for state in states):
            return None
        if kind == SEVERAL:
            if has_own_gradient(operation):
                return self._own_gradient(operation, states)
            return states
        return self._arranged(operation, states)

    def _of_weights(
        self, operation: tf.Operation, states: list[State]
    ) -> State:
        if any(isinstance(each, Coupling) for each in states):
            return _unknown(operation)
        sets = {i: x for i, x in enumerate(states) if isinstance(x, frozenset)}
        arranged = {i: x for i, x in enumerate(states) if isinstance(x, int)}
        places = frozenset[int]().union(*sets.values())
        use = None
        if len(sets) == 1:
            use = Use(operation, next(iter(sets)), places)
            use = known_use(use, self._weights, arranged, self._batch)
        if use is not None:
            self.uses.append(use)
            return 0
        is_known = operation.type in KNOWN and not has_own_gradient(operation)
        return places if is_known and not arranged else _unknown(operation)

    def _arranged(self, operation: tf.Operation, states: list[State]) -> State:
        arranged = {i: x for i, x in enumerate(states) if isinstance(x, int)}
        tensors = (*operation.inputs, *operation.outputs)
        if any(each.dtype == tf.variant for each in tensors):
            if operation.type == LENGTH_OF_LIST:
                return None
            axis = self._axis_of_list(operation, arranged)
        else:
            axis = arranged_axis(operation, arranged, self._batch)
        return _unknown(operation) if axis is None else axis

    def _axis_of_list(
        self, operation: tf.Operation, arranged: dict[int, int]
    ) -> int | None:
        axes = set(arranged.values())
        places, by = ON_LISTS.get(operation.type, (set[int](), 0))
        if len(axes) != 1 or not places.issuperset(arranged):
            return None
        axis = axes.pop()
        after = axis + by
        tensors = [(operation.inputs[place], axis) for place in arranged]
        tensors += [(each, after) for each in operation.outputs]
        is_known = min(axis, after) >= 0 and all(
            each.dtype == tf.variant or is_divided(each, self._batch, along)
            for each, along in tensors
        )
        return after if is_known else None

    def _own_gradient(
        self, operation: tf.Operation, states: list[State]
    ) -> State | list[State]:
        """Reads the gradient that `tf.custom_gradient` gave an operation."""
        gradient, unknown = custom_gradient_of(operation), _unknown(operation)
        if gradient is None:
            return unknown
        into: list[State] = []

        def traced(*cotangents: tf.Tensor) -> list[Any]:
            pairs = list(
                zip(gradient(operation, *cotangents), states, strict=True)
            )
            pairs = [
                (g, s) for g, s in pairs if g is not None and s is not None
            ]
            into.extend(state for _, state in pairs)
            return [tf.convert_to_tensor(each) for each, _ in pairs]

        with operation.graph.as_default():
            trace = tf.function(traced, autograph=False).get_concrete_function(
                *(tf.TensorSpec(x.shape, x.dtype) for x in operation.outputs)
            )
        graph = trace.graph
        for each in operation.outputs:  # It cannot need them.
            self._known[each.name] = unknown
        # The cotangent of what all examples share has a part of each of them.
        inside = self._inside(
            graph.inputs, [unknown if x is None else x for x in states]
        )
        inside._known.update(
            (inner.name, self._of_capture(outer, operation))
            for outer, inner in graph.captures
        )
        is_kept = all(
            inside.batch_axis(each) in (state, None)
            for each, state in zip(graph.outputs, into, strict=True)
        )
        return states if is_kept else unknown

    def _of_capture(self, tensor: Any, operation: tf.Operation) -> State:
        if not tf.is_symbolic_tensor(tensor) or tensor.dtype == tf.resource:
            return None
        state: State = frozenset()
        if tensor.graph is operation.graph:
            state = self.batch_axis(tensor)
        return _unknown(operation) if isinstance(state, frozenset) else state

    def _inside(
        self, arguments: Sequence[tf.Tensor], states: Sequence[State]
    ) -> "GraphOfCall":
        """Returns the graph of a function, of whose arguments this is known."""
        inside = GraphOfCall([], self._batch)
        pairs = zip(arguments, states, strict=False)
        inside._known.update((each.name, state) for each, state in pairs)
        return inside

    def _body(
        self, operation: tf.Operation, function: Any, states: Sequence[State]
    ) -> list[State]:
        """Returns what is known of the results of a function it calls."""
        count = len(operation.outputs)
        graph = called_graph(operation.graph, function.name)
        if graph is None or len(graph.inputs) != len(states):
            return [_unknown(operation)] * count
        inside = self._inside(graph.inputs, states)
        assigned = inside._assigned(graph.get_operations())
        if assigned is not None:
            return [assigned] * count
        found = [inside.batch_axis(each) for each in graph.outputs]
        return [
            each
            if not isinstance(each, Coupling) or each in states
            else Coupling(each.kind, f"{operation.name}/{each.name}")
            for each in found
        ]

    def _condition(
        self, operation: tf.Operation, states: list[State]
    ) -> State | list[State]:
        chosen, *others = states
        if chosen is not None:
            return _unknown(operation)
        if operation.type in CONDITIONS:
            names = ("then_branch", "else_branch")
            functions = [operation.get_attr(name) for name in names]
        else:
            functions = operation.get_attr("branches")
        branches = [self._body(operation, each, others) for each in functions]
        return functools.reduce(functools.partial(_joined, operation), branches)

    def _loop(
        self, operation: tf.Operation, states: list[State]
    ) -> State | list[State]:
        body, condition = map(operation.get_attr, ("body", "cond"))
        while True:
            after = self._body(operation, body, states)
            joined = _joined(operation, states, after)
            if joined == states:
                break
            states = joined
        # The number of turns must not depend on examples.
        again = self._body(operation, condition, states)[0]
        return states if again is None else _coupling(again, operation)


def _has_other_gradient(operation: tf.Operation) -> bool:
    """Whether a call has a gradient that is not that of its function."""
    if not has_own_gradient(operation):
        return False
    name: bytes = operation.get_attr("_gradient_op_type")
    return not name.startswith(b"PartitionedCall-")


def _joined(
    operation: tf.Operation, one: list[State], two: list[State]
) -> list[State]:
    """Returns what holds of tensors that are either as `one` or as `two`."""
    unknown = _unknown(operation)
    if len(one) != len(two):
        return [unknown] * len(one)

    def of(a: State, b: State) -> State:
        if isinstance(a, Coupling) or b is None or a == b:
            return a
        return b if a is None or isinstance(b, Coupling) else unknown

    return [of(a, b) for a, b in zip(one, two, strict=True)]


def _is_fixed(operation: tf.Operation) -> bool:
    """Whether a placeholder stands for a variable or for an eager tensor."""
    (output,) = operation.outputs
    if output.dtype == tf.resource:
        return True
    captures = getattr(operation.graph, "captures", ())
    for outer, inner in captures:
        if inner is output:
            return not tf.is_symbolic_tensor(outer) or (
                outer.op.type == CONSTANT
            )
    return False


def _captured_handles(variable: keras.Variable, graph: Any) -> list[Any]:
    """Returns the handles of a variable on its replicas, inside of a graph."""
    values = getattr(variable.value, "values", [variable.value])
    found = [getattr(value, "handle", None) for value in values]
    if not hasattr(graph, "capture"):
        return []
    return [graph.capture(handle) for handle in found if handle is not None]


def _tensors(nest: Any) -> list[tf.Tensor]:
    """Returns the tensors of a nest, with their Keras masks."""
    leaves = keras.tree.flatten(nest)
    leaves += [mask_of(leaf) for leaf in leaves]
    return [leaf for leaf in leaves if tf.is_symbolic_tensor(leaf)]


def _unknown(operation: tf.Operation) -> Coupling:
    return Coupling(operation.type, operation.name)


def _coupling(state: State, operation: tf.Operation) -> Coupling:
    return state if isinstance(state, Coupling) else _unknown(operation)
