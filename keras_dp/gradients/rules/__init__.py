"""One rule per kind of layer: it returns the gradients for a call.

Importing this package registers all rules in the table of `registry`.
"""

from keras_dp.gradients.rules import (  # noqa: F401
    batch_normalization,
    convolution,
    dense,
    embedding,
    lora,
    recurrent,
    time_distributed,
)
