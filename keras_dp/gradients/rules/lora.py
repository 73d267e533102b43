"""The rules of layers with low-rank adaptation, and of quantized layers.

A layer with low-rank adaptation multiplies by `K + s A B`, of which only `A`
and `B` are trained. Let `x` be its inputs and `g` the cotangent of its outputs.
The gradient of `A` is that of the same layer with the kernel `A`, for the
inputs `x` and the cotangent `s g B^T`. The gradient of `B` is that of a dense
layer with the kernel `B`, for the inputs `s x A` and the cotangent `g`. The
rules of these layers compute both. The gradient of `K` is never formed.

Source: Hu et al. (2021), arXiv:2106.09685v2, for the layers.
"""

import string
from typing import Any

import keras
import tensorflow as tf

from keras_dp.gradients import registry
from keras_dp.gradients.layer_calls import trained_variables
from keras_dp.gradients.records.records import in_float
from keras_dp.gradients.rules.dense import (
    bias_records,
    dense,
    equation_of,
    is_contraction,
)
from keras_dp.gradients.rules.embedding import embedding

# Other modes of quantization have kernels that this rule does not know.
_FROZEN_KERNELS = (None, "int8", "int4")


class _StandIn:
    """A stand-in for a layer, with other values of some attributes."""

    def __init__(self, layer: keras.Layer, **attributes: Any) -> None:
        self._layer = layer
        vars(self).update(attributes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def _adapted(layer: keras.Layer) -> bool:
    """Whether only A, B and the bias are trained."""
    return (
        layer.lora_enabled
        and getattr(layer, "quantization_mode", None) in _FROZEN_KERNELS
        and _trains_only(layer, *_pair(layer), getattr(layer, "bias", None))
    )


def _trains_only(layer: keras.Layer, *variables: keras.Variable | None) -> bool:
    """Whether no other variable is trained, in the layer and inside it."""
    allowed = {id(variable) for variable in variables}
    return all(id(each) in allowed for each in trained_variables(layer))


def _quantized(layer: keras.Layer) -> bool:
    """Whether a quantized layer without LoRA trains only its bias."""
    return (
        not layer.lora_enabled
        and layer.quantization_mode in ("int8", "int4")
        and _trains_only(layer, layer.bias)
    )


def _pair(layer: keras.Layer) -> tuple[keras.Variable, keras.Variable]:
    """Returns A and B."""
    if isinstance(layer, keras.layers.Embedding):
        return layer.lora_embeddings_a, layer.lora_embeddings_b
    return layer.lora_kernel_a, layer.lora_kernel_b


def _factors(layer: keras.Layer) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the values of A and B."""
    first, second = (tf.convert_to_tensor(v.value) for v in _pair(layer))
    return in_float(first), in_float(second)


def _scale(layer: keras.Layer) -> float:
    return layer.lora_alpha / layer.lora_rank


def _scaled_cotangent(
    layer: keras.Layer, cotangent: tf.Tensor, equation: str
) -> tf.Tensor:
    second = tf.cast(_factors(layer)[1], cotangent.dtype)
    return _scale(layer) * tf.einsum(equation, cotangent, second)


@registry.register(keras.layers.Embedding, _adapted)
def embedding_lora(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of A `[rows, rank]` and B `[rank, width]`."""
    layer, cotangent = call.layer, in_float(call.cotangents[0])
    first = _factors(layer)[0]
    to_first = embedding(
        call._replace(
            layer=_StandIn(layer, embeddings=layer.lora_embeddings_a),
            cotangents=[_scaled_cotangent(layer, cotangent, "...e,re->...r")],
        )
    )
    ids = tf.cast(call.inputs, tf.int32)
    ids = tf.where(ids < 0, ids + first.shape[0], ids)
    inside = _scale(layer) * tf.cast(tf.gather(first, ids), cotangent.dtype)
    stand_in = _StandIn(layer, kernel=layer.lora_embeddings_b, bias=None)
    to_second = registry.LayerCall(stand_in, (inside,), {}, [cotangent])
    return to_first + dense(to_second)


def _equations(layer: keras.Layer) -> tuple[str, str, str]:
    """Returns the equations of `x A`, of its product with B, and of `g B^T`."""
    inputs, kernel, outputs = equation_of(layer)
    rank = next(
        axis
        for axis in string.ascii_lowercase
        if axis not in inputs + kernel + outputs
    )
    last = kernel[-1]
    inside = outputs.replace(last, rank)
    return (
        f"{inputs},{kernel[:-1]}{rank}->{inside}",
        f"{inside},{rank}{last}->{outputs}",
        f"{outputs},{rank}{last}->{inside}",
    )


def _stand_ins(layer: keras.Layer) -> tuple[_StandIn, _StandIn]:
    first, second, _ = _equations(layer)
    plain = {"lora_enabled": False, "quantization_mode": None}
    return (
        _StandIn(
            layer,
            equation=first,
            kernel=layer.lora_kernel_a,
            bias=None,
            **plain,
        ),
        _StandIn(layer, equation=second, kernel=layer.lora_kernel_b, **plain),
    )


def _adapts_an_output(layer: keras.Layer) -> bool:
    """Whether B makes an axis of the output that the input does not have."""
    inputs, kernel, _ = equation_of(layer)
    return (
        _adapted(layer)
        and kernel[-1] not in inputs
        and all(is_contraction(each) for each in _stand_ins(layer))
    )


@registry.register(keras.layers.Dense, _adapts_an_output)
@registry.register(keras.layers.EinsumDense, _adapts_an_output)
def dense_lora(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of A, B `[rank, out]` and the bias."""
    layer, cotangent = call.layer, in_float(call.cotangents[0])
    inputs = tf.cast(call.inputs, cotangent.dtype)
    for_first, for_second = _stand_ins(layer)
    to_inside = _scaled_cotangent(layer, cotangent, _equations(layer)[2])
    to_first = dense(registry.LayerCall(for_first, (inputs,), {}, [to_inside]))
    first = tf.cast(_factors(layer)[0], inputs.dtype)
    inside = _scale(layer) * tf.einsum(for_first.equation, inputs, first)
    to_second = dense(
        registry.LayerCall(for_second, (inside,), {}, [cotangent])
    )
    return to_first + to_second


@registry.register(keras.layers.Dense, _quantized)
@registry.register(keras.layers.EinsumDense, _quantized)
def bias_of_quantized(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the bias of a quantized layer."""
    layer, (cotangent,) = call.layer, call.cotangents
    return [(layer.bias, bias_records(cotangent, layer.bias))]
