"""The rule of `StandardizedConv2D`."""

from keras_dp.gradients import registry
from keras_dp.gradients.records.records import in_float
from keras_dp.gradients.records.standardized_records import StandardizedRecords
from keras_dp.gradients.rules.convolution import kernel_records
from keras_dp.gradients.rules.convolution_layers import (
    has_known_options,
    inputs_and_cotangent,
    with_bias,
)
from keras_dp.layers.standardized_conv2d import (
    StandardizedConv2D,
    standardized,
)


@registry.register(
    StandardizedConv2D,
    lambda layer: has_known_options(layer) and layer.groups == 1,
)
def standardized_conv(call: registry.LayerCall) -> registry.Gradients:
    """Returns the gradients of the kernel and the bias."""
    layer = call.layer
    images, cotangent = inputs_and_cotangent(call)
    plain, inverse_lengths = standardized(in_float(layer.kernel.value))
    records = kernel_records(
        layer, images, cotangent * inverse_lengths, groups=1, centers=True
    )
    found = StandardizedRecords(records, plain)
    return with_bias(call, [(layer.kernel, found)])
