"""Which layers use weights of the layers inside them past their calls.

A hook sees what goes through its layer's call. A model that multiplies by the
transposed table of its embedding goes past it, and so does a layer that calls
another in a loop, or on rows that are not the examples. Such a layer must have
one hook for all inside.
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
    """Watches one pass of a model for such uses.

    Attributes:
        found: The innermost layers that made one, so far.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        """Starts with nothing found.

        Args:
            variables: The trained variables of the model.
        """
        self._variables = {id(each.value): each for each in variables}
        self._open: list[tuple[keras.Layer, tf.GradientTape]] = []
        self._in_hook = False
        self.found: list[keras.Layer] = []

    @contextlib.contextmanager
    def through_hook(self) -> Iterator[None]:
        """Is open while a hooked layer is called: its reads are its own."""
        if self._in_hook:
            yield
            return
        self._in_hook = True
        try:
            with contextlib.ExitStack() as stack:
                # The tapes of layers further out are stopped already.
                for _, tape in self._open[-1:]:
                    stack.enter_context(tape.stop_recording())
                yield
        finally:
            self._in_hook = False

    @contextlib.contextmanager
    def of(
        self, layer: keras.Layer, own: Sequence[keras.Variable] = ()
    ) -> Iterator[None]:
        """Is open while a layer is called whose layers inside have hooks.

        Args:
            layer: The layer.
            own: Variables that it may read.
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
        """Notes that a call cannot be hooked, if it is inside of such a layer.

        Args:
            layers: Layers that may have one hook for all inside instead; by
                default all.
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
            if self._in_hook:  # Which answers for this layer, too.
                return original(*args, **kwargs)
            with self.of(layer):
                return original(*args, **kwargs)

        return call


def could_use_directly(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers with code of their own around layers with weights."""
    whole = (keras.layers.RNN, keras.layers.Wrapper)
    return [
        layer
        for layer in layers_of(model)
        if not type(layer).__module__.startswith("keras.")
        and not isinstance(layer, whole)
        and not passes_training_on(layer)
        and any(trained_variables(inside) for inside in sublayers_of(layer))
    ]
