"""Traces the gradients of a batch once, for the step and for its check."""

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.capture.losses import ExampleLosses
from keras_dp.gradients.engine import GradientEngine, PerExampleGradients
from keras_dp.gradients.records.records import GradientRecords
from keras_dp.keras_internals import mask_of, seed_generators_of, set_mask

# Leaves that hold no tensor.
_PLAIN = (
    bool,
    int,
    float,
    str,
    tf.DType,
    tf.TensorShape,
    np.ndarray,
    type(None),
)

# Maps targets, outputs, sample weights and the number of examples to losses.
Losses = Callable[[Any, Any, Any, int], ExampleLosses]


class BatchGradients(NamedTuple):
    """The gradients and the losses of a batch, without the loss scale.

    The outputs among the gradients have their Keras masks.
    """

    gradients: PerExampleGradients
    losses: ExampleLosses


class TracedGradients:
    """Computes the gradients of batches, each form of batch by one trace.

    All functions that ask for the same form call the same trace. So the
    self-check compares with automatic differentiation what training then runs,
    and the model is not traced again for the step.
    """

    def __init__(
        self, engine: GradientEngine, losses: Losses, *, traces: bool = True
    ) -> None:
        """Starts without any trace.

        Args:
            engine: It computes the gradients.
            losses: The losses of examples, which depend on its arguments alone.
            traces: Whether batches have a trace of their own. Otherwise they
                are computed where they are asked for.
        """
        self._engine, self._losses, self._has_traces = engine, losses, traces
        self._traces: dict[str, GradientTrace] = {}

    def of(
        self, x: Any, y: Any, weight: Any, loss_scale: float
    ) -> BatchGradients:
        """Returns the gradients of a batch.

        Args:
            x: Inputs, leaves `[batch, ...]`.
            y: Targets, leaves `[batch, ...]`.
            weight: Sample weights, leaves `[batch, ...]`, or `None`.
            loss_scale: As in `GradientEngine.gradients`.
        """
        if tf.executing_eagerly() or not self._has_traces:
            return self._computed((x, y, weight), loss_scale)
        made = self.trace(x, y, weight, loss_scale)
        if not made.can_be_called:
            return self._computed((x, y, weight), loss_scale)
        return made((x, y, weight))

    def trace(
        self, x: Any, y: Any, weight: Any, loss_scale: float
    ) -> "GradientTrace":
        """Returns the trace for a form of batch. The arguments are as in `of`.

        Batches are of the same form if their leaves have the same shapes and
        dtypes. A trace serves until the engine has other hooks.
        """
        data = x, y, weight
        specs = [
            None if leaf is None else (tuple(leaf.shape), leaf.dtype.name)
            for leaf in keras.tree.flatten(data)
        ]
        nest = keras.tree.map_structure(lambda _: None, data)
        key = repr((nest, specs, loss_scale))
        made = self._traces.get(key)
        if made is None or made.hooks is not self._engine.hooks:
            compute = functools.partial(self._computed, loss_scale=loss_scale)
            made = self._traces[key] = GradientTrace(
                self._engine, compute, data
            )
        return made

    def _computed(
        self, data: tuple[Any, Any, Any], loss_scale: float
    ) -> BatchGradients:
        x, y, weight = data
        batch = keras.tree.flatten(x)[0].shape[0]
        held: list[ExampleLosses] = []

        def losses_of(outputs: Any) -> tf.Tensor:
            held.append(self._losses(y, outputs, weight, batch))
            return held[-1].total

        found = self._engine.gradients(
            x, losses_of, batch, loss_scale=loss_scale
        )
        return BatchGradients(found, held[-1])


class GradientTrace:
    """The trace of a function that returns gradients, for one form of batch.

    Attributes:
        hooks: The hooks of the engine in the trace.
        graph: All that the trace computes.
        can_be_called: Whether all tensors that it made are known. A record with
            a function of its own may hold others.
        draws: Whether a seed generator of the model drew a number.
    """

    def __init__(
        self,
        engine: GradientEngine,
        function: Callable[[Any], BatchGradients],
        data: Any,
    ) -> None:
        is_given = [leaf is not None for leaf in keras.tree.flatten(data)]
        nest = keras.tree.map_structure(lambda _: None, data)
        # The result of the function, and the masks of its outputs.
        self._made: tuple[Any, list[Any]] = (None, [])
        self._places: dict[int, int] = {}
        self.can_be_called = True

        def traced(*given: tf.Tensor) -> list[tf.Tensor]:
            rest = iter(given)
            filled = [next(rest) if there else None for there in is_given]
            found = function(keras.tree.pack_sequence_as(nest, filled))
            outputs = keras.tree.flatten(found.gradients.outputs)
            self._made = found, list(map(mask_of, outputs))
            tensors: dict[int, tf.Tensor] = {}

            def note(leaf: Any) -> Any:
                if tf.is_symbolic_tensor(leaf):
                    tensors[id(leaf)] = leaf
                elif not (tf.is_tensor(leaf) or isinstance(leaf, _PLAIN)):
                    self.can_be_called = False
                return leaf

            _mapped(note, self._made)
            self._places = {each: place for place, each in enumerate(tensors)}
            return list(tensors.values())

        self._trace = engine.trace(traced, *_given(data))
        self.hooks = engine.hooks
        self.graph: tf.Graph = self._trace.graph
        seeds = {
            id(generator.state.value)
            for generator in seed_generators_of(engine.model)
        }
        self.draws = any(id(each) in seeds for each in self._trace.variables)

    def __call__(self, data: Any) -> BatchGradients:
        """Returns the gradients of a batch of this form."""
        results = self._trace(*_given(data))

        def found(leaf: Any) -> Any:
            is_made = tf.is_symbolic_tensor(leaf)
            return results[self._places[id(leaf)]] if is_made else leaf

        computed: BatchGradients
        computed, masks = _mapped(found, self._made)
        outputs = keras.tree.flatten(computed.gradients.outputs)
        for leaf, mask in zip(outputs, masks, strict=True):
            if mask is not None:
                set_mask(leaf, mask)
        return computed


def _given(data: Any) -> list[tf.Tensor]:
    return [leaf for leaf in keras.tree.flatten(data) if leaf is not None]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns a copy of a nest with other leaves, also in its records."""
    each = functools.partial(_mapped, function)
    if isinstance(value, GradientRecords):
        records = copy.copy(value)
        vars(records).update(
            {name: each(attribute) for name, attribute in vars(value).items()}
        )
        return records
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(each, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(each, value))
    if isinstance(value, dict):
        nest = copy.copy(value)
        for key in value:
            nest[key] = each(value[key])
        return nest
    return function(value)
