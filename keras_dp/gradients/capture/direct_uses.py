"""Finds the layers that use weights of layers inside them past the hooks.

A hook sees only the uses of weights in its layer's call. A model that
multiplies by the transposed table of its embedding uses the table past the
hook. A hook cannot note a call in a loop, or on rows that are not the examples.
A layer that does such a thing must have one hook for all weights inside.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients.layer_calls import (
    current_call,
    replaced_call,
    trained_variables,
)
from keras_dp.keras_internals import (
    layers_of,
    passes_training_on,
    sublayers_of,
)


class DirectUses:
    """Watches one pass of a model for uses of weights past the hooks.

    Attributes:
        found: The innermost layers with such a use, so far.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        """Starts without any finding."""
        self._variables = {id(each.value): each for each in variables}
        self._open: list[tuple[keras.Layer, tf.GradientTape]] = []
        self._in_hook = False
        self.found: list[keras.Layer] = []

    @contextlib.contextmanager
    def through_hook(self) -> Iterator[None]:
        """Stops watching while a hooked layer is called."""
        if self._in_hook:
            yield
            return
        self._in_hook = True
        try:
            with contextlib.ExitStack() as stack:
                # The tapes of the layers around it are stopped already.
                for _, tape in self._open[-1:]:
                    stack.enter_context(tape.stop_recording())
                yield
        finally:
            self._in_hook = False

    @contextlib.contextmanager
    def of(
        self, layer: keras.Layer, own: Sequence[keras.Variable] = ()
    ) -> Iterator[None]:
        """Watches the reads of weights while a layer is called.

        Args:
            layer: A layer whose layers inside have hooks.
            own: Variables that the layer may read.
        """
        with self.through_hook(), tf.GradientTape() as tape:
            before, self._in_hook = self._in_hook, False
            self._open.append((layer, tape))
            try:
                yield
            finally:
                self._open.pop()
                self._in_hook = before
        allowed = {id(variable) for variable in own}
        read = [self._variables.get(id(v)) for v in tape.watched_variables()]
        if any(v is not None and id(v) not in allowed for v in read):
            self._note(layer)

    def _note(self, layer: keras.Layer) -> None:
        if not any(layer is each for each in self.found):
            self.found.append(layer)

    def cannot_hook_inside(
        self, layers: Sequence[keras.Layer] | None = None
    ) -> bool:
        """Notes that a call cannot be hooked, if a layer around it is watched.

        Args:
            layers: The layers around it that may get one hook for all weights
                inside. By default, any layer may.

        Returns:
            Whether the innermost layer around it now gets such a hook.
        """
        for around, _ in self._open[-1:]:
            if layers is None or any(around is layer for layer in layers):
                self._note(around)
                return True
        return False

    @contextlib.contextmanager
    def watching(self, layers: Sequence[keras.Layer]) -> Iterator[None]:
        """Watches the calls of layers that have no hook."""
        with contextlib.ExitStack() as stack:
            for layer in layers:
                call = self._watched(layer, current_call(layer))
                stack.enter_context(replaced_call(layer, call))
            yield

    def _watched(self, layer: keras.Layer, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._in_hook:  # That hook covers this layer, too.
                return original(*args, **kwargs)
            with self.of(layer):
                return original(*args, **kwargs)

        return call


def could_use_directly(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers whose own code calls layers with trained weights.

    Layers of Keras, recurrent layers, wrappers, and functional and sequential
    models are not among them.
    """
    whole = (keras.layers.RNN, keras.layers.Wrapper)
    return [
        layer
        for layer in layers_of(model)
        if not type(layer).__module__.startswith("keras.")
        and not isinstance(layer, whole)
        and not passes_training_on(layer)
        and any(trained_variables(inside) for inside in sublayers_of(layer))
    ]
