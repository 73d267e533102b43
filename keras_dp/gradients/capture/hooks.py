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


class DirectUses:
    """Watches one pass of a model for uses of weights past the hooks.

    Attributes:
        found: The innermost layers with such a use, so far.
    """

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
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
        """Watches which weights but `own` are read while a layer is called."""
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

        The innermost layer around it then gets one hook for all weights inside,
        if it is among `layers`. By default, any layer may. Returns whether it
        does.
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


class Hook(NamedTuple):
    """A layer at which the backward pass ends.

    Attributes:
        rule: `None` stands for the vectorized fallback.
        observe: Calls the layer in place of its own call, if the rule has an
            observer.
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
        if self.is_apart or (self.rule is not None and self.observe is None):
            own = own_trainable_variables(self.layer)
            return [variable for variable in own if variable.trainable]
        return trained_variables(self.layer)


class HookedCall(NamedTuple):
    """The tensors that are kept of one call of a hooked layer.

    Attributes:
        kwargs: For the fallback, they have `training` if it is known, because
            the layers inside inherit it.
        outputs: The tensors at which the backward pass ends.
        kept: Other values that the layer's observer kept for its rule. For the
            fallback, the random numbers that the layer drew.
    """

    hook: Hook
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[tf.Tensor]
    kept: Any


def find_hooks(
    model: keras.Model, whole: Collection[keras.Layer] = ()
) -> list[Hook]:
    """Returns a hook for each layer of a built model that owns trained weights.

    If a layer owns weights *and* holds layers with weights, its hook covers its
    own weights only. A recurrent layer or a wrapper, which can call its
    sublayers in a loop, has one hook for all weights inside. So has a layer
    whose rule has an observer, and a layer in `whole`.
    """
    hooks: dict[int, Hook] = {}
    one_hook = {id(layer) for layer in whole}

    def visit(layer: keras.Layer) -> None:
        if id(layer) in hooks or not trained_variables(layer):
            return
        entry = registry.entry_for(layer)
        observe = None if entry is None else entry.observe
        owns = any(v.trainable for v in own_trainable_variables(layer))
        loops = isinstance(layer, (keras.layers.RNN, keras.layers.Wrapper))
        loops = loops or id(layer) in one_hook
        if owns or loops or observe is not None:
            rule = None if entry is None else entry.rule
            is_apart = rule is None and not loops and _holds_trained(layer)
            hooks[id(layer)] = Hook(layer, rule, observe, is_apart)
            if not is_apart:
                return
        for sublayer in sublayers_of(layer):
            visit(sublayer)

    visit(model)
    found = list(hooks.values())
    _check_coverage(model, found)
    return found


def _holds_trained(layer: keras.Layer) -> bool:
    return any(trained_variables(inside) for inside in sublayers_of(layer))


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


@contextlib.contextmanager
def hooked(
    hooks: list[Hook],
    tape: tf.GradientTape,
    batch: int,
    rows: RowLengths,
    uses: DirectUses | None = None,
) -> Iterator[list[HookedCall]]:
    """Puts hooks on the layers while the context is open.

    It yields the list of calls, which is filled in order while the model is
    called. The tape is made to watch the tensors at which the backward pass
    ends. By default, nothing is watched for uses of weights past the hooks.

    Raises:
        UnsupportedLayerError: While the model is called. A layer is called in a
            loop, or on tensors whose first axis is not the batch.
    """
    calls: list[HookedCall] = []
    whole: list[Hook] = []
    apart = [hook.layer for hook in hooks if hook.is_apart]
    uses = uses or DirectUses([])
    with contextlib.ExitStack() as patches:
        for hook in hooks:
            call = _hooked_call(
                hook, tape, batch, rows, calls, whole, uses, apart
            )
            patches.enter_context(replaced_call(hook.layer, call))
        yield calls


def _hooked_call(
    hook: Hook,
    tape: tf.GradientTape,
    batch: int,
    rows: RowLengths,
    calls: list[HookedCall],
    whole: list[Hook],
    uses: DirectUses,
    apart: list[keras.Layer],
) -> Callable[..., Any]:
    """Returns the function that replaces the call of a hooked layer.

    `whole` holds the hook whose layer is being called now, if it covers all
    layers inside. These then add no calls. The layers `apart` have weights of
    their own and hooks inside. They can get one hook for all, if they call a
    layer in a loop.
    """
    layer, original = hook.layer, current_call(hook.layer)
    first = _name_of_first(layer)
    home = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def call(*args: Any, **kwargs: Any) -> Any:
        if whole:
            return original(*args, **kwargs)
        if hook.is_apart:
            with uses.of(layer, hook.variables):
                return noted(*args, **kwargs)
        with uses.through_hook():
            if hook.rule is not None and hook.observe is None:
                return noted(*args, **kwargs)
            whole.append(hook)
            try:
                return noted(*args, **kwargs)
            finally:
                whole.pop()

    def noted(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = _first_by_place(first, args, kwargs)
        training = training_of_call()
        observed = _observed(hook, original, args, kwargs, tape.watch, batch)
        outputs, watched, kept = observed
        try:
            _check_graph(layer, watched, home)
        except UnsupportedLayerError:
            if not uses.cannot_hook_inside(apart):
                raise
            return outputs
        try:
            _check_call(hook, args, kwargs, float_outputs(outputs), batch, rows)
        except UnsupportedLayerError:
            if not uses.cannot_hook_inside():
                raise
            return outputs
        if hook.rule is None and training is not None:
            kwargs = {"training": training, **kwargs}
        args, kwargs = keras.tree.map_structure(_value_of, (args, kwargs))
        calls.append(HookedCall(hook, args, kwargs, watched, kept))
        return outputs

    return call


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


def _observed(
    hook: Hook,
    original: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    watch: registry.Watch,
    batch: int,
) -> registry.Observed:
    if hook.observe is not None:
        return hook.observe(hook.layer, args, kwargs, watch)
    if hook.rule is not None:
        return registry.called_without_activation(
            hook.layer, original, args, kwargs, watch
        )
    draws = RepeatedDraws()
    with draws.noting():
        outputs = original(*args, **kwargs)
    # It is called again on each example, which must give one row.
    outputs = _apart(
        keras.tree.map_structure(lambda leaf: of_length(leaf, batch), outputs)
    )
    watched = float_outputs(outputs)
    watch(watched)
    return registry.Observed(outputs, watched, draws)


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


def _check_graph(
    layer: keras.Layer, watched: list[tf.Tensor], home: Any
) -> None:
    if home is not None and any(tensor.graph is not home for tensor in watched):
        raise UnsupportedLayerError(
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
