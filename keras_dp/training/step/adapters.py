"""Low-rank adapters that a file left at zero begin anew.

Keras saves a layer with low-rank adaptation as the kernel `K + s A B`, and sets
both `A` and `B` to zero when it loads it. Their gradients are then zero, and
stay so. A pair begins anew as `enable_lora` begins it: `A` is random and `B` is
zero, so that the function of the layer stays the same.
"""

import keras
import numpy as np
from absl import logging

from keras_dp.keras_internals import averages_of, layers_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer

_PAIRS = (
    ("lora_kernel_a", "lora_kernel_b"),
    ("lora_embeddings_a", "lora_embeddings_b"),
)


def renew_adapters(model: keras.Model, optimizer: DPOptimizer) -> None:
    """Begins each trained pair anew of which both matrices are zero.

    Averages of such a pair are those of the adapters before, which the kernel
    holds already. They begin anew, too.

    Args:
        model: The user's model, built.
        optimizer: Its private optimizer, built.
    """
    averages = {id(variable): each for variable, each in averages_of(optimizer)}
    renewed = []
    for layer in layers_of(model):
        for names in _PAIRS:
            one, two = (getattr(layer, name, None) for name in names)
            if one is None or two is None or not one.trainable:
                continue
            if any(np.any(keras.ops.convert_to_numpy(x)) for x in (one, two)):
                continue
            one.assign(keras.initializers.HeUniform()(one.shape, one.dtype))
            for each in (one, two):
                if id(each) in averages:
                    averages[id(each)].assign(each)
            renewed.append(layer.path)
    if renewed:
        logging.warning(
            "The adapters of %s begin anew: both of their matrices were zero, "
            "as after loading weights, which Keras merges into the kernel. "
            "Without it they would never change.",
            ", ".join(map(repr, renewed)),
        )
