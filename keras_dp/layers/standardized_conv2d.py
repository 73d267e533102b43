"""A convolution whose kernel is standardized."""

import math
from typing import Any

import keras
import tensorflow as tf

from keras_dp._override import override

# The squared length of a centered filter below which it is not made longer.
_LEAST_SQUARE = 1e-5


@keras.saving.register_keras_serializable(package="keras_dp")
class StandardizedConv2D(keras.layers.Conv2D):
    """A `Conv2D` that standardizes its kernel: mean 0 and length 1 per filter.

    The weights of each filter are centered and divided by their L2 norm before
    the convolution. With `GroupNormalization` after it, this trains deep
    networks as batch normalization does, which is not possible with privacy:
    in a `GroupNormalization`, as in this layer, no example sees another one.

    Its arguments, inputs, outputs and weights are those of
    `keras.layers.Conv2D`. Its gradients follow from a rule, at about the cost
    of those of `Conv2D`.

    Source: Qiao et al. (2019), arXiv:1903.10520v2, eq. 5. As De et al. (2022),
        arXiv:2204.13650v2, we divide by the length of a filter, which is the
        standard deviation times `sqrt(fan_in)`: outputs then have the variance
        of inputs, also where no normalization follows. The filters have no
        gain; that of the normalization after them does the same.

    >>> import numpy as np
    >>> layer = StandardizedConv2D(4, 3)
    >>> layer(np.ones([2, 8, 8, 3])).shape
    TensorShape([2, 6, 6, 4])
    >>> kernel, inverse_lengths = standardized(layer.kernel.value)
    >>> np.allclose(np.linalg.norm(np.reshape(kernel, [27, 4]), axis=0), 1,
    ...             atol=1e-3)
    True
    """

    @override
    def convolution_op(self, inputs: Any, kernel: Any) -> Any:
        kernel = keras.ops.convert_to_tensor(kernel)
        wide = tf.float64 if kernel.dtype == tf.float64 else tf.float32
        plain, _ = standardized(tf.cast(kernel, wide))
        return super().convolution_op(inputs, tf.cast(plain, inputs.dtype))


def standardized(kernel: Any) -> tuple[Any, Any]:
    """Returns the standardized kernel, and one over the length of each filter.

    The length of a filter `w` is `sqrt(|w - mean(w)|^2 + 1e-5)`. The kernel is
    `[*taps, channels, filters]`, in float32 or wider.
    """
    rows = tf.reshape(kernel, [math.prod(kernel.shape[:-1]), -1])
    centered = rows - tf.reduce_mean(rows, axis=0)
    squares = tf.reduce_sum(tf.square(centered), axis=0)
    inverse_lengths = tf.math.rsqrt(squares + _LEAST_SQUARE)
    plain = tf.reshape(centered * inverse_lengths, kernel.shape)
    return plain, inverse_lengths
