"""What scales that adapt cost, and what they give.

    python benchmarks/adaptive_scales.py [--workload w1 ...] [--rounds 9]

compares a step with `AdaptiveScaleQuery` with one without, by `fit` on batches
of one size, in turn, in one process. The median of the ratios counts.

    KERAS_DP_DATA=... python benchmarks/adaptive_scales.py --train [--seeds 5]

trains a network on the IMDb subset at one epsilon: `DPAdam`, and the same with
scales that adapt. Words are hashed, so that no vocabulary is learned from the
reviews. Learning rates and clips were chosen on 15 % of the training data, five
settings of each technique; the accuracy is that on the test data.
"""

import argparse
import csv
import gzip
import os
import re
import statistics
import zlib
from pathlib import Path

import numpy as np
from peers.keras_dp_worker import private_step
from workloads import WORKLOADS

EPSILON, DELTA, BATCH, EPOCHS, CLIP = 8.0, 1e-5, 512, 10, 0.3
BINS, LENGTH, WIDTH = 5000, 200, 16
# The learning rate, and whether scales adapt.
TECHNIQUES = {
    "DPAdam": (0.03, False),
    "with scales that adapt": (0.1, True),
}


def steps(names: list[str], turns: int) -> None:
    """Prints one row per workload."""
    import keras

    print("| model | plain ms | scaled ms | ratio, median (range) |")
    print("| --- | --- | --- | --- |")
    for name in names:
        workload = WORKLOADS[name]
        plain, scaled = (
            private_step(workload, [], draws=False, checks=False, scales=scales)
            for scales in (False, True)
        )
        pair = (plain, scaled)
        for step in pair:
            step.run(workload.steps)
        turns_of = [
            [1e3 * step.run(workload.steps) / workload.steps for step in pair]
            for _ in range(turns)
        ]
        ratios = [after / before for before, after in turns_of]
        before, after = map(statistics.median, zip(*turns_of, strict=True))
        print(
            f"| {name} | {before:.1f} | {after:.1f} "
            f"| {statistics.median(ratios):.2f} "
            f"({min(ratios):.2f}-{max(ratios):.2f}) |",
            flush=True,
        )
        keras.backend.clear_session()


def reviews(split: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns hashed words `[n, LENGTH]`, 0 behind the end, and the labels."""
    path = Path(os.environ["KERAS_DP_DATA"]) / "imdb_subset.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    ids = np.zeros([len(rows), LENGTH], np.int32)
    for place, row in enumerate(rows):
        text = row["text"].lower().replace("<br />", " ")
        words = re.findall(r"[a-z']+", text)[:LENGTH]
        ids[place, : len(words)] = [
            1 + zlib.crc32(word.encode()) % (BINS - 1) for word in words
        ]
    return ids, np.array([[float(row["label"])] for row in rows], np.float32)


def train(technique: str, seed: int) -> float:
    """Returns the accuracy of one training on the test data."""
    import keras

    import keras_dp

    (x, y), (x_test, y_test) = reviews("train"), reviews("test")
    rate, scales = TECHNIQUES[technique]
    probability = BATCH / len(x)
    noise = keras_dp.planning.calibrate_noise(
        target_epsilon=EPSILON,
        delta=DELTA,
        sampling_probability=probability,
        rounds=int(EPOCHS / probability),
    )
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(BINS, WIDTH),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    query = keras_dp.GaussianAverageQuery(
        CLIP, noise_multiplier=noise, denominator=BATCH
    )
    if scales:
        query = keras_dp.dp_queries.AdaptiveScaleQuery(
            query, model.trainable_variables
        )
    private = keras_dp.PrivateModel(model)
    private.compile(
        keras_dp.DPAdam(
            rate,
            query=query,
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="imdb"),
        ),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    samples = keras_dp.PoissonBatches((x, y), sampling_probability=probability)
    private.fit(samples, epochs=EPOCHS, verbose=0)
    found = model.predict(x_test, verbose=0, batch_size=500) > 0
    keras.backend.clear_session()
    return 100 * float(np.mean(found == y_test))


def trainings(seeds: int) -> None:
    """Prints one row per technique."""
    print("| technique | accuracy | deviation | trainings |")
    print("| --- | --- | --- | --- |")
    for technique in TECHNIQUES:
        each = [train(technique, seed) for seed in range(seeds)]
        print(
            f"| {technique} | {statistics.mean(each):.1f} % "
            f"| {statistics.stdev(each):.1f} | {seeds} |",
            flush=True,
        )


def main() -> None:
    """Prints the table that the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--workload", choices=WORKLOADS, nargs="+")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if options.train:
        trainings(options.seeds)
    else:
        steps(options.workload or list(WORKLOADS), options.rounds)


if __name__ == "__main__":
    main()
