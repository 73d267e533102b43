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
from keras_dp.gradients import rules
from keras_dp.gradients.replaced_call import replaced_call
from keras_dp.gradients.vectorized import float_outputs


class Tap(NamedTuple):
    """A layer to stop at.

    Attributes:
        layer: The layer.
        rule: How its gradients follow; `None` for the vectorized fallback.
    """

    layer: keras.Layer
    rule: rules.Rule | None


class TappedCall(NamedTuple):
    """What one call of a tapped layer left behind."""

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
    taps: dict[int, Tap] = {}

    def visit(layer: keras.Layer) -> None:
        if id(layer) in taps or not layer.trainable_variables:
            return
        owns = any(v.trainable for v in layer._trainable_variables)
        if owns or isinstance(layer, (keras.layers.RNN, keras.layers.Wrapper)):
            taps[id(layer)] = Tap(layer, rules.rule_for(layer))
            return
        for sublayer in layer._layers:
            visit(sublayer)

    visit(model)
    found = list(taps.values())
    _check_coverage(model, found)
    return found


def _check_coverage(model: keras.Model, taps: list[Tap]) -> None:
    covered = {
        id(variable)
        for layer, rule in taps
        for variable in (
            layer.trainable_variables
            if rule is None
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
    with contextlib.ExitStack() as patches:
        for tap in taps:
            call = _tapped_call(tap, tape, batch, calls)
            patches.enter_context(replaced_call(tap.layer, call))
        yield calls


def _tapped_call(
    tap: Tap, tape: tf.GradientTape, batch: int, calls: list[TappedCall]
) -> Callable[..., Any]:
    layer, original = tap.layer, tap.layer.call
    home = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def call(*args: Any, **kwargs: Any) -> Any:
        activation = None
        if tap.rule is None:
            outputs = original(*args, **kwargs)
        else:
            activation = vars(layer).get("activation")
            with _attribute(layer, "activation", None):
                outputs = original(*args, **kwargs)
        floats = float_outputs(outputs)
        _check_call(layer, args, kwargs, floats, batch, home)
        for output in floats:
            tape.watch(output)
        calls.append(TappedCall(tap, args, kwargs, floats))
        return outputs if activation is None else activation(outputs)

    return call


def _check_call(
    layer: keras.Layer,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    outputs: list[tf.Tensor],
    batch: int,
    home: Any,
) -> None:
    if home is not None and any(output.graph is not home for output in outputs):
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} is called inside a loop or a condition, "
            "where its output cannot be tapped. Unroll the loop, or give the "
            "layer that holds it a weight of its own so that it is treated as "
            "a whole."
        )
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


@contextlib.contextmanager
def _attribute(layer: keras.Layer, name: str, value: Any) -> Iterator[None]:
    """Sets an instance attribute behind the back of Keras's tracking."""
    if name not in vars(layer):
        yield
        return
    before = vars(layer)[name]
    vars(layer)[name] = value
    try:
        yield
    finally:
        vars(layer)[name] = before
