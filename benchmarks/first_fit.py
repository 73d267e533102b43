"""What the first private `fit`, and a step after it, cost beside Keras's own.

    python benchmarks/first_fit.py [--model unet ...] [--turns 3] [--wall]
        [--parts 4]

Each side is a process of its own: `fit` of Keras, `fit` of a private model, on
the same arrays and batches. Both are started `--turns` times, in turn. The
first `fit` takes two steps, with all that is traced, checked and compiled
before them. A second `fit` takes as many steps as a second holds, and its
median step is counted. Seconds are of the CPU, over all threads of a process;
with `--wall` they are of the clock. Numbers are medians over the turns. With
`--parts` the private side draws Poisson samples, of so many physical batches
each on average.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np

SIDES = ("keras", "private")
FIRST_STEPS = 2
SECONDS = 2.0
FEWEST_STEPS, MOST_STEPS = 6, 100
HEAD = """\
| Model | batch | Keras first s | private first s | ratio \
| Keras step ms | private step ms | ratio |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


class Work(NamedTuple):
    """A model, its data and its batch.

    Attributes:
        make: Returns a new Keras model that ends in logits.
        inputs: Takes the number of rows and a generator, and returns inputs.
        labels: Shape of the labels of a row.
        classes: Number of labels.
        batch: Rows of a step.
    """

    make: Callable[[], Any]
    inputs: Callable[[int, np.random.Generator], Any]
    labels: tuple[int, ...]
    classes: int
    batch: int


def _mlp() -> Any:
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((784,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(256, activation="relu"),
            layers.Dense(10),
        ]
    )


def _separable() -> Any:
    """Seven depthwise-separable blocks, as in MobileNet."""
    import keras
    from keras import layers

    def block(x: Any, channels: int, stride: int) -> Any:
        x = layers.DepthwiseConv2D(3, stride, padding="same")(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
        x = layers.Conv2D(channels, 1)(x)
        return layers.ReLU()(layers.GroupNormalization(8)(x))

    image = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", activation="relu")(image)
    for channels, stride in [
        (32, 1),
        (64, 2),
        (64, 1),
        (128, 2),
        (128, 1),
        (128, 1),
        (128, 1),
    ]:
        x = block(x, channels, stride)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(10)(x))


def _unet() -> Any:
    import keras
    from keras import layers

    def block(x: Any, channels: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(channels, 3, padding="same")(x)
            x = layers.ReLU()(layers.GroupNormalization(4)(x))
        return x

    image = keras.Input((64, 64, 3))
    x, skips = image, []
    for channels in (8, 16, 32):
        x = block(x, channels)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 64)
    for channels in (32, 16, 8):
        x = layers.Conv2DTranspose(channels, 2, 2)(x)
        x = block(layers.Concatenate()([x, skips.pop()]), channels)
    return keras.Model(image, layers.Conv2D(4, 1)(x))


def _dlrm() -> Any:
    """Numbers and eight categories, whose products are what is learnt from."""
    import keras
    from keras import layers

    numbers = keras.Input((13,))
    ids = keras.Input((8,), dtype="int32")
    x = layers.Dense(16, activation="relu")(
        layers.Dense(64, activation="relu")(numbers)
    )
    vectors = [layers.Reshape((1, 16))(x)]
    for place in range(8):
        one = layers.Lambda(_column, arguments={"place": place})(ids)
        vectors.append(layers.Embedding(100_000, 16)(one))
    found = layers.Concatenate(axis=1)(vectors)
    products = layers.Flatten()(layers.Dot(axes=2)([found, found]))
    x = layers.Concatenate()([x, products])
    x = layers.Dense(64, activation="relu")(x)
    return keras.Model([numbers, ids], layers.Dense(2)(x))


def _column(ids: Any, place: int) -> Any:
    return ids[:, place : place + 1]


def _transformer() -> Any:
    import keras
    from keras import layers

    ids = keras.Input((64,), dtype="int32")
    x = layers.Embedding(10_000, 64)(ids)
    for _ in range(2):
        attention = layers.MultiHeadAttention(4, 16, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attention]))
        hidden = layers.Dense(128, activation="relu")(x)
        hidden = layers.Dropout(0.1)(layers.Dense(64)(hidden))
        x = layers.LayerNormalization()(layers.Add()([x, hidden]))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(2)(x))


def _lstm() -> Any:
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((64,), dtype="int32"),
            layers.Embedding(10_000, 32),
            layers.LSTM(64),
            layers.Dense(2),
        ]
    )


