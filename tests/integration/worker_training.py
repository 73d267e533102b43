"""One of two processes that train a model together.

Run as `python worker_training.py INDEX PORT FOLDER SCENARIO`, once per index;
it writes what it ends with as JSON.
"""

import json
import os
import sys
from pathlib import Path

FEATURES, RECORDS = 6, 256


def main(index: int, port: int, folder: Path, scenario: str) -> None:
    os.environ["TF_CONFIG"] = json.dumps(
        {
            "cluster": {
                "worker": [f"localhost:{port}", f"localhost:{port + 1}"]
            },
            "task": {"type": "worker", "index": index},
        }
    )
    # TensorFlow reads its cluster when it is imported.
    import keras
    import numpy as np
    import tensorflow as tf

    import keras_dp
    from keras_dp.errors import PrivateTrainingError
    from keras_dp.optimizers.dp_optimizer import DPOptimizer
    from keras_dp.training.devices.workers import open_ledger

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    keras.utils.set_random_seed(1 + index)  # The chief's weights are taken.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, FEATURES)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")
    noise = 0.0 if scenario == "exact" else 0.5

    def compiled(ledger):
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((FEATURES,)),
                    keras.layers.Dense(8, kernel_regularizer="l2"),
                    keras.layers.Dense(1, activation="sigmoid"),
                ]
            )
            private = keras_dp.PrivateModel(model)
            private.compile(
                DPOptimizer(
                    keras.optimizers.SGD(0.5),
                    query=keras_dp.GaussianAverageQuery(
                        1.0, noise, denominator=32
                    ),
                    ledger=ledger,
                ),
                loss="binary_crossentropy",
                metrics=["accuracy"],
            )
        return private

    ledger = open_ledger(strategy, folder / f"{index}.ledger", dataset="test")
    result = {"keeps_ledger": isinstance(ledger, keras_dp.PrivacyLedger)}
    # Parts so small that workers need different numbers of them.
    batches = keras_dp.sampling.PoissonBatches(
        (x, y),
        sampling_probability=1.0 if scenario == "exact" else 0.125,
        physical_batch_size=2 * (48 if scenario == "exact" else 6),
        rounds_per_epoch=8,
    )

    def refused(shard, private, **options):
        try:
            private.fit(shard, verbose=0, **options)
        except PrivateTrainingError as error:
            return str(error)
        return ""

    if scenario == "refused":
        private = compiled(ledger)
        swapped = batches.shard(1 - index, 2)
        result["whole_data"] = refused(batches, private)
        result["wrong_shard"] = refused(swapped, private)
        result["arrays"] = refused(x, private, y=y)
        result["rounds_differ"] = refused(
            batches.shard(index, 2), private, steps_per_epoch=4 + index
        )
        # Only one of them does what is wrong, and none may wait for it.
        own = keras_dp.PrivacyLedger.in_memory(dataset="test")
        result["two_ledgers"] = refused(
            batches.shard(index, 2), compiled(own if index else ledger)
        )
        result["one_has_all_data"] = refused(
            batches if index else batches.shard(index, 2), compiled(ledger)
        )
    else:
        private = compiled(ledger)
        initial = private.model.get_weights()
        history = private.fit(
            batches.shard(index, 2),
            epochs=2,
            validation_data=(x[:64], y[:64]),
            validation_batch_size=32,
            verbose=0,
        ).history
        state = private.optimizer._state.read()["gradients"]
        result |= {
            "history": history,
            "initial": [w.ravel().tolist() for w in initial],
            "weights": [
                w.ravel().tolist() for w in private.model.get_weights()
            ],
            "seed": state.seed.numpy().tolist(),
            "traces": private.trace_count,
            "evaluated": private.evaluate(x, y, batch_size=32, verbose=0),
        }
    if result["keeps_ledger"]:
        result["rounds"] = len(ledger)
    (folder / f"{index}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
