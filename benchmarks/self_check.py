"""What the self-check before training costs, in seconds, per batch size.

python benchmarks/self_check.py
"""

import time

import keras
import numpy as np
import tensorflow as tf
from steps import WORKLOADS

from keras_dp.gradients import GradientEngine, self_check

EXAMPLES = 2


def main() -> None:
    """Prints one row per model of `steps.py`."""
    print("| model | parameters | seconds |")
    print("| --- | --- | --- |")
    for name, workload in WORKLOADS.items():
        model = workload.make()
        engine = GradientEngine(model)
        batch = workload.batch
        shape = (batch, *workload.shape)
        generator = np.random.default_rng(0)
        if workload.vocabulary:
            x = generator.integers(0, workload.vocabulary, shape)
        else:
            x = generator.normal(size=shape).astype("float32")
        y = generator.integers(0, workload.classes, batch)

        def losses_of(outputs: tf.Tensor, y: np.ndarray = y) -> tf.Tensor:
            return keras.losses.sparse_categorical_crossentropy(
                y, outputs, from_logits=True
            )

        start = time.perf_counter()
        self_check(engine, tf.constant(x), losses_of, batch, examples=EXAMPLES)
        seconds = time.perf_counter() - start
        print(f"| {name} | {model.count_params():,} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
