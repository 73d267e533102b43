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


class Cell(NamedTuple):
    """The functions of one step.

    A pre-activation is the sum of a part from the input and a part from the
    states. Each part is `[batch, gates]`.

    Attributes:
        mix: Maps both parts, and the states before the step, to the states
            after it.
        resets: Maps both parts, and the output before the step, to the factor
            of the last third of the recurrent kernel. `None` if this factor is
            the output before the step.
    """

    mix: Callable[[tf.Tensor, tf.Tensor, Tensors], Tensors]
    resets: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor] | None


def lstm_cell(activation: Activation, gate: Activation) -> Cell:
    """Returns the cell of Keras's `LSTM`. Its states are output and carry."""

    def mix(inputs: tf.Tensor, inner: tf.Tensor, states: Tensors) -> Tensors:
        into, forget, new, out = tf.split(inputs + inner, 4, axis=-1)
        carry = gate(forget) * states[1] + gate(into) * activation(new)
        return [gate(out) * activation(carry), carry]

    return Cell(mix, None)


def gru_cell(activation: Activation, gate: Activation, after: bool) -> Cell:
    """Returns the cell of Keras's `GRU`.

    Its reset gate is applied `after` the recurrent kernel, or before.
    """

    def mix(inputs: tf.Tensor, inner: tf.Tensor, states: Tensors) -> Tensors:
        update, reset, new = tf.split(inputs, 3, axis=-1)
        update_inner, reset_inner, new_inner = tf.split(inner, 3, axis=-1)
        if after:
            new_inner = gate(reset + reset_inner) * new_inner
        kept = gate(update + update_inner)
        return [kept * states[0] + (1 - kept) * activation(new + new_inner)]

    def resets(
        inputs: tf.Tensor, inner: tf.Tensor, output: tf.Tensor
    ) -> tf.Tensor:
        units = output.shape[-1]
        part = slice(units, 2 * units)
        return gate(inputs[..., part] + inner[..., part]) * output

    return Cell(mix, None if after else resets)


def simple_cell(activation: Activation) -> Cell:
    """Returns the cell of Keras's `SimpleRNN`."""

    def mix(inputs: tf.Tensor, inner: tf.Tensor, states: Tensors) -> Tensors:
        return [activation(inputs + inner)]

    return Cell(mix, None)


class Run(NamedTuple):
    """The result of a recurrence over all steps.

    Attributes:
        outputs: The first state after each step, `[steps, batch, units]`.
        last: All states after the last step, each `[batch, units]`.
        inner: The part of each pre-activation from the states, `[steps, batch,
            gates]`.
    """

    outputs: tf.Tensor
    last: Tensors
    inner: tf.Tensor


def run(
    cell: Cell,
    inputs: tf.Tensor,
    probe: tf.Tensor,
    kernel: tf.Tensor,
    bias: tf.Tensor | None,
    states: Tensors,
    mask: tf.Tensor | None,
    *,
    unroll: bool,
) -> Run:
    """Runs a recurrence, so that a tape sees it as one operation.

    Nothing is differentiated by the kernel `[units, gates]` and its bias: their
    gradients follow from the cotangent of the probe. The inputs are the part of
    the pre-activations from the inputs, `[steps, batch, gates]`. The probe
    holds zeros like these; its cotangent is that of `Run.inner`. The states are
    those before the first step. Where the mask `[steps, batch, 1]` is false,
    they stay.
    """
    if bias is None:
        bias = tf.zeros(kernel.shape[1:], kernel.dtype)
    loops = _Loops(cell, kernel, bias, mask, unroll)

    @tf.custom_gradient
    def recurrence(
        inputs: tf.Tensor, probe: tf.Tensor, *states: tf.Tensor
    ) -> Any:
        befores, inner, last = loops.forward(inputs, list(states))
        outputs = tf.concat([befores[0][1:], last[0][tf.newaxis]], axis=0)

        def gradient(*cotangents: tf.Tensor) -> Tensors:
            from_outputs, *from_last = cotangents[: 1 + len(last)]
            return loops.backward(
                inputs, inner, befores, from_outputs, from_last
            )

        return (outputs, *last, inner), gradient

    outputs, *rest = recurrence(inputs, probe, *states)
    return Run(outputs, rest[:-1], rest[-1])


