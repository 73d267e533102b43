"""The rules of `LSTM`, `GRU` and `SimpleRNN`, and of `RNN` with their cells.

All time steps share the kernels, so that the gradients are sums over time of
outer products. For the kernel, the factors are the input of a step and the
cotangent of its gates. For the recurrent kernel, they are the output before the
step and that cotangent; the candidate of a `GRU` has factors of its own. One
backward pass gives the cotangents, because the loops of `recurrence.py` compute
the recurrence while the layer is hooked.
"""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import registry
from keras_dp.gradients.records.outer_product_records import (
    Arrangement,
    OuterProductRecords,
)
from keras_dp.gradients.records.records import (
    MaterializedRecords,
    in_float,
)
from keras_dp.gradients.rules import recurrence

_CELLS = (
    keras.layers.LSTMCell,
    keras.layers.GRUCell,
    keras.layers.SimpleRNNCell,
)


class _Kept(NamedTuple):
    """The left factors of the gradients, each `[batch, steps, width]`.

    Attributes:
        inputs: The factors of the kernel, in the order of the steps.
        factors: The factors of the recurrent kernel; see `RecurrenceResult`.
    """

    inputs: tf.Tensor
    factors: list[tf.Tensor]


def _is_plain(layer: keras.Layer) -> bool:
    """Whether `recurrence.py` computes the same as the layer."""
    cell = layer.cell
    return (
        type(cell) in _CELLS
        and "call" not in vars(cell)
        and registry.has_plain_kernel(cell)
        and cell.compute_dtype == layer.compute_dtype
        and not layer.stateful
        and not cell.recurrent_dropout
        and not (cell.dropout and getattr(cell, "implementation", 2) == 1)
        # With these, Keras 3.15 zeroes outputs by a mask that is not reversed.
        and not (
            layer.unroll and layer.go_backwards and layer.zero_output_for_mask
        )
    )


def _observe(opened: registry.OpenCall) -> tuple[Any, _Kept]:
    layer = opened.layer
    names = ("sequences", "initial_state", "mask", "training")
    given = dict(zip(names, opened.args, strict=False)) | opened.kwargs
    inputs = _inputs(layer, given["sequences"], given.get("training"))
    mask = _time_major_mask(given.get("mask"), layer.go_backwards)
    kernel, recurrent_kernel, bias, inner_bias = _weights(layer.cell)
    from_inputs = _times_kernel(inputs, kernel, bias)
    states = _initial_states(layer, given.get("initial_state"), inputs.shape[0])
    probe = tf.zeros_like(from_inputs)
    opened.watch([from_inputs, probe])
    ran = recurrence.Recurrence(
        _cell(layer.cell),
        recurrent_kernel,
        inner_bias,
        [] if mask is None else [mask],
        layer.unroll,
    ).run(from_inputs, probe, states)
    outputs = _outputs(layer, ran.after[0], mask)
    if layer.return_state:
        outputs = (outputs, *(each[-1] for each in ran.after))
    return outputs, _Kept(inputs, list(map(_swapped, ran.factors)))


def _inputs(
    layer: keras.Layer, sequences: tf.Tensor, training: bool | None
) -> tf.Tensor:
    """Returns the inputs after dropout, in the order of the steps."""
    if None in sequences.shape:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} must be called on sequences of a static "
            f"shape. Received: shape={tuple(sequences.shape)!r}. Pad the "
            "sequences to one length, and mask the padding."
        )
    inputs = tf.cast(sequences, layer.cell.compute_dtype)
    inputs = _dropped_out(layer.cell, inputs, training)
    return tf.reverse(inputs, axis=[1]) if layer.go_backwards else inputs


def _times_kernel(
    inputs: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None
) -> tf.Tensor:
    """Returns the gates' part from the inputs, `[steps, batch, gates]`."""
    batch, steps, width = inputs.shape
    rows = tf.reshape(_swapped(inputs), [steps * batch, width])
    products = tf.matmul(rows, kernel)
    if bias is not None:
        products = products + bias
    return tf.reshape(products, [steps, batch, kernel.shape[1]])


def _cell(cell: keras.Layer) -> recurrence.Cell:
    activation = cell.activation or keras.activations.linear
    if isinstance(cell, keras.layers.SimpleRNNCell):
        return recurrence.simple_cell(activation)
    gate = cell.recurrent_activation or keras.activations.linear
    if isinstance(cell, keras.layers.LSTMCell):
        return recurrence.lstm_cell(activation, gate)
    return recurrence.gru_cell(activation, gate, cell.reset_after)


