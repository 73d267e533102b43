"""What several views of a record cost, and what they give.

    python benchmarks/views.py cost [--workload w1 ...] [--views 8] [--turns 7]

compares a step on records with several views with a step on as many records as
there are views, by `fit`, in turn, in one process. Both read their records from
memory, and call the same layer on them. Times are those of the processor, which
depend less on what else runs.

    python benchmarks/views.py accuracy [--data fashion_mnist] [--views 1 4 8]

trains a small network on images of `$KERAS_DP_DATA` that are shifted and
mirrored at random, with each number of views at the same epsilon, and once
without changes. The settings are the same for all.
"""

import argparse
import os
import statistics
import time
from pathlib import Path

import keras
import numpy as np
from workloads import WORKLOADS, data

import keras_dp
from keras_dp.training import Augmentation

EPSILON, DELTA = 3.0, 1e-5


def step(workload, views, records):
    """Returns a function that runs rounds, and their seconds per round."""
    x, y = data(workload)
    rows = np.resize(np.arange(len(x)), records)
    private = keras_dp.PrivateModel(workload.make(), self_check_examples=0)
    private.compile(
        keras_dp.DPSGD(
            0.1,
            query=keras_dp.GaussianAverageQuery(
                1.0, noise_multiplier=1.0, denominator=records
            ),
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="benchmark"),
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        private_metrics={},
    )
    batches = keras_dp.PoissonBatches(
        (x[rows], y[rows]),
        sampling_probability=1.0,
        physical_batch_size=records,
        map=Augmentation(keras.layers.Rescaling(1.0, dtype=x.dtype)),
        views=views,
    )

    def run(rounds):
        start = time.process_time()
        private.fit(batches, steps_per_epoch=rounds, verbose=0)
        return (time.process_time() - start) / rounds

    return run


def cost(names, views, turns):
    """Prints one row per workload."""
    print(
        "| model | records x views | processor ms | as many records | ratio |"
    )
    print("| --- | --- | --- | --- | --- |")
    for name in names:
        workload = WORKLOADS[name]
        records = max(1, workload.batch // views)
        viewed = step(workload, views, records)
        single = step(workload, 1, records * views)
        for run in (viewed, single):
            run(3)
        rounds = workload.steps
        pairs = [(viewed(rounds), single(rounds)) for _ in range(turns)]
        ours, others = zip(*pairs, strict=True)
        ratios = [a / b for a, b in pairs]
        print(
            f"| {name} | {records} x {views} "
            f"| {1e3 * statistics.median(ours):.1f} "
            f"| {1e3 * statistics.median(others):.1f} "
            f"| {statistics.median(ratios):.3f} "
            f"({min(ours) / min(others):.3f} of the fastest turns) |",
            flush=True,
        )
        keras.backend.clear_session()


def images(name, records):
    """Returns training and test images in [-1, 1], with their labels."""
    found = np.load(Path(os.environ["KERAS_DP_DATA"]) / f"{name}.npz")
    parts = []
    for part in ("train", "test"):
        x = found[f"x_{part}"].astype("float32") / 127.5 - 1
        x = x[..., np.newaxis] if x.ndim == 3 else x
        parts.append((x, found[f"y_{part}"].astype("int32")))
    (x, y), test = parts
    return (x[:records], y[:records]), test


def network(shape):
    """Returns the network of Papernot et al. (2020), arXiv:2007.14191."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Conv2D(16, 8, strides=2, padding="same", activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2, activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10),
        ]
    )


def accuracy(options):
    """Prints one row per run."""
    train, test = images(options.data, options.records)
    mirror = keras.layers.RandomFlip("horizontal")
    shift = keras.layers.RandomTranslation(
        options.shift, options.shift, fill_mode="nearest"
    )
    augment = [] if options.data == "mnist" else [mirror]
    augment += [shift] if options.shift else []
    print("| views | seed | accuracy, % | seconds |\n| --- | --- | --- | --- |")
    for seed in range(options.seeds):
        for views in options.views:
            keras.utils.set_random_seed(seed)
            model = network(train[0].shape[1:])
            model.compile(
                keras.optimizers.SGD(
                    options.learning_rate,
                    momentum=0.9,
                    use_ema=True,
                    ema_momentum=0.98,
                ),
                loss=keras.losses.SparseCategoricalCrossentropy(
                    from_logits=True
                ),
                metrics=["accuracy"],
            )
            records = train
            if views:
                records = keras_dp.Records(train, augment=augment, views=views)
            private = keras_dp.make_private(
                model,
                records,
                ledger=keras_dp.PrivacyLedger.in_memory(dataset="benchmark"),
                target_epsilon=options.epsilon,
                delta=DELTA,
                epochs=options.epochs,
                batch_size=options.batch_size,
                verbose=False,
            )
            start = time.perf_counter()
            private.fit(verbose=0)
            seconds = time.perf_counter() - start
            share = private.evaluate(*test, verbose=0, return_dict=True)
            print(
                f"| {views or 'as stored'} | {seed} "
                f"| {100 * share['accuracy']:.2f} | {seconds:.0f} |",
                flush=True,
            )


def main() -> None:
    """Runs one of the two comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_subparsers(dest="what", required=True)
    costs = what.add_parser("cost")
    costs.add_argument("--workload", nargs="+", default=["w1", "w2", "w3"])
    costs.add_argument("--views", type=int, default=8)
    costs.add_argument("--turns", type=int, default=7)
    gains = what.add_parser("accuracy")
    gains.add_argument("--data", default="fashion_mnist")
    gains.add_argument("--records", type=int, default=60_000)
    gains.add_argument("--epsilon", type=float, default=EPSILON)
    gains.add_argument("--views", type=int, nargs="+", default=[0, 1, 4, 8])
    gains.add_argument("--batch-size", type=int, default=1024)
    gains.add_argument("--epochs", type=int, default=15)
    gains.add_argument("--learning-rate", type=float, default=0.5)
    gains.add_argument("--shift", type=float, default=0.1)
    gains.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    if options.what == "cost":
        cost(options.workload, options.views, options.turns)
    else:
        accuracy(options)


if __name__ == "__main__":
    main()
