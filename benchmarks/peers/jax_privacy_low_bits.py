"""Noised answers of JAX Privacy, for attacks on their low bits.

    python jax_privacy_low_bits.py FILE TRIALS COORDINATES STEP

Writes an .npz file as `opacus_low_bits.py` does. `values` are the values that
the noise can take, sorted: its generator maps a uniform variable of 23 bits.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import clipping, noise_addition


def values() -> Any:
    """Returns all values of `jax.random.normal` in float32."""
    least = np.nextafter(np.float32(-1), np.float32(0))
    unit = jnp.arange(2**23, dtype=jnp.uint32) | np.uint32(0x3F800000)
    floats = jax.lax.bitcast_convert_type(unit, jnp.float32) - np.float32(1)
    # As `jax.random.uniform` scales them from [0, 1) to [least, 1).
    uniform = floats * (np.float32(1) - least) + least
    uniform = jnp.maximum(least, uniform)
    drawn = np.float32(np.sqrt(2)) * jax.jit(jax.lax.erf_inv)(uniform)
    return np.unique(np.asarray(drawn))


def clipped_sum(records: Any) -> Any:
    """Returns the sum by JAX Privacy of records of norm 1 or less."""
    gradient = clipping.clipped_grad(
        lambda weights, record: jnp.sum(weights * record),
        l2_clip_norm=1.01,
        batch_argnums=1,
    )
    return np.asarray(gradient(jnp.zeros(records.shape[1]), records))


def main() -> None:
    """Writes the answers."""
    file, trials, coordinates, step = sys.argv[1:]
    privatizer = noise_addition.gaussian_privatizer(
        stddev=1.0, prng_key=jax.random.key(int.from_bytes(os.urandom(4)))
    )
    found = {}
    for name, value in (("without", 0.0), ("with_one", float(step))):
        total = jnp.full([int(coordinates)], value, jnp.float32)
        state = privatizer.init(total)
        answers = []
        for _ in range(int(trials)):
            answer, state = privatizer.update(total, state)
            answers.append(np.asarray(answer))
        found[name] = np.stack(answers)
    records = np.load(Path(file).with_name("records.npy"))
    others = records.copy()
    others[0] = 0
    sums = np.stack([clipped_sum(records), clipped_sum(others)])
    np.savez(file, sums=sums, values=values(), **found)


if __name__ == "__main__":
    main()
