"""One rule per layer kind: from a call to its gradients.

Importing the wing puts all rules into the table of `registry`.
"""

from keras_dp.gradients.rules import (  # noqa: F401
    batch_normalization,
    convolution,
    dense,
    depthwise_conv,
    einsum_dense,
    embedding,
    group_normalization,
    layer_normalization,
    lora,
    prelu,
    recurrent,
    reversible_embedding,
    rms_normalization,
    separable_conv,
    time_distributed,
)
