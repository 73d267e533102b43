"""Recurrent layers as two plain loops, one forward and one backward.

The loops return the tensors that per-example gradients need: the states before
each step, and the cotangents of the pre-activations at each step. XLA compiles
both.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

Tensors = list[tf.Tensor]
Activation = Callable[[tf.Tensor], tf.Tensor]
# Maps a factor `[batch, units]` to its product with some columns of the
# recurrent kernel, and adds their bias.
Times = Callable[[tf.Tensor, slice], tf.Tensor]
# Maps the part of the pre-activations from the inputs, `[batch, gates]`, and
# the states before a step to the states after it. It uses the recurrent kernel
# by `Times` alone, each column once, in order.
Cell = Callable[[tf.Tensor, Tensors, Times], Tensors]

_ALL = slice(None)


def lstm_cell(activation: Activation, gate: Activation) -> Cell:
    """Returns the cell of Keras's `LSTM`. Its states are output and carry."""

    def cell(inputs: tf.Tensor, states: Tensors, times: Times) -> Tensors:
        output, carry = states
        sums = inputs + times(output, _ALL)
        into, forget, new, out = tf.split(sums, 4, axis=-1)
        carry = gate(forget) * carry + gate(into) * activation(new)
        return [gate(out) * activation(carry), carry]

    return cell


def gru_cell(activation: Activation, gate: Activation, after: bool) -> Cell:
    """Returns the cell of Keras's `GRU`.

    Its reset gate is applied `after` the recurrent kernel, or before.
    """

    def cell(inputs: tf.Tensor, states: Tensors, times: Times) -> Tensors:
        (output,) = states
        cut = 2 * output.shape[-1]
        update, reset, new = tf.split(inputs, 3, axis=-1)
        inner = times(output, _ALL if after else slice(cut))
        by_update, by_reset, *by_new = tf.split(inner, 3 if after else 2, -1)
        reset = gate(reset + by_reset)
        if after:
            new += reset * by_new[0]
        else:
            new += times(reset * output, slice(cut, None))
        kept = gate(update + by_update)
        return [kept * output + (1 - kept) * activation(new)]

    return cell


def simple_cell(activation: Activation) -> Cell:
    """Returns the cell of Keras's `SimpleRNN`."""

    def cell(inputs: tf.Tensor, states: Tensors, times: Times) -> Tensors:
        return [activation(inputs + times(states[0], _ALL))]

    return cell


class RecurrenceResult(NamedTuple):
    """The result of a recurrence, `[steps, batch, units]`.

    Attributes:
        after: Each state after each step.
        factors: The factors of the recurrent kernel. If there are two, the
            second one is the factor of the last third of the columns.
    """

    after: Tensors
    factors: Tensors


