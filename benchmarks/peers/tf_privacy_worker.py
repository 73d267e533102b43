"""TensorFlow Privacy's steps, and those of its Keras without privacy.

Modes: `keras`, without privacy; `registry`, a `DPModel` with functions for
all layers that TensorFlow Privacy has any for; `vectorized`, a `DPModel`
without; both also with ` XLA`; and `optimizer`, the `DPKerasSGDOptimizer`.
All are run by `fit` on arrays, as its tutorials do.
"""

import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
import tensorflow_privacy
import workloads
from peers import protocol
from tensorflow_privacy.privacy.fast_gradient_clipping import layer_registry
from tensorflow_privacy.privacy.fast_gradient_clipping.registry_functions import (  # noqa: E501
    einsum_dense,
    layer_normalization,
    multi_head_attention,
)
from tensorflow_privacy.privacy.keras_models import dp_keras_model


def _registry() -> Any:
    """Returns the default functions, and those that it leaves out."""
    layers = tf.keras.layers
    registry = layer_registry.make_default_layer_registry()
    registry.insert(layers.EinsumDense, einsum_dense.einsum_layer_computation)
    registry.insert(
        layers.LayerNormalization,
        layer_normalization.layer_normalization_computation,
    )
    registry.insert(
        layers.MultiHeadAttention,
        multi_head_attention.multi_head_attention_layer_computation,
    )
    return registry


def _dp_model(model: Any, registry: Any, use_xla: bool) -> Any:
    made = dp_keras_model.DPModel(
        l2_norm_clip=protocol.L2_NORM_CLIP,
        noise_multiplier=protocol.NOISE_MULTIPLIER,
        use_xla=use_xla,
        layer_registry=registry,
        inputs=model.inputs,
        outputs=model.outputs,
    )
    if registry is not None and not made._enable_fast_peg_computation:
        kinds = {
            type(layer).__name__
            for layer in model.layers
            if layer.trainable_variables and not registry.is_elem(layer)
        }
        raise ValueError(f"no registry function for {', '.join(sorted(kinds))}")
    return made


def build(workload: workloads.Workload, mode: str) -> protocol.Step:
    """Returns the step of a mode."""
    x, y = workloads.data(workload)
    model = workload.make()
    parameters = model.count_params()
    optimizer = tf.keras.optimizers.SGD(protocol.LEARNING_RATE)
    reduction = "auto"
    name, _, compiler = mode.partition(" ")
    if name == "optimizer":
        optimizer = tensorflow_privacy.DPKerasSGDOptimizer(
            l2_norm_clip=protocol.L2_NORM_CLIP,
            noise_multiplier=protocol.NOISE_MULTIPLIER,
            learning_rate=protocol.LEARNING_RATE,
        )
        reduction = "none"
    elif name != "keras":
        registry = _registry() if name == "registry" else None
        model = _dp_model(model, registry, use_xla=compiler == "XLA")
    loss = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction
    )
    model.compile(optimizer, loss)

    def run(steps: int) -> float:
        batch = workload.batch
        some = min(steps * batch, len(x))
        epochs = -(-steps * batch // some)
        start = time.perf_counter()
        model.fit(
            x[:some], y[:some], batch_size=batch, epochs=epochs, verbose=0
        )
        return time.perf_counter() - start

    versions = (
        f"tensorflow-privacy {tensorflow_privacy.__version__}, "
        f"tensorflow {tf.__version__}"
    )
    return protocol.Step(parameters, run, versions)


if __name__ == "__main__":
    protocol.serve(build)
