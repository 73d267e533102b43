"""Whether the input keeps up: draws, batches, and steps of `fit`.

1. How long a Poisson sample of 60,000 of 10^7 records takes to draw, and to
   be put into random rows.
2. How many physical batches a second come out of each kind of data, beside
   `tf.data` on shuffled arrays, with nothing else to do.
3. How many steps a second the same private model makes, fed by the sampler
   from each kind of data; by `tf.data` with batches of the physical size, and
   of the expected one; and by one batch that is there already, again and
   again: no input could be faster than that one.

All rows of a table are measured in turn, several times, in one process. The
median over the turns of each ratio is what counts. Where others use the
machine, the time of all cores that the process used (CPU) says more than that
of the clock.

    python benchmarks/input.py [--turns 7] [--steps 40] [--model mnist_cnn]
"""

import argparse
import functools
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.sampling import PoissonBatches, random_words
from keras_dp.sampling.bernoulli_draw import BernoulliDraw
from keras_dp.sampling.random_words import random_places
from keras_dp.sampling.record_files import TFRecordShards
from keras_dp.training.data.data_adapter import DataAdapter

RECORDS, BATCH = 60_000, 256
SHAPE = (28, 28, 1)
SHARDS = 10
WARM_UP = 5


def with_one_ready(batches: Any) -> Any:
    """Makes a sampler draw one batch, and have it ready ever after."""
    sample = next(batches.draws())
    batch = next(batches.batches_of(sample))._replace(ends_sample=True)
    batches.draws = lambda randomness=None: itertools.repeat(sample)
    batches.batches_of = lambda sample: [batch]
    return batches


def _mnist_cnn() -> keras.Model:
    """The CNN of TensorFlow Privacy's tutorial."""
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Conv2D(16, 8, 2, padding="same", activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Conv2D(32, 4, 2, activation="relu"),
            layers.MaxPooling2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation="relu"),
            layers.Dense(10),
        ]
    )


