"""Per-example gradients of a Keras model from one backward pass.

*Book-keeping* (Bu et al. 2022, arXiv:2210.00038v1): the backward pass ends at
the outputs of the layers that own trained weights. A layer's rule computes
norms and weighted sums from the inputs of the layer and the cotangents of its
outputs.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from absl import logging

from keras_dp._devices import has_accelerator, outside_xla
from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import registry
from keras_dp.gradients.capture.graph_of_call import Coupling, GraphOfCall
from keras_dp.gradients.capture.hooks import (
    CallOfModel,
    Hook,
    HookedCall,
    could_use_directly,
    find_hooks,
    of_length,
)
from keras_dp.gradients.capture.repeated_calls import (
    called_again,
    hook_of_model,
)
from keras_dp.gradients.capture.row_lengths import RowLengths
from keras_dp.gradients.layer_calls import functions_of
from keras_dp.gradients.records.records import (
    GradientRecords,
    ScaledRecords,
    ZeroRecords,
    summed,
)
from keras_dp.gradients.rules.batch_normalization import (
    ExampleStatistics,
    normalizing,
    trained_layers,
)
from keras_dp.gradients.unsupported import layers as unsupported_layers
from keras_dp.gradients.unsupported.variable_writes import (
    layer_in,
    without_variable_writes,
)
from keras_dp.keras_internals import (
    keeping_variable_scope,
    rematerialized_layers,
    takes_training,
    trace_of,
    without_rematerialization,
)

# Tracing raises these for a model whose Python reads the values of tensors.
UNTRACEABLE = (
    AttributeError,
    NotImplementedError,
    TypeError,
    tf.errors.OperatorNotAllowedInGraphError,
)


class PerExampleGradients(NamedTuple):
    """The result of one forward and backward pass over a batch.

    Attributes:
        records: One `GradientRecords` for each trainable variable, in the order
            of `model.trainable_variables`.
        losses: The loss of each example, `[batch]`.
        outputs: The outputs of the model.
        statistics: The part of each example in the statistics of the layers
            `GradientEngine.normalized`, in their order.
    """

    records: list[GradientRecords]
    losses: tf.Tensor
    outputs: Any
    statistics: list[ExampleStatistics]


class HookedPass(NamedTuple):
    """A forward pass, and a backward pass that ends at the hooks.

    Attributes:
        calls: Their cotangents are those of the summed losses, times the loss
            scale.
        losses: `[batch]`, without the loss scale.
    """

    calls: list[HookedCall]
    losses: tf.Tensor
    outputs: Any
    statistics: list[ExampleStatistics]


class GradientEngine:
    """Computes per-example gradients of one built model.

    Guarantee: record `i` is the gradient of `losses[i]` with respect to each
        trainable variable, under two conditions. `losses[i]` depends only on
        the outputs of the model for example `i`, and these depend only on
        example `i`. `unsupported` and `self_check` refuse the models for which
        they find that the second condition does not hold. They do not find all.

    Attributes:
        model: The model. Its `trainable` flags are read at construction.
        jit_compile: Whether the step is compiled by XLA.
        static_shapes: Whether no tensor may have a shape that depends on data.
            It is true with XLA, and on an accelerator.
        trained_normalizations: The layers of batch normalization that are
            trained.
        normalized: The same layers if their statistics are released, else
            none. They never normalize by the statistics of a batch.
        readings: How the gradients of each layer with trained weights follow,
            by its path: "by its rule", "from its graph" or "example by
            example". It is empty before the first gradients.
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
            model: A built model.
            jit_compile: Whether the step is compiled by XLA.
            releases_statistics: Whether the statistics of batch normalization
                are released privately. Otherwise layers that normalize by the
                batch are refused.

        Raises:
            UnsupportedLayerError: Examples interact in a layer, or a trainable
                variable belongs to no layer. The message says what to do.
        """
        self.model = model
        self.jit_compile = jit_compile
        self.static_shapes = jit_compile or has_accelerator()
        self.releases_statistics = releases_statistics
        self.check_layers()
        self.trained_normalizations = trained_layers(model)
        self.normalized = (
            self.trained_normalizations if releases_statistics else []
        )
        self.variables = list(model.trainable_variables)
        self.hooks: list[Hook] = find_hooks(model)
        _warn_of_rematerialization(model)
        self.readings: dict[str, str] = {}
        self._functions = functions_of(model)
        self._whole: list[keras.Layer] = []
        self._knows_uses = False
        # Each pass in training adds one, or `None` if its graph shows all.
        self._couplings: list[Coupling | None] = []

    @property
    def is_proven_apart(self) -> bool:
        """Whether all graphs so far show that examples are kept apart.

        It is false before the first pass in training.
        """
        return bool(self._couplings) and not any(self._couplings)

    @property
    def not_shown(self) -> str | None:
        """The first operation that may couple examples; `None` without one."""
        for coupling in self._couplings:
            if coupling is not None:
                layer = layer_in(self.model, coupling.name)
                where = "" if layer is None else f", in layer {layer.path!r}"
                return f"{coupling.kind} ({coupling.name!r}{where})"
        return None

    def gradients(
        self,
        inputs: Any,
        losses_of: Callable[[Any], tf.Tensor],
        batch: int,
        *,
        loss_scale: float = 1.0,
    ) -> PerExampleGradients:
        """Runs a forward pass in training mode, and a backward pass.

        Layers without a rule are called again. The first passes may be repeated
        to find where the model must have hooks.

        Args:
            inputs: The inputs of the model, leaves `[batch, ...]`.
            losses_of: Maps the outputs of the model to the losses `[batch]`.
            batch: The number of examples, with padding.
            loss_scale: A power of two. The losses are multiplied by it before
                they are differentiated, and the gradients are divided by it.

        Returns:
            The gradients as lazy records, the losses without the loss scale,
            the outputs, and the parts of the examples in the statistics.

        Raises:
            UnsupportedLayerError: A layer of the model cannot be trained
                privately, or the model keeps data. The message names the layer
                and says what to do.
        """
        with keeping_variable_scope(), without_variable_writes(self.model):
            ran = self.hooked_pass(
                inputs, losses_of, batch, loss_scale=loss_scale
            )
            unsupported_layers.check_added_losses(self.model)
            self._check_variables()
            # Layers without a rule are called again here.
            records = self.records(ran.calls, batch)
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
        public: Sequence[tf.Tensor] = (),
    ) -> HookedPass:
        """Runs a forward pass, and a backward pass that ends at the hooks.

        The arguments are those of `gradients`, but the cotangents are not
        divided by the loss scale. The model may read `public`, tensors of this
        graph that hold no data.

        Raises:
            UnsupportedLayerError: A layer cannot be hooked, or would normalize
                by the batch.
        """
        if tf.executing_eagerly() and not self._knows_uses:
            # Only a graph shows that a layer is called inside a loop, or that a
            # length follows from the data.
            self._trace_for_hooks(inputs, batch, training)
        settled = False
        while not settled:
            tape = tf.GradientTape(watch_accessed_variables=False)
            watched = []
            if not self._knows_uses:
                watched = could_use_directly(self.model, self._whole)
            call = CallOfModel(self.hooks, tape, batch, watched)
            with (
                self._calling(collects=True, training=training) as statistics,
                tape,
                call.hooked(),
            ):
                outputs = _called(self.model, inputs, training, call.rows)
                settled = not call.found
                if settled:
                    _check_rows(outputs, call.rows)
                    losses = losses_of(outputs)
                    scaled = losses
                    if loss_scale != 1:
                        scaled = losses * tf.cast(loss_scale, losses.dtype)
                    added = statistics()
            self._settle_hooks(call.found)
        if training:
            arguments = [
                (each.call.args, each.call.kwargs) for each in call.calls
            ]
            self._couplings.append(
                _coupling_in((outputs, arguments), inputs, batch, public)
            )
        found = tape.gradient(
            scaled,
            [each.outputs for each in call.calls],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # The gradient of a gather is `tf.IndexedSlices`.
        calls = [
            each._replace(
                call=each.call._replace(
                    cotangents=list(map(tf.convert_to_tensor, cotangents)),
                    static_shapes=self.static_shapes,
                )
            )
            for each, cotangents in zip(call.calls, found, strict=True)
        ]
        return HookedPass(calls, losses, outputs, added)

    def trace(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Returns a trace of a function that runs passes.

        The function is traced again if a pass of it settled the hooks.
        """
        hooks = self.hooks
        trace = trace_of(tf.function(function, autograph=False), *arguments)
        if self.hooks is not hooks:
            again = tf.function(function, autograph=False)
            trace = trace_of(again, *arguments)
        return trace

    def _trace_for_hooks(self, inputs: Any, batch: int, training: bool) -> None:
        """Settles the hooks by a trace of the model, which is discarded.

        A model that cannot be traced gets one hook for all of its weights, and
        is called for one example after another (`repeated_calls.py`).
        """

        def traced(inputs: Any) -> None:
            self.hooked_pass(
                inputs, lambda _: tf.zeros([batch]), batch, training=training
            )

        try:
            trace_of(tf.function(traced, autograph=False), inputs)
        except UNTRACEABLE:
            logging.warning(
                "Model %r cannot be traced by tf.function, because its Python "
                "reads the values of tensors. It is called for one example "
                "after another, which is slow.",
                self.model.name,
            )
            self._knows_uses = True
            self.hooks = [hook_of_model(self.model)]

    def settle_hooks_again(self, inputs: Any, batch: int) -> bool:
        """Looks where the hooks must be if there is one example more.

        An axis that is as long as the batch by chance looks like the batch. It
        returns whether the hooks changed.

        Raises:
            UnsupportedLayerError: A layer is called on other rows than the
                examples.
        """
        before, self._knows_uses = self.hooks, False
        longer = keras.tree.map_structure(
            lambda leaf: tf.concat([leaf, leaf[-1:]], axis=0), inputs
        )
        self._trace_for_hooks(longer, batch + 1, training=True)
        return self.hooks is not before

    def _settle_hooks(self, found: list[keras.Layer]) -> None:
        """Gives one hook to each layer that went past the hooks inside it."""
        if found:
            self._whole += found
            self.hooks = find_hooks(self.model, self._whole)
        else:
            self._knows_uses = True

    def call(self, inputs: Any, *, training: bool = True) -> Any:
        """Returns the outputs of the model, called as in training or not.

        Nothing is clipped, so that rows need not be shown to be the examples.
        """
        with self._calling(training=training):
            outputs = _called(self.model, inputs, training, RowLengths())
        batch = keras.tree.flatten(inputs)[0].shape[0]
        return keras.tree.map_structure(
            lambda leaf: of_length(leaf, batch), outputs
        )

    @contextlib.contextmanager
    def _calling(
        self, *, training: bool, collects: bool = False
    ) -> Iterator[Callable[[], list[ExampleStatistics]]]:
        """Prepares the layers to be called.

        None may normalize by the statistics of a batch, and none is called
        again in the backward pass, where it could not be hooked. Yields a
        function that returns the parts of the examples in the statistics.
        """
        normalized = normalizing(
            self.trained_normalizations,
            releases=self.releases_statistics,
            collects=collects,
            must_train=training,
        )
        with without_rematerialization(self.model), normalized as statistics:
            yield statistics

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Lets records use operations that XLA lacks, if XLA is not used.

        Compute the norms and sums of this engine's records inside it.
        """
        with outside_xla(not self.jit_compile):
            yield

    @property
    def is_exchanged(self) -> bool:
        """Whether layers, calls or activations changed since construction."""
        return functions_of(self.model) != self._functions

    def check_layers(self) -> None:
        """Raises for layers that cannot be trained privately.

        Raises:
            UnsupportedLayerError: The message names the layers, and says what
                to do.
        """
        unsupported_layers.check_model(
            self.model, releases_statistics=self.releases_statistics
        )

    def _check_variables(self) -> None:
        """Raises if the call of the model created trainable variables."""
        known = {id(variable) for variable in self.variables}
        new = [v for v in self.model.trainable_variables if id(v) not in known]
        if new:
            raise UnsupportedLayerError(
                "The model must be built before its gradients are computed. "
                f"Received: {[v.path for v in new]!r}, created by the call. "
                "Call the model on a batch of data first."
            )

    def _gradients_of(
        self, call: registry.LayerCall, hook: Hook, *, jit_compile: bool
    ) -> registry.Gradients:
        """Returns the gradients of a call, and notes how they follow."""
        if hook.rule is not None:
            gradients, how = hook.rule(call), "by its rule"
        else:
            gradients, how = called_again(
                call,
                hook.variables,
                jit_compile=jit_compile,
                within=functools.partial(self._calling, training=False),
            )
        path = call.layer.path
        if self.readings.get(path) != how:
            self.readings[path] = how
            logging.debug("Gradients of layer %r follow %s.", path, how)
        return gradients

    def records(
        self,
        calls: list[HookedCall],
        batch: int,
        *,
        jit_compile: bool | None = None,
    ) -> list[GradientRecords]:
        """Returns the gradients of the trainable variables.

        The calls are those of `hooked_pass`, and have its loss scale. By
        default, XLA compiles this if it compiles the step.
        """
        if jit_compile is None:
            jit_compile = self.jit_compile
        parts: dict[int, list[GradientRecords]] = {}
        for hook, call, _ in calls:
            pairs = self._gradients_of(call, hook, jit_compile=jit_compile)
            for variable, records in pairs:
                parts.setdefault(id(variable), []).append(records)
        return [
            summed(parts[id(variable)])
            if id(variable) in parts
            else ZeroRecords(batch, variable.value)
            for variable in self.variables
        ]


def _warn_of_rematerialization(model: keras.Model) -> None:
    paths = [layer.path for layer in rematerialized_layers(model)]
    if paths:
        logging.warning(
            "Layers that were made in a keras.RematScope are not called again "
            "in the backward pass of a private step, which keeps what it needs "
            "of them until all gradients are clipped. Received: %d layers, "
            "such as %r. To save memory, lower physical_batch_size.",
            len(paths),
            paths[0],
        )


def _coupling_in(
    results: Any, inputs: Any, batch: int, public: Sequence[tf.Tensor]
) -> Coupling | None:
    """Reads the graph of a call. Without a graph, nothing is shown."""
    if tf.executing_eagerly():
        return Coupling("Python code", "run_eagerly=True")
    operations = tf.compat.v1.get_default_graph().get_operations()
    return GraphOfCall(inputs, batch, public).coupling(results, operations)


def _called(
    model: keras.Model, inputs: Any, training: bool, rows: RowLengths
) -> Any:
    options = {"training": training} if takes_training(model) else {}
    with rows.kept_by_texts(model):
        return model(inputs, **options)


def _check_rows(outputs: Any, rows: RowLengths) -> None:
    tensors = filter(tf.is_tensor, keras.tree.flatten(outputs))
    if any(map(rows.follows_from_data, tensors)):
        raise UnsupportedLayerError(
            "The model must return outputs whose first axis is the batch. "
            "Received: a first axis whose length follows from the data, as "
            "that of tf.boolean_mask does. Return one row for each example."
        )
