"""Which layers use weights of the layers inside them past their calls.

A hook sees what goes through its layer's call. A model that multiplies by the
transposed table of its embedding goes past it, and so does a layer that calls
another in a loop. Such a layer must have one hook for all inside.
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
        found: The innermost layer that made one, `None` so far.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        """Starts with nothing found.

        Args:
            variables: The trained variables of the model.
        """
        self._variables = {id(each.value): each for each in variables}
        self._open: list[tuple[keras.Layer, tf.GradientTape]] = []
        self._in_hook = False
        self.found: keras.Layer | None = None

    @contextlib.contextmanager
    def through_hook(self) -> Iterator[None]:
        """Is open while a hooked layer is called: its reads are its own."""
        if self._in_hook or not self._open:
            yield
            return
        # The tapes of layers further out are stopped already.
        _, tape = self._open[-1]
        self._in_hook = True
        try:
            with tape.stop_recording():
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
            self.found = self.found or layer

    def cannot_hook_inside(self, layers: Sequence[keras.Layer]) -> bool:
        """Notes that a call cannot be hooked, if it is inside of such a layer.

        Args:
            layers: Layers that may have one hook for all inside instead.
        """
        around = [layer for layer, _ in self._open]
        inside = around and any(around[-1] is layer for layer in layers)
        if inside:
            self.found = self.found or around[-1]
        return bool(inside)

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
