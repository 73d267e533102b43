"""Noised answers of TensorFlow Privacy, for attacks on their low bits.

    python tf_privacy_low_bits.py FILE TRIALS COORDINATES STEP

Writes an .npz file as `opacus_low_bits.py` does.
"""

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_privacy as tfp


def clipped_sum(records: Any) -> Any:
    """Returns the sum by a vectorized optimizer of records of norm 1 or less.

    It takes the mean of the clipped gradients.
    """
    optimizer = tfp.VectorizedDPKerasSGDOptimizer(
        1.01, 0.0, num_microbatches=len(records), learning_rate=1.0
    )
    weights = tf.Variable(tf.zeros(records.shape[1]))
    with tf.GradientTape() as tape:
        losses = tf.reduce_sum(weights * records, axis=1)
    ((gradient, _),) = optimizer._compute_gradients(
        losses, [weights], tape=tape
    )
    return gradient.numpy() * len(records)


def main() -> None:
    """Writes the answers."""
    file, trials, coordinates, step = sys.argv[1:]
    query = tfp.GaussianSumQuery(l2_norm_clip=1.0, stddev=1.0)
    state = query.initial_global_state()
    found = {}
    for name, value in (("without", 0.0), ("with_one", float(step))):
        total = tf.fill([int(coordinates)], value)
        found[name] = np.stack(
            [
                query.get_noised_result(total, state)[0].numpy()
                for _ in range(int(trials))
            ]
        )
    records = np.load(Path(file).with_name("records.npy"))
    others = records.copy()
    others[0] = 0
    sums = np.stack([clipped_sum(records), clipped_sum(others)])
    np.savez(file, sums=sums, **found)


if __name__ == "__main__":
    main()