class _Loops(NamedTuple):
    """The two loops. Sequences are `[steps, batch, ...]`."""

    cell: Cell
    kernel: tf.Tensor
    bias: tf.Tensor
    mask: tf.Tensor | None
    unroll: bool

    def forward(
        self, inputs: tf.Tensor, states: Tensors
    ) -> tuple[Tensors, tf.Tensor, Tensors]:
        """Returns the states before each step, `inner`, and the last states."""
        masks = [] if self.mask is None else [self.mask]

        def step(states: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            inner = self._inner(rows[0], states[0])
            after = self.cell.mix(rows[0], inner, states)
            if masks:
                after = _chosen(rows[1], after, states)
            return after, [*states, inner]

        like = [*states, inputs[0]]
        last, kept = scan(
            step, states, [inputs, *masks], like, self.unroll, reverse=False
        )
        return kept[:-1], kept[-1], last

    def backward(
        self,
        inputs: tf.Tensor,
        inner: tf.Tensor,
        befores: Tensors,
        from_outputs: tf.Tensor,
        from_last: Tensors,
    ) -> Tensors:
        """Returns the cotangents of inputs, inner and first states."""
        masks = [] if self.mask is None else [self.mask]

        def step(carried: Tensors, rows: Tensors) -> tuple[Tensors, Tensors]:
            from_output, inputs, inner, *rest = rows
            carried = [carried[0] + from_output, *carried[1:]]
            befores = rest[: len(carried)]
            zeros = [tf.zeros_like(each) for each in carried]
            used = _chosen(rest[-1], carried, zeros) if masks else carried
            into_inputs, into_inner, into_befores = self._step_gradient(
                inputs, inner, befores, used
            )
            if masks:
                passed = _chosen(rest[-1], zeros, carried)
                into_befores = [
                    one + other
                    for one, other in zip(into_befores, passed, strict=True)
                ]
            return into_befores, [into_inputs, into_inner]

        into_states, (into_inputs, into_inner) = scan(
            step,
            from_last,
            [from_outputs, inputs, inner, *befores, *masks],
            [inputs[0], inner[0]],
            self.unroll,
            reverse=True,
        )
        return [into_inputs, into_inner, *into_states]

    def _inner(self, inputs: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        if self.cell.resets is None:
            return tf.matmul(output, self.kernel) + self.bias
        cut = 2 * output.shape[-1]
        gates = tf.matmul(output, self.kernel[:, :cut]) + self.bias[:cut]
        reset = self.cell.resets(inputs, gates, output)
        new = tf.matmul(reset, self.kernel[:, cut:]) + self.bias[cut:]
        return tf.concat([gates, new], axis=1)

    def _step_gradient(
        self,
        inputs: tf.Tensor,
        inner: tf.Tensor,
        befores: Tensors,
        cotangents: Tensors,
    ) -> tuple[tf.Tensor, tf.Tensor, Tensors]:
        sources = [inputs, inner, *befores]
        with tf.GradientTape(
            persistent=True, watch_accessed_variables=False
        ) as tape:
            tape.watch(sources)
            after = self.cell.mix(inputs, inner, befores)
            if self.cell.resets is not None:
                reset = self.cell.resets(inputs, inner, befores[0])
        into = _gradients(tape, after, sources, cotangents)
        if self.cell.resets is None:
            through = tf.matmul(into[1], self.kernel, transpose_b=True)
        else:
            cut = 2 * befores[0].shape[-1]
            into_reset = tf.matmul(
                into[1][:, cut:], self.kernel[:, cut:], transpose_b=True
            )
            more = _gradients(tape, [reset], sources, [into_reset])
            into = [one + other for one, other in zip(into, more, strict=True)]
            through = tf.matmul(
                into[1][:, :cut], self.kernel[:, :cut], transpose_b=True
            )
        into_inputs, into_inner, into_output, *into_others = into
        return into_inputs, into_inner, [into_output + through, *into_others]


def _gradients(
    tape: tf.GradientTape, targets: Tensors, sources: Tensors, into: Tensors
) -> Tensors:
    return tape.gradient(
        targets,
        sources,
        output_gradients=into,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )


def _chosen(mask: tf.Tensor, yes: Tensors, no: Tensors) -> Tensors:
    return [
        tf.where(mask, one, other) for one, other in zip(yes, no, strict=True)
    ]


def scan(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    carried: Tensors,
    sequences: Tensors,
    like: Tensors,
    unroll: bool,
    *,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    """Maps `step` over the leading axis, and carries its first results along.

    Each step maps the carried tensors, and one row of each sequence, to the
    next carried tensors and one row of each result. `like` has the shapes and
    dtypes of these rows. There is at least one sequence. It returns the last
    carried tensors, and the results `[steps, ...]` in the order of the
    sequences.
    """
    steps = sequences[0].shape[0]
    if unroll:
        return _unrolled(step, carried, sequences, reverse)
    arrays = [
        tf.TensorArray(
            each.dtype, size=steps, element_shape=each.shape[1:]
        ).unstack(each)
        for each in sequences
    ]
    results = tuple(
        tf.TensorArray(each.dtype, size=steps, element_shape=each.shape)
        for each in like
    )

    def body(
        count: tf.Tensor, carried: Any, results: Any
    ) -> tuple[tf.Tensor, Any, Any]:
        at = steps - 1 - count if reverse else count
        rows = [array.read(at) for array in arrays]
        carried, new = step(list(carried), rows)
        results = tuple(
            result.write(at, row)
            for result, row in zip(results, new, strict=True)
        )
        return count + 1, tuple(carried), results

    _, carried, results = tf.while_loop(
        lambda count, *_: count < steps,
        body,
        (tf.constant(0), tuple(carried), results),
        maximum_iterations=steps,
    )
    return list(carried), [result.stack() for result in results]


def _unrolled(
    step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    carried: Tensors,
    sequences: Tensors,
    reverse: bool,
) -> tuple[Tensors, Tensors]:
    rows = list(zip(*(tf.unstack(each) for each in sequences), strict=True))
    results = []
    for row in reversed(rows) if reverse else rows:
        carried, new = step(carried, list(row))
        results.append(new)
    if reverse:
        results.reverse()
    return carried, [tf.stack(each) for each in zip(*results, strict=True)]
