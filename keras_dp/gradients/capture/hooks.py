"""Puts hooks on the layers at which the backward pass ends.

A *hook* is put on every layer that owns trained weights. While the model is
called, the hooked layer's `call` is replaced on the instance by one that also
notes its arguments and its outputs. The class, the configuration and the saved
model stay as they are.

A hook sees only the uses of weights in its layer's call. A model that
multiplies by the transposed table of its embedding uses the table past the
hook. A hook cannot note a call in a loop, or on rows that are not the examples.
A layer that does such a thing must have one hook for all weights inside.
"""

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import registry
from keras_dp.gradients.capture.repeated_draws import RepeatedDraws
from keras_dp.gradients.capture.row_lengths import RowLengths
from keras_dp.gradients.layer_calls import (
    current_call,
    float_outputs,
    replaced_call,
    trained_variables,
)
from keras_dp.keras_internals import (
    layers_of,
    mask_of,
    own_trainable_variables,
    passes_training_on,
    set_mask,
    sublayers_of,
    training_of_call,
)


def could_use_directly(
    model: keras.Model, whole: Collection[keras.Layer] = ()
) -> list[keras.Layer]:
    """Returns the layers whose own code calls layers with trained weights.

    Layers of Keras, recurrent layers, wrappers, functional and sequential
    models, and those in `whole` are not among them.
    """
    taken = {id(layer) for layer in whole}
    loops = (keras.layers.RNN, keras.layers.Wrapper)
    return [
        layer
        for layer in layers_of(model)
        if not type(layer).__module__.startswith("keras.")
        and not isinstance(layer, loops)
        and id(layer) not in taken
        and not passes_training_on(layer)
        and not registry.has_no_weights_inside(layer)
    ]


class Hook(NamedTuple):
    """A layer at which the backward pass ends.

    Attributes:
        rule: `None` stands for the vectorized fallback.
        observe: Calls the layer for its rule.
        is_apart: Whether the hook covers the layer's own weights only, and the
            layers inside have hooks of their own.
    """

    layer: keras.Layer
    rule: registry.Rule | None
    observe: registry.Observer | None = None
    is_apart: bool = False

    @property
    def variables(self) -> list[keras.Variable]:
        """The trained variables that the hook covers."""
        if self.is_apart:
            own = own_trainable_variables(self.layer)
            return [variable for variable in own if variable.trainable]
        return trained_variables(self.layer)


class HookedCall(NamedTuple):
    """A call of a hooked layer.

    Attributes:
        call: It has no cotangents before the backward pass. For the fallback,
            it has `training` if it is known, because the layers inside inherit
            it.
        outputs: The tensors at which the backward pass ends.
    """

    hook: Hook
    call: registry.LayerCall
    outputs: list[tf.Tensor]


def find_hooks(
    model: keras.Model, whole: Collection[keras.Layer] = ()
) -> list[Hook]:
    """Returns a hook for each layer of a built model that owns trained weights.

    If a layer without a rule owns weights *and* holds layers with weights, its
    hook covers its own weights only. A recurrent layer or a wrapper, which can
    call its sublayers in a loop, has one hook for all weights inside. So has a
    layer in `whole`.
    """
    hooks: dict[int, Hook] = {}
    one_hook = {id(layer) for layer in whole}

    def visit(layer: keras.Layer) -> None:
        if id(layer) in hooks or not trained_variables(layer):
            return
        entry = registry.entry_for(layer)
        owns = any(v.trainable for v in own_trainable_variables(layer))
        loops = isinstance(layer, (keras.layers.RNN, keras.layers.Wrapper))
        loops = loops or id(layer) in one_hook
        if owns or loops:
            rule, _, observe = entry or (None, None, None)
            holds = not registry.has_no_weights_inside(layer)
            is_apart = rule is None and not loops and holds
            hooks[id(layer)] = Hook(layer, rule, observe, is_apart)
            if not is_apart:
                return
        for sublayer in sublayers_of(layer):
            visit(sublayer)

    visit(model)
    found = list(hooks.values())
    _check_coverage(model, found)
    return found


def layers_without_rule(model: keras.Model) -> list[keras.Layer]:
    """Returns the layers of a built model that take the vectorized fallback.

    Raises:
        UnsupportedLayerError: A trainable variable belongs to no layer.
    """
    return [hook.layer for hook in find_hooks(model) if hook.rule is None]


def _check_coverage(model: keras.Model, hooks: list[Hook]) -> None:
    covered = {id(v) for hook in hooks for v in hook.variables}
    missing = [v for v in model.trainable_variables if id(v) not in covered]
    if missing:
        raise UnsupportedLayerError(
            "Every trainable variable must be owned by a layer of the model. "
            f"Received: {[v.path for v in missing]!r} outside any layer. Keep "
            "them in a layer of their own, or set trainable=False."
        )