def _weights(
    cell: keras.Layer,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor | None, tf.Tensor | None]:
    """Returns kernel, recurrent kernel and the bias of each."""

    def value(variable: keras.Variable) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(variable.value), cell.compute_dtype)

    bias = None if cell.bias is None else value(cell.bias)
    inner_bias = None
    if bias is not None and bias.shape.rank == 2:
        bias, inner_bias = tf.unstack(bias)
    return value(cell.kernel), value(cell.recurrent_kernel), bias, inner_bias


def _dropped_out(
    cell: keras.Layer, inputs: tf.Tensor, training: bool | None
) -> tf.Tensor:
    """Applies the layer's own dropout, with one mask for all steps."""
    if not training or not 0 < cell.dropout < 1:
        return inputs
    mask = cell.get_dropout_mask(inputs[:, 0, :])
    cell.reset_dropout_mask()
    return inputs * mask[:, tf.newaxis]


def _time_major_mask(mask: Any, go_backwards: bool) -> tf.Tensor | None:
    leaves = [leaf for leaf in keras.tree.flatten(mask) if leaf is not None]
    if not leaves:
        return None
    mask = tf.cast(leaves[0], tf.bool)
    if mask.shape.rank == 2:
        mask = mask[..., tf.newaxis]
    return _swapped(tf.reverse(mask, axis=[1]) if go_backwards else mask)


def _initial_states(
    layer: keras.Layer, given: Any, batch: int
) -> list[tf.Tensor]:
    if given is None:
        given = layer.get_initial_state(batch_size=batch)
    dtype = layer.cell.compute_dtype
    return [tf.cast(each, dtype) for each in keras.tree.flatten(given)]


def _outputs(
    layer: keras.Layer, states: tf.Tensor, mask: tf.Tensor | None
) -> tf.Tensor:
    """Returns the outputs of the layer from the first state after each step."""
    if mask is not None:
        shown = mask
        if not layer.zero_output_for_mask:
            # Outputs are 0 before the first step that the mask keeps.
            shown = tf.cumsum(tf.cast(mask, tf.int32), axis=0) > 0
        states = tf.where(shown, states, tf.zeros_like(states))
    return _swapped(states) if layer.return_sequences else states[-1]


def _swapped(sequence: tf.Tensor) -> tf.Tensor:
    """Returns a sequence with the axes of batch and time exchanged."""
    return tf.transpose(sequence, [1, 0, 2])


@registry.register(keras.layers.RNN, _is_plain, observe=_observe)
@registry.register(keras.layers.LSTM, _is_plain, observe=_observe)
@registry.register(keras.layers.GRU, _is_plain, observe=_observe)
@registry.register(keras.layers.SimpleRNN, _is_plain, observe=_observe)
def recurrent(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of both kernels and the bias of the cell."""
    cell, kept = call.layer.cell, call.kept
    into_inputs, into_inner = (_swapped(each) for each in call.cotangents)
    pairs: registry.Gradients = [
        (cell.kernel, _products([kept.inputs], [into_inputs])),
        (cell.recurrent_kernel, _recurrent_products(kept, into_inner)),
    ]
    if cell.bias is not None:
        biases = tf.reduce_sum(in_float(into_inputs), axis=1)
        if len(cell.bias.shape) == 2:
            inner = tf.reduce_sum(in_float(into_inner), axis=1)
            biases = tf.stack([biases, inner], axis=1)
        pairs.append((cell.bias, MaterializedRecords(biases)))
    return pairs


def _recurrent_products(
    kept: _Kept, into_inner: tf.Tensor
) -> OuterProductRecords:
    if len(kept.factors) == 1:
        return _products(kept.factors, [into_inner])
    gates, candidate = kept.factors
    thirds = tf.split(into_inner, 3, axis=-1)
    return _products([gates, gates, candidate], thirds)


def _products(
    lefts: list[tf.Tensor], rights: list[tf.Tensor]
) -> OuterProductRecords:
    """Returns the gradients of a kernel that consists of blocks of columns.

    The left factors are `[batch, steps, rows of kernel]`, and the right ones
    `[batch, steps, columns]`.
    """
    rows, left, right = len(lefts), lefts[0].shape[-1], rights[0].shape[-1]
    return OuterProductRecords(
        tf.stack(lefts, axis=1),
        tf.stack(rights, axis=1),
        Arrangement((rows, left, right), (1, 0, 2), (left, rows * right)),
    )
