"""Batch normalization by statistics that were released privately.

In training, the layer normalizes by its moving statistics, so that examples do
not interact. These change only when new statistics are released. The part of
each example in the statistics of a batch is collected, and a query releases the
noised average of these parts.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_dp.errors import UnsupportedLayerError
from keras_dp.gradients import registry
from keras_dp.gradients.layer_calls import replaced_call
from keras_dp.gradients.records.records import (
    MaterializedRecords,
    in_float,
)
from keras_dp.gradients.unsupported.layers import (
    NORMALIZES_BY_BATCH,
    check_none_refused,
    is_trained_normalization,
)
from keras_dp.keras_internals import layers_of

# A round moves a variance v towards a value between (v + epsilon) / 4 and
# 4 (v + epsilon), so that noise can neither make it negative nor far too large.
_LARGEST_CHANGE = 4.0


class ExampleStatistics(NamedTuple):
    """The part of each example in the statistics of a layer.

    Let m and v be the moving mean and variance of the layer, and x the values
    of a channel over the positions of an example. Both attributes are 0 if x
    has the mean m and the variance v + epsilon.

    Attributes:
        mean: `mean((x - m) / sqrt(v + epsilon))`, `[batch, channels]`.
        variance: `mean((x - m)^2 / (v + epsilon)) - 1`, `[batch, channels]`.
    """

    mean: tf.Tensor
    variance: tf.Tensor


def trained_layers(model: keras.Model) -> list[keras.Layer]:
    """Returns the trained layers of batch normalization, each once."""
    found = filter(is_trained_normalization, layers_of(model))
    return list({id(layer): layer for layer in found}.values())


@contextlib.contextmanager
def normalizing(
    layers: list[keras.Layer],
    *,
    releases: bool,
    collects: bool = False,
    must_train: bool = False,
) -> Iterator[Callable[[], list[ExampleStatistics]]]:
    """Makes layers normalize by their moving statistics, and change nothing.

    Where no statistics are released, it raises at the end if layers would have
    normalized by the batch. The argument `training` of the call decides it. If
    `must_train`, it is refused while statistics are released that a layer is
    not called in training mode: Keras would not change them. It yields a
    function that returns the collected parts of the examples for each layer,
    and ends the collection. For a layer that is called several times, it
    returns the means over its calls.

    Raises:
        UnsupportedLayerError: While layers are called, by the function, or at
            the end. To be released, a layer must be called, in training mode,
            without a mask or a loop, and must not normalize over the batch.
    """
    seen: dict[int, list[ExampleStatistics]] = {}
    if releases and collects:
        seen |= {id(layer): [] for layer in layers}
    refused: list[tuple[keras.Layer, str]] = []
    home = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()

    def call_of(layer: keras.Layer) -> Callable[..., Any]:
        original = layer.call

        def call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
            if releases:
                _check_call(layer, training or not must_train, mask)
            elif training is not None and training is not False:
                refused.append((layer, NORMALIZES_BY_BATCH))
            if id(layer) in seen:
                if home is not None and inputs.graph is not home:
                    raise _in_a_loop(layer)
                seen[id(layer)].append(_statistics(layer, inputs))
            return original(inputs, training=False, mask=mask)

        return call

    def statistics() -> list[ExampleStatistics]:
        each = [_mean(x, seen[id(x)]) for x in layers if id(x) in seen]
        seen.clear()
        return each

    with contextlib.ExitStack() as patches:
        for layer in layers:
            patches.enter_context(replaced_call(layer, call_of(layer)))
        yield statistics
    check_none_refused(refused)


def _check_call(layer: keras.Layer, is_trained: bool, mask: Any) -> None:
    if not is_trained:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} is called with training=False, where "
            "its statistics must not change, and `batch_statistics` are "
            "released. Freeze it with layer.trainable = False."
        )
    if mask is not None:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} must be called without a mask to "
            "normalize by released statistics. Normalize before the "
            "layer that makes the mask, or use LayerNormalization."
        )


def _in_a_loop(layer: keras.Layer) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"Layer {layer.path!r} is called inside a loop or a "
        "condition, where its statistics cannot be kept. Call it "
        "on the whole sequence, without TimeDistributed."
    )


def _statistics(layer: keras.Layer, inputs: tf.Tensor) -> ExampleStatistics:
    normalized = _normalized(layer, inputs)
    positions = [
        axis for axis in range(1, inputs.shape.rank) if axis != _axis(layer)
    ]
    return ExampleStatistics(
        tf.reduce_mean(normalized, axis=positions),
        tf.reduce_mean(tf.square(normalized), axis=positions) - 1,
    )


def _normalized(layer: keras.Layer, inputs: tf.Tensor) -> tf.Tensor:
    """Returns the inputs, standardized by the moving statistics."""
    inputs = in_float(inputs)
    shape = [1] * inputs.shape.rank
    shape[_axis(layer)] = -1
    mean = tf.cast(layer.moving_mean.value, inputs.dtype)
    variance = tf.cast(layer.moving_variance.value, inputs.dtype)
    scale = tf.math.rsqrt(variance + layer.epsilon)
    return (inputs - tf.reshape(mean, shape)) * tf.reshape(scale, shape)


def _axis(layer: keras.Layer) -> int:
    rank = layer.input_spec.ndim
    axis = layer.axis if isinstance(layer.axis, int) else layer.axis[0]
    if axis % rank == 0:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} must not normalize over the batch axis. "
            f"Received: axis={layer.axis!r}. Set axis=-1, or another axis than "
            "the first."
        )
    return axis % rank


def _mean(
    layer: keras.Layer, calls: list[ExampleStatistics]
) -> ExampleStatistics:
    if not calls:
        raise UnsupportedLayerError(
            f"Layer {layer.path!r} is trained, but the model does not call it. "
            "Freeze it with layer.trainable = False."
        )
    count = len(calls)
    return ExampleStatistics(
        *(tf.add_n(list(each)) / count for each in zip(*calls, strict=True))
    )


def update_statistics(
    layers: list[keras.Layer], released: list[ExampleStatistics]
) -> None:
    """Moves the statistics of layers towards those that were released.

    The share of the new statistics is `1 - layer.momentum`.

    Args:
        layers: From `trained_layers`.
        released: For each layer, the noised average over examples of
            `ExampleStatistics`, shapes `[channels]`.
    """
    for layer, change in zip(layers, released, strict=True):
        mean = layer.moving_mean.value
        variance = layer.moving_variance.value
        by, growth = (tf.cast(each, mean.dtype) for each in change)
        wide = variance + layer.epsilon
        ratio = tf.clip_by_value(
            1 + growth - tf.square(by), 1 / _LARGEST_CHANGE, _LARGEST_CHANGE
        )
        step = 1 - layer.momentum
        layer.moving_mean.assign(mean + step * by * tf.sqrt(wide))
        layer.moving_variance.assign(
            tf.maximum(variance + step * (ratio * wide - variance), 0)
        )


@registry.register(keras.layers.BatchNormalization)
def batch_normalization(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of gamma and beta, by the moving statistics."""
    layer, (cotangent,) = call.layer, call.cotangents
    cotangent = in_float(cotangent)
    positions = [
        axis for axis in range(1, cotangent.shape.rank) if axis != _axis(layer)
    ]
    pairs: registry.Gradients = []
    if layer.gamma is not None:
        products = cotangent * _normalized(layer, call.inputs)
        gammas = tf.reduce_sum(products, axis=positions)
        pairs.append((layer.gamma, MaterializedRecords(gammas)))
    if layer.beta is not None:
        betas = tf.reduce_sum(cotangent, axis=positions)
        pairs.append((layer.beta, MaterializedRecords(betas)))
    return pairs