class Recurrence(NamedTuple):
    """The loops of a cell. Nothing is differentiated by its kernel and bias.

    Attributes:
        kernel: The recurrent kernel, `[units, gates]`.
        masks: At most one, `[steps, batch, 1]`. Where it is false, states stay.
    """

    cell: Cell
    kernel: tf.Tensor
    bias: tf.Tensor | None
    masks: Tensors
    unroll: bool

    def run(
        self, inputs: tf.Tensor, probe: tf.Tensor, states: Tensors
    ) -> RecurrenceResult:
        """Runs it, so that a tape sees it as one operation.

        The inputs are the part of the pre-activations from the inputs,
        `[steps, batch, gates]`. The probe holds zeros like these; its cotangent
        is that of the part from the states. The states are those before the
        first step.
        """

        @tf.custom_gradient
        def recurrence(
            inputs: tf.Tensor, probe: tf.Tensor, *states: tf.Tensor
        ) -> Any:
            after, inner = self._forward(inputs, list(states))
            befores = [
                tf.concat([first[tf.newaxis], each[:-1]], axis=0)
                for first, each in zip(states, after, strict=True)
            ]

            def gradient(*cotangents: tf.Tensor) -> Tensors:
                from_after = list(cotangents[: len(after)])
                return self._backward([inputs, inner, *befores], from_after)

            return (*after, inner, *befores), gradient

        made = recurrence(inputs, probe, *states)
        after, (inner, *befores) = made[: len(states)], made[len(states) :]
        products: list[tuple[tf.Tensor, slice]] = []
        self.cell(inputs, befores, _known(inner, products))
        return RecurrenceResult(list(after), [factor for factor, _ in products])

    def _forward(
        self, inputs: tf.Tensor, states: Tensors
    ) -> tuple[Tensors, tf.Tensor]:
        """Returns the states after each step, and the products `inner`."""

        def step(carried: Any, row: Any) -> Any:
            (states, _), (inputs, masks) = carried, row
            products: Tensors = []

            def times(factor: tf.Tensor, columns: slice) -> tf.Tensor:
                product = tf.matmul(factor, _part(self.kernel, columns))
                if self.bias is not None:
                    product += _part(self.bias, columns)
                products.append(product)
                return product

            after = self.cell(inputs, states, times)
            for mask in masks:
                after = _chosen(mask, after, states)
            return after, tf.concat(products, axis=1)

        rows, first = (inputs, self.masks), (states, tf.zeros_like(inputs[0]))
        after, inner = _scan(step, rows, first, self.unroll)
        return after, inner

    def _backward(self, sources: Tensors, from_after: Tensors) -> Tensors:
        """Returns the cotangents of inputs, `inner` and first states.

        The sources are inputs, `inner`, and the states before each step.
        """

        def step(carried: Any, row: Any) -> Any:
            sources, masks, from_after = row
            into_after = _sums(carried[2:], from_after)
            if not masks:
                return self._pulled_back(sources, into_after)
            (mask,) = masks
            # By itself, TensorFlow would sum over axes that are not known.
            zeros = [tf.zeros_like(each) for each in into_after]
            into_inputs, into_inner, *into_befores = self._pulled_back(
                sources, _chosen(mask, into_after, zeros)
            )
            kept = _chosen(mask, zeros, into_after)
            return [into_inputs, into_inner, *_sums(into_befores, kept)]

        rows = (sources, self.masks, from_after)
        first = [tf.zeros_like(each[0]) for each in sources]
        into = _scan(step, rows, first, self.unroll, reverse=True)
        return [*into[:2], *(each[0] for each in into[2:])]

    def _pulled_back(self, sources: Tensors, into_after: Tensors) -> Tensors:
        """Returns the cotangents of the sources of one step of the cell."""
        inputs, inner, *states = sources
        products: list[tuple[tf.Tensor, slice]] = []
        with tf.GradientTape(
            persistent=True, watch_accessed_variables=False
        ) as tape:
            tape.watch(sources)
            after = self.cell(inputs, states, _known(inner, products))
        into = tape.gradient(
            after,
            sources,
            output_gradients=into_after,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # A factor can depend on products before it.
        for factor, columns in reversed(products):
            through = tf.matmul(
                _part(into[1], columns),
                _part(self.kernel, columns),
                transpose_b=True,
            )
            more = tape.gradient([factor], sources, output_gradients=[through])
            into = [
                one if other is None else one + other
                for one, other in zip(into, more, strict=True)
            ]
        return into


def _chosen(mask: tf.Tensor, yes: Tensors, no: Tensors) -> Tensors:
    return [tf.where(mask, *pair) for pair in zip(yes, no, strict=True)]


def _sums(one: Tensors, other: Tensors) -> Tensors:
    return [a + b for a, b in zip(one, other, strict=True)]


def _part(tensor: tf.Tensor, columns: slice) -> tf.Tensor:
    if columns == _ALL:
        return tensor
    width = tensor.shape[-1]
    begin, end, _ = columns.indices(width)
    # The gradient of a slice is not known to keep examples apart.
    return tf.split(tensor, [begin, end - begin, width - end], axis=-1)[1]


def _known(inner: tf.Tensor, products: list[tuple[tf.Tensor, slice]]) -> Times:
    """Returns products that were computed before, and notes their factors."""

    def times(factor: tf.Tensor, columns: slice) -> tf.Tensor:
        products.append((factor, columns))
        return _part(inner, columns)

    return times


def _scan(
    step: Callable[[Any, Any], Any],
    rows: Any,
    first: Any,
    unroll: bool,
    *,
    reverse: bool = False,
) -> Any:
    """Returns what `tf.scan` does. The loop can be unrolled."""
    if not unroll:
        return tf.scan(step, rows, first, reverse=reverse)
    steps = range(tf.nest.flatten(rows)[0].shape[0])
    results = []
    for at in reversed(steps) if reverse else steps:
        row = tf.nest.map_structure(lambda each, at=at: each[at], rows)
        first = step(first, row)
        results.append(first)
    if reverse:
        results.reverse()
    return tf.nest.map_structure(lambda *each: tf.stack(each), *results)
