"""JAX Privacy's steps, and those of JAX without privacy.

Modes: `jax`, without privacy; `microbatch N`, its `clipped_grad` in
microbatches of so many examples, and `microbatch all`. The models are those of
`workloads.py`, made by Keras on JAX; a whole step is one compiled function of
the weights and the batch, which lies ready in memory. JAX Privacy's Keras API
computes its gradients by the same `clipped_grad`. With `JAX_PLATFORMS=cuda` on
a GPU, without TensorFloat-32.
"""

import os
import time
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import importlib.metadata

import jax
import jax.numpy as jnp
import optax
import workloads
from jax_privacy import clipping, noise_addition
from peers import protocol


def _update(model: Any, workload: workloads.Workload, mode: str) -> Any:
    """Returns the optimizer's state, and one compiled step."""
    untrained = [v.value for v in model.non_trainable_variables]

    def loss(weights: Any, x: Any, y: Any) -> Any:
        logits, _ = model.stateless_call(weights, untrained, x, training=True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

    optimizer = optax.sgd(protocol.LEARNING_RATE)
    if mode == "jax":
        gradients = jax.grad(loss)
    else:
        size = mode.removeprefix("microbatch ")
        gradients = clipping.clipped_grad(
            loss,
            l2_clip_norm=protocol.L2_NORM_CLIP,
            normalize_by=workload.batch,
            batch_argnums=(1, 2),
            microbatch_size=None if size == "all" else int(size),
        )
        stddev = protocol.NOISE_MULTIPLIER * protocol.L2_NORM_CLIP
        noise = noise_addition.gaussian_privatizer(
            stddev=stddev / workload.batch, prng_key=0
        )
        optimizer = optax.chain(noise, optimizer)

    def update(weights: Any, state: Any, x: Any, y: Any) -> Any:
        changes, state = optimizer.update(gradients(weights, x, y), state)
        return optax.apply_updates(weights, changes), state

    weights = [jnp.asarray(v.value) for v in model.trainable_variables]
    return (
        weights,
        optimizer.init(weights),
        jax.jit(update, donate_argnums=(0, 1)),
    )


def build(workload: workloads.Workload, mode: str) -> protocol.Step:
    """Returns the step of a mode."""
    jax.config.update("jax_default_matmul_precision", "highest")
    x, y = workloads.data(workload)
    batch = workload.batch
    batches = [
        (jnp.asarray(x[i : i + batch]), jnp.asarray(y[i : i + batch]))
        for i in range(0, len(x), batch)
    ]
    model = workload.make()
    parameters = model.count_params()
    weights, state, update = _update(model, workload, mode)

    def run(steps: int) -> float:
        nonlocal weights, state
        start = time.perf_counter()
        for step in range(steps):
            weights, state = update(
                weights, state, *batches[step % len(batches)]
            )
        jax.block_until_ready(weights)
        return time.perf_counter() - start

    version = importlib.metadata.version("jax-privacy")
    versions = f"jax-privacy {version}, jax {jax.__version__}"
    device = jax.devices()[0]
    held = None
    if device.platform == "gpu":

        def held() -> float:
            return device.memory_stats()["peak_bytes_in_use"]

    return protocol.Step(parameters, run, versions, held)


if __name__ == "__main__":
    protocol.serve(build)
