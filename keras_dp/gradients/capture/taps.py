"""Which layers the backward pass stops at, and how it is made to.

A *tap* is put on every layer that owns trainable weights. While the model is
called, the tapped layer's `call` is replaced on the instance by one that
also notes its arguments and its output; the class, the configuration and what
is saved of the model are untouched.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients.capture.replaced_call import (
    activation_of,
    current_call,
    replaced_call,
    without_activation,
)
from keras_dp.gradients.capture.vectorized import float_outputs
from keras_dp.gradients.rules import registry


class Tap(NamedTuple):
    """A layer to stop at.

    Attributes:
        layer: The layer.
        rule: How its gradients follow; `None` for the vectorized fallback.
        observe: How it is called, if not as it is.
    """

    layer: keras.Layer
    rule: registry.Rule | None
    observe: registry.Observer | None = None


class TappedCall(NamedTuple):
    """What one call of a tapped layer left behind.

    Attributes:
        tap: The tap, whose rule knows what the observer of this call kept.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        outputs: The tensors that the backward pass stops at.
    """

    tap: Tap
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[tf.Tensor]


def find_taps(model: keras.Model) -> list[Tap]:
    """Returns a tap for each layer of a built model that owns weights.

    A layer that owns weights *and* holds layers with weights is one tap, for
    what it does between them is unknown; so is one that calls its sublayers
    in a loop (recurrent layers and wrappers).
    """
    _check_calls(model)
    taps: dict[int, Tap] = {}

    def visit(layer: keras.Layer) -> None:
        if id(layer) in taps or not layer.trainable_variables:
            return
        entry = registry.entry_for(layer)
        observe = None if entry is None else entry.observe
        owns = any(v.trainable for v in layer._trainable_variables)
        loops = isinstance(layer, (keras.layers.RNN, keras.layers.Wrapper))
        if owns or loops or observe is not None:
            rule = None if entry is None else entry.rule
            taps[id(layer)] = Tap(layer, rule, observe)
            return
        for sublayer in layer._layers:
            visit(sublayer)

    visit(model)
    found = list(taps.values())
    _check_coverage(model, found)
    return found


def _check_calls(model: keras.Model) -> None:
    """Raises for calls that no tap can be put on, or that mix examples."""
    mixing = (keras.layers.MixUp, keras.layers.CutMix)
    for layer in model._flatten_layers():
        if isinstance(layer, mixing):
            # At random, so that the self-check can miss it.
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} of class {type(layer).__name__} mixes "
                "the examples of a batch, so that the gradient of one depends "
                "on others. Remove it; other augmentation is unaffected."
            )
        if getattr(layer, "_remat_mode", None) is not None:
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} was made in a keras.RematScope: it is "
                "called again in the backward pass, where its output cannot "
                "be tapped. Make it outside of the scope."
            )


def _check_coverage(model: keras.Model, taps: list[Tap]) -> None:
    covered = {
        id(variable)
        for layer, rule, observe in taps
        for variable in (
            layer.trainable_variables
            if rule is None or observe is not None
            else layer._trainable_variables
        )
    }
    missing = [v for v in model.trainable_variables if id(v) not in covered]
    if missing:
        raise UnsupportedLayerError(
            "Every trainable variable must be owned by a layer of the model. "
            f"Received: {[v.path for v in missing]!r} outside any layer. Keep "
            "them in a layer of their own, or set trainable=False."
        )


@contextlib.contextmanager
def tapped(
    taps: list[Tap], tape: tf.GradientTape, batch: int
) -> Iterator[list[TappedCall]]:
    """Taps the layers while the context is open.

    Args:
        taps: From `find_taps`.
        tape: Made to watch the outputs of the tapped layers.
        batch: Number of examples, for the check of shapes.

    Yields:
        The calls, in order, filled while the model is called.
    """
    calls: list[TappedCall] = []
    whole: list[Tap] = []
    with contextlib.ExitStack() as patches:
        for tap in taps:
            call = _tapped_call(tap, tape, batch, calls, whole)
            patches.enter_context(replaced_call(tap.layer, call))
        yield calls


def _tapped_call(
    tap: Tap,
    tape: tf.GradientTape,
    batch: int,
    calls: list[TappedCall],
    whole: list[Tap],
) -> Callable[..., Any]:
    """Returns what replaces the call of a tapped layer.

    Args:
        tap: Of the layer.
        tape: As in `tapped`.
        batch: As in `tapped`.
        calls: Where the call is noted.
        whole: Taps that answer for all layers inside, while they are called.
    """
    layer, original = tap.layer, current_call(tap.layer)
    home = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def call(*args: Any, **kwargs: Any) -> Any:
        if whole:
            return original(*args, **kwargs)
        if tap.rule is not None and tap.observe is None:
            return noted(*args, **kwargs)
        whole.append(tap)
        try:
            return noted(*args, **kwargs)
        finally:
            whole.pop()

    def noted(*args: Any, **kwargs: Any) -> Any:
        activation = None
        if tap.observe is not None:
            outputs, watched, kept = tap.observe(
                layer, args, kwargs, tape.watch
            )
            rule = _with_kept(tap.rule, kept)
        else:
            with contextlib.ExitStack() as stack:
                if tap.rule is not None:
                    activation = activation_of(layer)
                    stack.enter_context(without_activation(layer))
                outputs = _apart(original(*args, **kwargs))
            watched, rule = float_outputs(outputs), tap.rule
            tape.watch(watched)
        _check_call(layer, args, kwargs, float_outputs(outputs), batch)
        _check_graph(layer, watched, home)
        calls.append(TappedCall(tap._replace(rule=rule), args, kwargs, watched))
        return outputs if activation is None else activation(outputs)

    return call


def _apart(outputs: Any) -> Any:
    """Returns the outputs such that none is computed from another.

    The cotangent of each is then what comes from outside of the layer.
    """
    if len(float_outputs(outputs)) < 2:
        return outputs
    return keras.tree.map_structure(
        lambda leaf: tf.identity(leaf) if tf.is_tensor(leaf) else leaf, outputs
    )


def _with_kept(rule: registry.Rule | None, kept: Any) -> registry.Rule | None:
    if rule is None:
        return None
    return lambda call: rule(call._replace(kept=kept))


def _check_graph(
    layer: keras.Layer, watched: list[tf.Tensor], home: Any
) -> None:
    if home is not None and any(tensor.graph is not home for tensor in watched):
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} is called inside a loop or a condition, "
            "where its output cannot be tapped. Unroll the loop, or give the "
            "layer that holds it a weight of its own so that it is treated as "
            "a whole."
        )


def _check_call(
    layer: keras.Layer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: list[tf.Tensor],
    batch: int,
) -> None:
    arguments = keras.tree.flatten((args, kwargs))
    inputs = [leaf for leaf in arguments if tf.is_tensor(leaf)]
    for tensor in [*inputs[:1], *outputs]:
        if tensor.shape.rank == 0 or tensor.shape[0] != batch:
            raise UnsupportedLayerError(
                f"Layer {layer.path!r} must be called on inputs, and return "
                f"outputs, whose first axis is the batch of {batch} examples. "
                f"Received: shape={tuple(tensor.shape)!r}. Repeat what all "
                "examples share (such as position ids) along the batch before "
                "calling the layer."
            )