def _resnet() -> Any:
    """A stem of 7 x 7, and a residual block a stage."""
    import keras
    from keras import layers

    def convolution(x: Any, channels: int, size: int, stride: int) -> Any:
        x = layers.Conv2D(channels, size, stride, padding="same")(x)
        return layers.GroupNormalization(8)(x)

    image = keras.Input((64, 64, 3))
    x = layers.ReLU()(convolution(image, 32, 7, 2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for channels, stride in [(32, 1), (64, 2), (128, 2)]:
        hidden = layers.ReLU()(convolution(x, channels, 3, stride))
        hidden = convolution(hidden, channels, 3, 1)
        if stride > 1:
            x = convolution(x, channels, 1, stride)
        x = layers.ReLU()(layers.Add()([x, hidden]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(10)(x))


def _floats(*shape: int) -> Callable[[int, np.random.Generator], Any]:
    return lambda rows, own: own.standard_normal((rows, *shape), np.float32)


def _ids(most: int, *shape: int) -> Callable[[int, np.random.Generator], Any]:
    return lambda rows, own: own.integers(0, most, (rows, *shape), np.int32)


def _clicks(rows: int, own: np.random.Generator) -> Any:
    return [_floats(13)(rows, own), _ids(100_000, 8)(rows, own)]


MODELS = {
    "mlp": Work(_mlp, _floats(784), (), 10, 256),
    "separable": Work(_separable, _floats(32, 32, 3), (), 10, 32),
    "unet": Work(_unet, _floats(64, 64, 3), (64, 64), 4, 8),
    "dlrm": Work(_dlrm, _clicks, (), 2, 256),
    "transformer": Work(_transformer, _ids(10_000, 64), (), 2, 32),
    "lstm": Work(_lstm, _ids(10_000, 64), (), 2, 32),
    "resnet": Work(_resnet, _floats(64, 64, 3), (), 10, 32),
}


class Cost(NamedTuple):
    """What a side costs, as pairs of seconds of the CPU and of the clock.

    Attributes:
        first: The first `fit`.
        step: A step after it.
    """

    first: tuple[float, float]
    step: tuple[float, float]


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _since(start: tuple[float, float]) -> tuple[float, float]:
    cpu, clock = _now()
    return cpu - start[0], clock - start[1]


def _model(work: Work, side: str, ledger: Path) -> Any:
    """Returns a compiled model of one side."""
    import keras

    model = work.make()
    optimizer: Any = keras.optimizers.SGD(0.01)
    if side == "private":
        import keras_dp

        model = keras_dp.PrivateModel(model)
        optimizer = keras_dp.optimizers.DPSGD(
            0.01,
            query=keras_dp.GaussianAverageQuery(
                1.0, 1.0, denominator=work.batch
            ),
            ledger=keras_dp.PrivacyLedger.open(ledger, dataset="synthetic"),
        )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _sampled(x: Any, y: Any, work: Work, parts: int) -> Any:
    """Returns samples of a batch on average, in so many physical batches."""
    import keras_dp

    return keras_dp.PoissonBatches(
        (x, y),
        sampling_probability=1 / FIRST_STEPS,
        physical_batch_size=-(-work.batch // parts),
        seed=0,
    )


def measure(name: str, side: str, parts: int) -> Cost:
    """Returns what one side costs in this process."""
    import keras

    work = MODELS[name]
    generator = np.random.default_rng(0)
    rows = FIRST_STEPS * work.batch
    x = work.inputs(rows, generator)
    y = generator.integers(0, work.classes, (rows, *work.labels))
    data: dict[str, Any] = {"x": x, "y": y, "batch_size": work.batch}
    if parts and side == "private":
        data = {"x": _sampled(x, y, work, parts)}
    times: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = _model(work, side, Path(folder) / "privacy.ledger")

        def fit(steps: int) -> None:
            class Clock(keras.callbacks.Callback):
                def on_train_batch_end(self, batch: int, logs: Any = None):
                    times.append(_now())

            times.clear()
            model.fit(
                **data,
                epochs=steps // FIRST_STEPS,
                verbose=0,
                callbacks=[Clock()],
            )

        start = _now()
        fit(FIRST_STEPS)
        first = _since(start)
        start = _now()
        fit(FIRST_STEPS)
        each = _since(start)[1] / FIRST_STEPS
        steps = int(min(MOST_STEPS, max(FEWEST_STEPS, SECONDS / each)))
        fit(steps // FIRST_STEPS * FIRST_STEPS)
    # A step that ends an epoch also begins another.
    differences = [
        np.subtract(times[i + 1], times[i])
        for i in range(0, len(times) - 1, FIRST_STEPS)
    ]
    step = tuple(float(each) for each in np.median(differences, axis=0))
    return Cost(first, (step[0], step[1]))


def apart(name: str, side: str, parts: int) -> Cost:
    """Measures one side in a process of its own."""
    command = [sys.executable, __file__, "--alone", name, side]
    command += ["--parts", str(parts)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr)
    return Cost(*json.loads(ran.stdout.splitlines()[-1]))


def row(name: str, turns: int, parts: int, *, clock: bool) -> str:
    """Returns the row of the table for a model."""
    found: dict[str, list[Cost]] = {side: [] for side in SIDES}
    for _ in range(turns):
        for side in SIDES:
            found[side].append(apart(name, side, parts))
    firsts, steps = (
        [
            statistics.median(cost[which][clock] for cost in found[side])
            for side in SIDES
        ]
        for which in range(2)
    )
    return (
        f"| {name} | {MODELS[name].batch} "
        f"| {firsts[0]:.2f} | {firsts[1]:.2f} | {firsts[1] / firsts[0]:.2f} "
        f"| {1e3 * steps[0]:.1f} | {1e3 * steps[1]:.1f} "
        f"| {steps[1] / steps[0]:.2f} |"
    )


def main() -> None:
    """Prints one row per model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--wall", action="store_true")
    parser.add_argument("--parts", type=int, default=0)
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        print(json.dumps(measure(*options.alone, options.parts)))
        return
    print(HEAD)
    for name in options.model:
        line = row(name, options.turns, options.parts, clock=options.wall)
        print(line, flush=True)


if __name__ == "__main__":
    main()
