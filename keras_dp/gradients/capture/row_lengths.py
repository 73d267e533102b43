"""Finds tensors of which it is not known that their rows are the examples.

A tensor whose length follows from the data, such as the result of
`tf.boolean_mask`, can be as long as the batch by chance. Its rows would then be
clipped as if each were an example, and an example that fills several rows would
be clipped several times. A graph shows such tensors, because their length is
unknown when it is traced.
"""

import contextlib
from collections.abc import Iterator

import keras
import tensorflow as tf

from keras_dp.gradients.layer_calls import current_call, replaced_call
from keras_dp.gradients.operations import PLACING, TRANSPOSE
from keras_dp.keras_internals import layers_of


class RowLengths:
    """Follows lengths through the graph of one call of a model.

    It is made before the call. Nothing is found where nothing is traced,
    because all lengths are known.
    """

    def __init__(self) -> None:
        self._graph, self._seen = None, 0
        if not tf.executing_eagerly():
            self._graph = tf.compat.v1.get_default_graph()
            self._seen = len(self._graph.get_operations())
        # The names of the tensors of unknown length, and of those that are
        # computed from them.
        self._found: set[str] = set()

    def follows_from_data(self, tensor: tf.Tensor) -> bool:
        """Whether the number of rows of an example can follow from the data."""
        if _is_unknown(tensor):
            return True
        self._read()
        return tf.is_symbolic_tensor(tensor) and tensor.name in self._found

    def trust(self, tensors: list[tf.Tensor]) -> None:
        """Takes the rows of tensors for the examples from now on.

        They are the outputs of a layer that keeps the examples in order, or
        that is called again on each example.
        """
        self._read()
        self._found.difference_update(
            each.name for each in tensors if tf.is_symbolic_tensor(each)
        )

    @contextlib.contextmanager
    def kept_by_texts(self, model: keras.Model) -> Iterator[None]:
        """Gives what `TextVectorization` returns the length of its input.

        Keras splits texts by operations that lose it.
        """
        with contextlib.ExitStack() as stack:
            for layer in layers_of(model):
                if type(layer) is keras.layers.TextVectorization:
                    stack.enter_context(self._keeping_length(layer))
            yield

    def _keeping_length(
        self, layer: keras.Layer
    ) -> contextlib.AbstractContextManager[None]:
        original = current_call(layer)

        def call(texts: tf.Tensor) -> tf.Tensor:
            outputs = original(texts)
            if self._graph is None or self.follows_from_data(texts):
                return outputs
            outputs = tf.ensure_shape(
                outputs, [texts.shape[0], *outputs.shape[1:]]
            )
            self.trust([outputs])
            return outputs

        return replaced_call(layer, call)

    def _read(self) -> None:
        if self._graph is None:
            return
        operations = self._graph.get_operations()
        for operation in operations[self._seen :]:
            if operation.type in PLACING:
                continue
            from_found = any(
                each.name in self._found for each in operation.inputs
            ) and not _moves_first_axis(operation)
            self._found.update(
                each.name
                for each in operation.outputs
                if _is_unknown(each) or (from_found and each.shape.rank)
            )
        self._seen = len(operations)


def _is_unknown(tensor: tf.Tensor) -> bool:
    shape = tensor.shape
    return shape.rank is None or (shape.rank > 0 and shape[0] is None)


def _moves_first_axis(operation: tf.Operation) -> bool:
    """Whether another axis than the first one is the first one afterwards."""
    if operation.type != TRANSPOSE:
        return False
    order = tf.get_static_value(operation.inputs[1])
    return order is not None and order[0] != 0
