"""Per-example gradients of a Keras model from one backward pass.

*Book-keeping* (Bu et al. 2022, arXiv:2210.00038v1): the backward pass runs to
the outputs of the layers that own weights, and no further. What a layer's
rule needs for norms and weighted sums is its input and that cotangent.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from absl import logging

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import registry
from keras_dp.gradients.capture.direct_uses import (
    DirectUses,
    could_use_directly,
)
from keras_dp.gradients.capture.hooks import (
    Hook,
    HookedCall,
    find_hooks,
    hooked,
    of_length,
)
from keras_dp.gradients.capture.vectorized import vectorized
from keras_dp.gradients.layer_calls import functions_of
from keras_dp.gradients.records.records import (
    GradientRecords,
    ZeroRecords,
    outside_xla,
    summed,
)
from keras_dp.gradients.records.scaled_records import ScaledRecords
from keras_dp.gradients.rules.batch_normalization import (
    ExampleStatistics,
    normalizing_by_released,
    refusing_training_mode,
    trained_layers,
)
from keras_dp.gradients.unsupported import layers as unsupported_layers
from keras_dp.gradients.unsupported.variable_writes import (
    without_variable_writes,
)
from keras_dp.keras_internals import (
    keeping_variable_scope,
    takes_training,
    trace_of,
)


class PerExampleGradients(NamedTuple):
    """The result of one forward and backward pass over a batch.

    Attributes:
        records: The gradients, one `GradientRecords` per trainable variable
            of the model, in the order of `model.trainable_variables`.
        losses: Each example's loss, `[batch]`.
        outputs: The outputs of the model.
        statistics: The part of each example in the statistics of each layer of
            `GradientEngine.normalized`, in order.
    """

    records: list[GradientRecords]
    losses: tf.Tensor
    outputs: Any
    statistics: list[ExampleStatistics]


class HookedPass(NamedTuple):
    """A pass of the model forward, and back to the hooks.

    Attributes:
        calls: The calls of the layers with a hook, in order.
        cotangents: The gradient of the summed losses at each of them.
        losses: Loss of each example, `[batch]`.
        outputs: The outputs of the model.
        statistics: As in `PerExampleGradients`.
    """

    calls: list[HookedCall]
    cotangents: list[list[tf.Tensor]]
    losses: tf.Tensor
    outputs: Any
    statistics: list[ExampleStatistics]


class GradientEngine:
    """Computes per-example gradients of one built model.

    Guarantee: record `i` is the gradient of `losses[i]` with respect to each
        trainable variable, under two conditions. `losses[i]` depends only on
        the outputs of the model for example `i`, and these depend only on
        example `i`. `unsupported` and `self_check` refuse models that break the
        second condition,
    as far as they can tell.

    Attributes:
        model: The model. Its `trainable` flags are read at construction.
        jit_compile: Whether the step is compiled by XLA.
        static_shapes: Whether no tensor has a shape that depends on data.
        trained_normalizations: Layers of batch normalization that are trained.
        normalized: The same layers if their statistics are released, else
            none. They never normalize by the statistics of a batch.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        jit_compile: bool = False,
        releases_statistics: bool = False,
    ) -> None:
        """Finds the layers to hook, or refuses the model.

        Args:
            model: Built.
            jit_compile: Whether the step is compiled by XLA.
            releases_statistics: Whether the statistics of batch normalization
                are released privately. Otherwise such layers are refused.
        """
        self.model = model
        self.jit_compile = jit_compile
        self.static_shapes = jit_compile or _has_accelerator()
        self.releases_statistics = releases_statistics
        self.check_layers()
        self.trained_normalizations = trained_layers(model)
        self.normalized = (
            self.trained_normalizations if releases_statistics else []
        )
        self.variables = list(model.trainable_variables)
        self.hooks: list[Hook] = find_hooks(model)
        self._functions = functions_of(model)
        self._whole: list[keras.Layer] = []
        self._knows_uses = False

    def gradients(
        self,
        inputs: Any,
        losses_of: Callable[[Any], tf.Tensor],
        batch: int,
        *,
        loss_scale: float = 1.0,
    ) -> PerExampleGradients:
        """Runs the model once forward in training mode, and once back.

        Args:
            inputs: The model's inputs, leaves `[batch, ...]`.
            losses_of: Maps the model's outputs to the losses `[batch]`.
            batch: Number of examples, padding included.
            loss_scale: Power of two that losses are multiplied by while
                they are differentiated, and gradients divided by afterwards.

        Raises:
            UnsupportedLayerError: A layer of the model cannot be handled; the
                message names it and the remedy.
        """
        with keeping_variable_scope(), without_variable_writes(self.model):
            ran = self.hooked_pass(
                inputs, losses_of, batch, loss_scale=loss_scale
            )
            unsupported_layers.check_added_losses(self.model)
            self._check_variables()
            # Layers without a rule are called again here.
            records = self.records(ran.calls, ran.cotangents, batch)
        if loss_scale != 1:
            records = [ScaledRecords(r, 1 / loss_scale) for r in records]
        return PerExampleGradients(
            records, ran.losses, ran.outputs, ran.statistics
        )

    def hooked_pass(
        self,
        inputs: Any,
        losses_of: Callable[[Any], tf.Tensor],
        batch: int,
        *,
        loss_scale: float = 1.0,
        training: bool = True,
    ) -> HookedPass:
        """Runs the model forward, and back to the hooks.

        Args:
            inputs: As in `gradients`, for this and the following.
            losses_of: Maps outputs to losses.
            batch: Number of examples.
            loss_scale: Factor of the losses.
            training: Whether the model is called as in training.
        """
        if tf.executing_eagerly() and self._could_use_directly():
            # A graph shows more: what is called inside of a loop.
            self._trace_for_hooks(inputs, batch, training)
        settled = False
        while not settled:
            tape = tf.GradientTape(watch_accessed_variables=False)
            with (
                self._normalizing(
                    collects=True, training=training
                ) as statistics,
                self._watching_uses() as past_hooks,
                tape,
                hooked(self.hooks, tape, batch, past_hooks) as calls,
            ):
                outputs = _called(self.model, inputs, training)
                settled = not past_hooks.found
                if settled:
                    losses = losses_of(outputs)
                    scaled = losses
                    if loss_scale != 1:
                        scaled = losses * tf.cast(loss_scale, losses.dtype)
                    added = statistics()
            self._settle_hooks(past_hooks.found)
        found = tape.gradient(
            scaled,
            [call.outputs for call in calls],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # The gradient of a gather is a list of rows.
        cotangents = [list(map(tf.convert_to_tensor, each)) for each in found]
        return HookedPass(calls, cotangents, losses, outputs, added)

    def _trace_for_hooks(self, inputs: Any, batch: int, training: bool) -> None:
        """Settles the hooks by a trace, which is thrown away."""

        def traced(inputs: Any) -> None:
            self.hooked_pass(
                inputs, lambda _: tf.zeros([batch]), batch, training=training
            )

        trace_of(tf.function(traced, autograph=False), inputs)

    def _could_use_directly(self) -> list[keras.Layer]:
        """Returns the layers that may yet be found to go past the hooks."""
        if self._knows_uses:
            return []
        taken = {id(layer) for layer in self._whole}
        layers = could_use_directly(self.model)
        return [layer for layer in layers if id(layer) not in taken]

    @contextlib.contextmanager
    def _watching_uses(self) -> Iterator[DirectUses]:
        """Watches what goes past the hooks, until the hooks are settled."""
        layers = self._could_use_directly()
        uses = DirectUses(self.variables if layers else [])
        hooked_layers = {id(hook.layer) for hook in self.hooks}
        others = [layer for layer in layers if id(layer) not in hooked_layers]
        with uses.watching(others):
            yield uses

    def _settle_hooks(self, found: list[keras.Layer]) -> None:
        """Gives one hook to each layer that went past the hooks inside of it.

        Args:
            found: Layers that a pass found. If there are none, the hooks
                stay as they are.
        """
        if found:
            self._whole += found
            self.hooks = find_hooks(self.model, self._whole)
        elif not self._knows_uses:
            self._knows_uses = True
            self._warn_of_whole_layers()

    def _warn_of_whole_layers(self) -> None:
        whole = {id(layer) for layer in self._whole}
        paths = [h.layer.path for h in self.hooks if id(h.layer) in whole]
        if paths:
            logging.warning(
                "Layers use weights of layers inside them past their calls, "
                "or call them in a loop, or on rows that are not the examples: "
                "the per-example gradients of all their weights are built, "
                "which takes as much memory as these times the physical batch. "
                "To train in less, call the layers inside on the batch (a "
                "ReversibleEmbedding for tied tables). Received: %s",
                ", ".join(map(repr, paths)),
            )

    def call(self, inputs: Any, *, training: bool = True) -> Any:
        """Returns the outputs of the model, as in training or not."""
        with self._normalizing(training=training):
            return _called(self.model, inputs, training)

    @contextlib.contextmanager
    def _normalizing(
        self, *, training: bool, collects: bool = False
    ) -> Iterator[Callable[[], list[ExampleStatistics]]]:
        """Keeps batch normalization from the statistics of a batch.

        Args:
            training: Whether the model is called as in training.
            collects: As in `normalizing_by_released`.

        Raises:
            UnsupportedLayerError: A layer would use them.
        """
        if self.releases_statistics:
            with normalizing_by_released(
                self.normalized, collects=collects, must_train=training
            ) as statistics:
                yield statistics
            return
        with refusing_training_mode(self.trained_normalizations):
            yield list

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Lets records use operations that XLA does not know, where possible.

        Compute the norms and sums of this engine's records inside of it.
        """
        with outside_xla(not self.jit_compile):
            yield

    @property
    def is_exchanged(self) -> bool:
        """Whether layers compute with other functions than at construction."""
        return functions_of(self.model) != self._functions

    def check_layers(self) -> None:
        """Raises for layers that make examples interact, as far as known.

        Raises:
            UnsupportedLayerError: The message names the layer and the remedy.
        """
        unsupported_layers.check_model(
            self.model, releases_statistics=self.releases_statistics
        )

    def _check_variables(self) -> None:
        """Raises if the call created weights that no hook covers."""
        known = {id(variable) for variable in self.variables}
        new = [v for v in self.model.trainable_variables if id(v) not in known]
        if new:
            raise UnsupportedLayerError(
                "The model must be built before its gradients are computed. "
                f"Received: {[v.path for v in new]!r}, created by the call. "
                "Call the model on a batch of data first."
            )

    def _vectorized(
        self, call: registry.LayerCall, hook: Hook
    ) -> registry.Gradients:
        return vectorized(
            call,
            hook.variables,
            jit_compile=self.jit_compile,
            within=functools.partial(self._normalizing, training=False),
        )

    def records(
        self,
        calls: list[HookedCall],
        cotangents: list[list[tf.Tensor]],
        batch: int,
    ) -> list[GradientRecords]:
        """Returns the gradients that follow from the hooked calls."""
        parts: dict[int, list[GradientRecords]] = {}
        for call, cotangent in zip(calls, cotangents, strict=True):
            layer_call = registry.LayerCall(
                call.hook.layer,
                call.args,
                call.kwargs,
                cotangent,
                call.kept,
                static_shapes=self.static_shapes,
            )
            if call.hook.rule is None:
                pairs = self._vectorized(layer_call, call.hook)
            else:
                pairs = call.hook.rule(layer_call)
            for variable, records in pairs:
                parts.setdefault(id(variable), []).append(records)
        return [
            summed(parts[id(variable)])
            if id(variable) in parts
            else ZeroRecords(batch, variable.value)
            for variable in self.variables
        ]


def _has_accelerator() -> bool:
    """Whether shapes that depend on data would make the host wait."""
    devices = tf.config.list_logical_devices()
    return any(device.device_type != "CPU" for device in devices)


def _called(model: keras.Model, inputs: Any, training: bool) -> Any:
    options = {"training": training} if takes_training(model) else {}
    outputs = model(inputs, **options)
    batch = keras.tree.flatten(inputs)[0].shape[0]
    return keras.tree.map_structure(
        lambda leaf: of_length(leaf, batch), outputs
    )