class CallOfModel:
    """One call of a model, with hooks on its layers.

    Attributes:
        rows: Knows the tensors whose length follows from the data.
        calls: The calls of the layers with a hook, in order.
        found: The innermost layers that use weights past the hooks inside them,
            or call a layer where it cannot be hooked. Each of them must have
            one hook for all weights inside.
    """

    def __init__(
        self,
        hooks: Sequence[Hook],
        tape: tf.GradientTape,
        batch: int,
        watched: Sequence[keras.Layer] = (),
    ) -> None:
        """Starts before the call.

        The tape is made to watch the tensors at which the backward pass ends.
        Uses of weights past the hooks are looked for if layers are `watched`.
        """
        self.rows = RowLengths()
        self.calls: list[HookedCall] = []
        self.found: list[keras.Layer] = []
        self._tape, self._batch = tape, batch
        self._home = None
        if not tf.executing_eagerly():
            self._home = tf.compat.v1.get_default_graph()
        self._hooks: list[tuple[keras.Layer, Hook | None]] = [
            (hook.layer, hook) for hook in hooks
        ]
        hooked = {id(hook.layer) for hook in hooks}
        self._hooks += [(x, None) for x in watched if id(x) not in hooked]
        weights = [v for hook in hooks if watched for v in hook.variables]
        self._weights = {id(each.value): id(each) for each in weights}
        # The open layers whose layers inside have hooks, innermost last.
        self._around: list[
            tuple[keras.Layer, Hook | None, tf.GradientTape]
        ] = []
        # Whether a hook is open that covers all layers inside.
        self._is_covered = False

    @contextlib.contextmanager
    def hooked(self) -> Iterator[None]:
        """Puts hooks on the layers while the context is open.

        Raises:
            UnsupportedLayerError: While the model is called. A layer is called
                in a loop, or on tensors whose first axis is not the batch.
        """
        with contextlib.ExitStack() as stack:
            for layer, hook in self._hooks:
                call = self._call_of(layer, hook)
                stack.enter_context(replaced_call(layer, call))
            yield

    def _call_of(
        self, layer: keras.Layer, hook: Hook | None
    ) -> Callable[..., Any]:
        """Returns the function that replaces the call of a layer."""
        original = current_call(layer)
        first = None if hook is None else _name_of_first(layer)

        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_covered:
                return original(*args, **kwargs)
            with (
                self._finding(layer, hook)
                if hook is None or hook.is_apart
                else self._within(is_covered=True)
            ):
                if hook is None:
                    return original(*args, **kwargs)
                args, kwargs = _first_by_place(first, args, kwargs)
                return self._noted(hook, original, args, kwargs)

        return call

    @contextlib.contextmanager
    def _within(self, *, is_covered: bool) -> Iterator[None]:
        """Stops the tape of the layer around, whose reads are looked for."""
        before, self._is_covered = self._is_covered, is_covered
        try:
            with contextlib.ExitStack() as stack:
                # The tapes of the layers around it are stopped already.
                for *_, tape in self._around[-1:]:
                    stack.enter_context(tape.stop_recording())
                yield
        finally:
            self._is_covered = before

    @contextlib.contextmanager
    def _finding(self, layer: keras.Layer, hook: Hook | None) -> Iterator[None]:
        """Finds whether a layer reads weights that its hook does not cover."""
        with self._within(is_covered=False), tf.GradientTape() as tape:
            self._around.append((layer, hook, tape))
            try:
                yield
            finally:
                self._around.pop()
        read = {self._weights.get(id(v)) for v in tape.watched_variables()}
        own = [] if hook is None else hook.variables
        if read - {None, *map(id, own)}:
            self._find(layer)

    def _find(self, layer: keras.Layer) -> None:
        if not any(layer is each for each in self.found):
            self.found.append(layer)

    def _noted(
        self,
        hook: Hook,
        original: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        training = training_of_call()
        tensors: list[tf.Tensor] = []

        def watch(some: list[tf.Tensor]) -> None:
            self._tape.watch(some)
            tensors.extend(some)

        opened = registry.OpenCall(hook.layer, original, args, kwargs, watch)
        if hook.observe is not None:
            outputs, kept = hook.observe(opened)
        else:
            outputs, kept = _called_with_draws(opened, self._batch)
        is_elsewhere = self._home is not None and any(
            each.graph is not self._home for each in tensors
        )
        try:
            if is_elsewhere:
                raise _called_elsewhere(hook.layer)
            _check_call(
                hook,
                args,
                kwargs,
                float_outputs(outputs),
                self._batch,
                self.rows,
            )
        except UnsupportedLayerError:
            for layer, outer, _ in self._around[-1:]:
                # In a loop, it must have weights of its own.
                if outer is not None or not is_elsewhere:
                    self._find(layer)
                    return outputs
            raise
        if hook.rule is None and training is not None:
            kwargs = {"training": training, **kwargs}
        args, kwargs = keras.tree.map_structure(_value_of, (args, kwargs))
        noted = registry.LayerCall(hook.layer, args, kwargs, [], kept)
        self.calls.append(HookedCall(hook, noted, tensors))
        return outputs


def _name_of_first(layer: keras.Layer) -> str | None:
    """Returns the name of the call's first positional argument, if any."""
    parameters = inspect.signature(layer.call).parameters
    for name, parameter in parameters.items():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            return name
    return None


def _first_by_place(
    name: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments, the one with the name as a positional one."""
    if args or name not in kwargs:
        return args, kwargs
    others = {key: value for key, value in kwargs.items() if key != name}
    return (kwargs[name],), others


def _value_of(leaf: Any) -> Any:
    return leaf.value if isinstance(leaf, keras.Variable) else leaf


def _called_with_draws(
    opened: registry.OpenCall, batch: int
) -> tuple[Any, RepeatedDraws]:
    draws = RepeatedDraws()
    with draws.noting():
        outputs = opened.outputs()
    # It is called again on each example, which must give one row.
    outputs = _apart(
        keras.tree.map_structure(lambda leaf: of_length(leaf, batch), outputs)
    )
    opened.watch(float_outputs(outputs))
    return outputs, draws


def of_length(leaf: Any, batch: int) -> Any:
    """Gives a tensor of unknown length the length of the batch.

    The length is checked when the step runs. A Keras mask is kept.
    """
    if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
        return leaf
    if leaf.shape[0] is not None:
        return leaf
    mask = mask_of(leaf)
    leaf = tf.ensure_shape(leaf, [batch, *leaf.shape[1:]])
    if mask is not None:
        set_mask(leaf, of_length(mask, batch))
    return leaf


def _apart(outputs: Any) -> Any:
    """Returns copies of the outputs, none of which is computed from another.

    The cotangent of each then comes from outside the layer alone.
    """
    if len(float_outputs(outputs)) < 2:
        return outputs
    return keras.tree.map_structure(
        lambda leaf: tf.identity(leaf) if tf.is_tensor(leaf) else leaf, outputs
    )


def _called_elsewhere(layer: keras.Layer) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"Layer {layer.path!r} is called inside a loop or a condition, "
        "where its output cannot be hooked. Unroll the loop, or give the "
        "layer that holds it a weight of its own so that it is treated as "
        "a whole."
    )


def _check_call(
    hook: Hook,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: list[tf.Tensor],
    batch: int,
    rows: RowLengths,
) -> None:
    arguments = keras.tree.flatten((args, kwargs))
    inputs = [leaf for leaf in arguments if tf.is_tensor(leaf)]
    if hook.rule is None:
        rows.trust(outputs)
    rule = (
        f"Layer {hook.layer.path!r} must be called on inputs, and return "
        "outputs, whose first axis is the batch. "
    )
    if not all(isinstance(each, tf.Tensor) for each in inputs):
        raise UnsupportedLayerError(
            f"Layer {hook.layer.path!r} must be called on dense tensors. "
            "Received: sparse or ragged ones. Make them dense before, such as "
            "by sparse=False, or keras.ops.convert_to_tensor(x, sparse=False)."
        )
    if any(each.shape.rank is None for each in [*inputs, *outputs]):
        raise UnsupportedLayerError(
            f"{rule}Received: a tensor of unknown shape. Give it its shape by "
            "keras.ops.reshape; or freeze the layer with "
            "layer.trainable = False."
        )
    if any(map(rows.follows_from_data, [*inputs, *outputs])):
        raise UnsupportedLayerError(
            f"{rule}Received: a first axis whose length follows from the data, "
            "as that of tf.boolean_mask does. An example with several rows "
            "would be clipped several times. Take the same number of rows of "
            "each example (keras.ops.take_along_axis, or a sum weighted by the "
            "mask); or call the layer inside of the layer that takes the rows, "
            "if that returns one row for each example; or freeze it with "
            "layer.trainable = False."
        )
    for tensor in [*inputs[:1], *outputs]:
        if tensor.shape.rank == 0 or tensor.shape[0] != batch:
            raise UnsupportedLayerError(
                f"{rule}Received: shape={tuple(tensor.shape)!r} for {batch} "
                "examples. Keep the first axis for the examples, and repeat "
                "what they share (such as position ids) along it; or freeze "
                "the layer with layer.trainable = False."
            )