def _tiny() -> keras.Model:
    """Eight weights of an image: next to nothing but input."""
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Cropping2D((13, 12), data_format="channels_last"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


MODELS = {"mnist_cnn": _mnist_cnn, "tiny": _tiny}


def _sources(folder: Path) -> dict[str, Any]:
    """Writes the same records in every form."""
    generator = np.random.default_rng(0)
    x = generator.random((RECORDS, *SHAPE), np.float32)
    y = generator.integers(0, 10, RECORDS)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    records = []
    parts = zip(np.split(x, SHARDS), np.split(y, SHARDS), strict=True)
    for i, (part_x, part_y) in enumerate(parts):
        records.append(str(folder / f"{i}.tfrecord"))
        with tf.io.TFRecordWriter(records[-1]) as writer:
            for image, label in zip(part_x, part_y, strict=True):
                writer.write(image.tobytes() + label.tobytes())

    def parse(serialized: list[bytes]) -> tuple[Any, Any]:
        rows = np.frombuffer(b"".join(serialized), np.uint8)
        rows = rows.reshape(len(serialized), -1)
        images = rows[:, :-8].copy().view(np.float32)
        labels = rows[:, -8:].copy().view(np.int64)
        return images.reshape(-1, *SHAPE), labels.reshape(-1)

    return {
        "arrays": (x, y),
        "memory maps": tuple(
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in "xy"
        ),
        "TFRecordShards": TFRecordShards(records, parse=parse),
    }


def _tf_data(data: Any, batch: int) -> tf.data.Dataset:
    dataset = tf.data.Dataset.from_tensor_slices(data)
    dataset = dataset.shuffle(RECORDS).repeat()
    return dataset.batch(batch, drop_remainder=True).prefetch(2)


def _tf_data_of_files(paths: tuple[str, ...], batch: int) -> tf.data.Dataset:
    def parse(serialized: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = tf.io.decode_raw(serialized, tf.uint8)
        images = tf.bitcast(
            tf.reshape(rows[:, :-8], [-1, *SHAPE, 4]), "float32"
        )
        return images, tf.bitcast(rows[:, -8:], tf.int64)

    dataset = tf.data.TFRecordDataset(list(paths)).shuffle(10_000).repeat()
    return dataset.batch(batch, drop_remainder=True).map(parse).prefetch(2)


def _sampler(kind: type[PoissonBatches], data: Any) -> PoissonBatches:
    return kind(data, sampling_probability=BATCH / RECORDS)


class Seconds(NamedTuple):
    """How long something took, by the clock and on all cores together."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Self:
        """Returns the time."""
        return cls(time.perf_counter(), time.process_time())

    def until(self, end: Self, count: int) -> Self:
        """Returns what one of `count` took between two times."""
        return type(self)(
            (end.wall - self.wall) / count, (end.cpu - self.cpu) / count
        )


class _Clock(keras.callbacks.Callback):
    """Notes when steps end; the first ones fill buffers and do not count."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[Seconds] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self.ends.append(Seconds.now())

    @property
    def seconds(self) -> Seconds:
        """Of a step."""
        start, end = self.ends[WARM_UP], self.ends[-1]
        return start.until(end, len(self.ends) - 1 - WARM_UP)


def _seconds(run: Callable[[], Any], count: int = 1) -> Seconds:
    start = Seconds.now()
    for _ in range(count):
        run()
    return start.until(Seconds.now(), count)


def _in_turn(
    rows: dict[str, Callable[[], Seconds]], turns: int
) -> dict[str, list[Seconds]]:
    """Returns what each row says in each turn, but in the first."""
    times: dict[str, list[Seconds]] = {name: [] for name in rows}
    for _ in range(turns + 1):
        for name, run in rows.items():
            times[name].append(run())
    return {name: own[1:] for name, own in times.items()}


def _report(times: dict[str, list[Seconds]], base: str, title: str) -> None:
    print(f"\nRates are relative to `{base}`: median (range).\n")
    print(f"| {title} | ms | CPU ms | rate | rate by CPU |")
    print("| --- | --- | --- | --- | --- |")
    for name, own in times.items():
        cells = [name]
        for part in ("wall", "cpu"):
            values = [getattr(each, part) for each in own]
            cells.append(f"{1e3 * statistics.median(values):.2f}")
        for part in ("wall", "cpu"):
            rates = [
                getattr(other, part) / getattr(each, part)
                for each, other in zip(own, times[base], strict=True)
            ]
            cells.append(
                f"{statistics.median(rates):.2f} "
                f"({min(rates):.2f}-{max(rates):.2f})"
            )
        print(f"| {' | '.join(cells)} |", flush=True)


def measure_draws(turns: int) -> None:
    """Prints how long a draw takes."""
    draw = BernoulliDraw(10**7, 60_000 / 10**7)
    words = random_words.from_operating_system
    times = _in_turn(
        {
            "60,000 of 10^7": lambda: _seconds(lambda: draw.indices(words)),
            "its random words alone": lambda: _seconds(lambda: words(131_000)),
            "random rows for it": lambda: _seconds(
                lambda: random_places(60_000, 60_480, words)
            ),
        },
        10 * turns,
    )
    _report(times, "60,000 of 10^7", "draw")


def measure_batches(sources: dict[str, Any], turns: int, steps: int) -> None:
    """Prints how fast batches come if nobody else works."""
    rows = {}
    inputs = {
        name: DataAdapter(_sampler(PoissonBatches, data)).batches
        for name, data in sources.items()
    }
    physical = _sampler(PoissonBatches, sources["arrays"]).physical_batch_size
    inputs["tf.data"] = _tf_data(sources["arrays"], physical)
    inputs["tf.data, TFRecords in sequence"] = _tf_data_of_files(
        sources["TFRecordShards"].paths, physical
    )
    for name, dataset in inputs.items():
        iterator = iter(dataset)

        def take(iterator: Iterator[Any] = iterator) -> Seconds:
            return _seconds(lambda: next(iterator), steps)

        rows[name] = take
    _report(_in_turn(rows, turns), "tf.data", "batches alone")


def measure_steps(
    model: str, sources: dict[str, Any], folder: Path, turns: int, steps: int
) -> None:
    """Prints how fast a private model trains from each input."""
    ledger = keras_dp.PrivacyLedger.open(
        folder / f"{model}.ledger", dataset="synthetic"
    )
    private = keras_dp.PrivateModel(MODELS[model]())
    query = keras_dp.GaussianAverageQuery(1.0, 1.0, denominator=BATCH)
    private.compile(
        keras_dp.optimizers.DPSGD(0.1, query=query, ledger=ledger),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    samplers = {
        f"sampler, {name}": _sampler(PoissonBatches, data)
        for name, data in sources.items()
    }
    ready = with_one_ready(_sampler(PoissonBatches, sources["arrays"]))
    size = ready.physical_batch_size
    inputs = {
        "one ready batch": ready,
        **samplers,
        f"tf.data, {size} rows": _tf_data(sources["arrays"], size),
        f"tf.data, {BATCH} rows": _tf_data(sources["arrays"], BATCH),
    }

    def fit(data: Any) -> Seconds:
        clock = _Clock()
        private.fit(data, steps_per_epoch=steps, verbose=0, callbacks=[clock])
        return clock.seconds

    rows = {name: functools.partial(fit, data) for name, data in inputs.items()}
    times = _in_turn(rows, turns)
    _report(times, f"tf.data, {size} rows", f"steps, {model}")
    ledger.close()


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--model", choices=MODELS, action="append")
    options = parser.parse_args()
    measure_draws(options.turns)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sources = _sources(folder)
        measure_batches(sources, options.turns, options.steps)
        for model in options.model or MODELS:
            measure_steps(model, sources, folder, options.turns, options.steps)


if __name__ == "__main__":
    main()
