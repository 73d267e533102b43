"""What the first run of `make_private` gives, beside other settings.

    python benchmarks/first_run.py --out rows.jsonl [--tasks adult mnist_mlp]
        [--epsilons 1 8] [--factors 1 4 16] [--seeds 1] [--options JSON]
        [--held-out 0.2]

Each row is one training of a task at one epsilon. The learning rate of the
script is multiplied by a factor; without one, `make_private` chooses it. The
options are further arguments of `make_private`, such as `{"average": null}`;
with `{"epochs": null}` it chooses the epochs, too. With `--held-out`, such a
share of the training data is left out, and scores the model instead of the test
data: what a rule is chosen by. A row that the file has
already is not trained again. The data is that of `$KERAS_DP_DATA`, or drawn
with a fixed seed.

The tasks `examples/NAME` are the programs of `examples/`, with their first
15,000 records; the class weights of `imbalanced` are left out. Their models are
trained from the same first weights.
"""

import argparse
import contextlib
import csv
import functools
import gzip
import itertools
import json
import os
import re
import runpy
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
from keras import layers

import keras_dp

FOLDER = Path(os.environ.get("KERAS_DP_DATA", "data"))


class Task(NamedTuple):
    """A script as its author wrote it.

    Attributes:
        data: Returns x, y, x_test, y_test. A pair `y` has sample weights, too.
        model: Returns the compiled model for the data.
        epochs: Of the script.
    """

    data: Callable[[], tuple[Any, Any, Any, Any]]
    model: Callable[[Any], keras.Model]
    epochs: int


def adult(records: int | None = None) -> tuple[Any, ...]:
    """Returns the census data, one column for each category."""

    def split(name: str, most: int | None) -> tuple[Any, Any]:
        with np.load(FOLDER / "adult.npz") as file:
            scale = np.array([90.0, 1.5e6, 16.0, 1e5, 4356.0, 99.0])
            columns = [np.minimum(file[f"x_num_{name}"] / scale, 1.0)]
            for size, code in zip(
                file["cat_sizes"], file[f"x_cat_{name}"].T, strict=True
            ):
                columns.append(np.eye(size)[code])
            y = file[f"y_{name}"].astype("float32")[:, np.newaxis]
        x = np.concatenate(columns, 1).astype("float32")
        return x[:most], y[:most]

    return *split("train", records), *split("test", None)


def images(name: str, records: int | None = None) -> tuple[Any, ...]:
    """Returns images in [0, 1] and labels."""
    with np.load(FOLDER / f"{name}.npz") as file:
        found = [
            file[f"{part}_{split}"]
            for split in ("train", "test")
            for part in ("x", "y")
        ]
    x, y, x_test, y_test = found
    x, x_test = (
        (each[..., np.newaxis] / 255).astype("float32") for each in (x, x_test)
    )
    return x[:records], y[:records], x_test, y_test


def texts(path: str, length: int, positive: str) -> tuple[Any, ...]:
    """Returns hashed words `[n, length]`, 0 beyond the text, and labels."""
    with gzip.open(FOLDER / path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng(0).permutation(len(rows))
    x = np.zeros((len(rows), length), "int32")
    for row, text in zip(x, rows, strict=True):
        words = "".join(
            c if c.isalnum() else " " for c in text["text"].lower()
        ).split()[:length]
        row[: len(words)] = [1 + zlib.crc32(w.encode()) % 4999 for w in words]
    y = np.array([[row["label"] == positive] for row in rows], "float32")
    x, y = x[order], y[order]
    kept = int(0.8 * len(x))
    return x[:kept], y[:kept], x[kept:], y[kept:]


def tabular(records: int) -> tuple[Any, ...]:
    """Returns a drawn problem of 20 features and three classes."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(records + 4000, 20)).astype("float32")
    hidden = np.tanh(x @ generator.normal(size=(20, 8)) / 2)
    y = (hidden @ generator.normal(size=(8, 3))).argmax(1)
    return x[:-4000], y[:-4000], x[-4000:], y[-4000:]


def several_labels(count: int, records: int = 8000) -> tuple[Any, ...]:
    """Returns a drawn problem of 20 features and labels `[n, count]`."""
    generator = np.random.default_rng(7)
    shape = (records + 4000, count)
    x = generator.normal(size=(records + 4000, 20)).astype("float32")
    hidden = np.tanh(x @ generator.normal(size=(20, 10)) / 2)
    score = hidden @ generator.normal(size=(10, count))
    y = (score + generator.normal(0, 0.3, shape) > 0.5).astype("float32")
    return x[:-4000], y[:-4000], x[-4000:], y[-4000:]


def ratings(records: int = 20_000) -> tuple[Any, ...]:
    """Returns users, items and drawn ratings in [0, 1]."""
    generator = np.random.default_rng(4)
    users, items = generator.normal(size=(2, 300, 4))
    x = generator.integers(300, size=(records + 4000, 2)).astype("int32")
    score = (users[x[:, 0]] * items[x[:, 1]]).sum(1)
    score += generator.normal(0, 0.3, len(x))
    y = (1 / (1 + np.exp(-score))).astype("float32")[:, np.newaxis]
    return x[:-4000], y[:-4000], x[-4000:], y[-4000:]


def hidden_tokens(records: int = 8000, length: int = 20) -> tuple[Any, ...]:
    """Returns drawn sequences of 60 tokens of which some are hidden.

    Four of five tokens follow from the one before. Those that are hidden, 15 %,
    have the weight 1, and the others 0.
    """
    generator = np.random.default_rng(8)
    shape = (records + 2000, length)
    after, drawn = generator.permutation(60), generator.integers(60, size=shape)
    follows = generator.random(shape) < 0.8
    for place in range(1, length):
        known = after[drawn[:, place - 1]]
        drawn[:, place] = np.where(follows[:, place], known, drawn[:, place])
    is_hidden = generator.random(shape) < 0.15
    x = np.where(is_hidden, 60, drawn).astype("int32")
    y = drawn, is_hidden.astype("float32")
    kept, rest = slice(-2000), slice(-2000, None)
    return x[kept], rows_of(y, kept), x[rest], rows_of(y, rest)


def waves(records: int = 8000) -> tuple[Any, ...]:
    """Returns windows `[n, 32, 1]` of drawn waves, and what follows."""
    generator = np.random.default_rng(5)
    t = np.arange(33)
    speed = generator.uniform(0.1, 0.6, (records + 2000, 1))
    start = generator.uniform(0, 6.28, (records + 2000, 1))
    series = np.sin(speed * t + start) + generator.normal(
        0, 0.05, (records + 2000, 33)
    )
    series = series.astype("float32")
    x, y = series[:, :32, np.newaxis], series[:, 32:]
    return x[:-2000], y[:-2000], x[-2000:], y[-2000:]


def _classifier(
    body: Callable[[], list[Any]], outputs: int, optimizer: Any
) -> Callable[[Any], keras.Model]:
    def build(x: Any) -> keras.Model:
        head = layers.Dense(
            outputs, activation="sigmoid" if outputs == 1 else "softmax"
        )
        model = keras.Sequential([keras.Input(x.shape[1:]), *body(), head])
        loss = "sparse_categorical_crossentropy"
        model.compile(
            optimizer(),
            loss="binary_crossentropy" if outputs == 1 else loss,
            metrics=["accuracy"],
        )
        return model

    return build


def _network(width: int, by: str = "relu") -> Callable[[], list[Any]]:
    return lambda: [
        layers.Flatten(),
        layers.Dense(width, activation=by),
        layers.Dense(width, activation=by),
    ]


def _convolutions(by: str = "relu") -> list[Any]:
    return [
        layers.Conv2D(16, 8, 2, padding="same", activation=by),
        layers.MaxPooling2D(2, 1),
        layers.Conv2D(32, 4, 2, activation=by),
        layers.MaxPooling2D(2, 1),
        layers.Flatten(),
        layers.Dense(32, activation=by),
    ]


def _keras_convnet() -> list[Any]:
    return [
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(2),
        layers.Flatten(),
        layers.Dropout(0.5),
    ]


def _words() -> list[Any]:
    return [
        layers.Embedding(5000, 16),
        layers.GlobalAveragePooling1D(),
        layers.Dense(16, activation="relu"),
    ]


def _vector_machine(x: Any) -> keras.Model:
    model = keras.Sequential([keras.Input(x.shape[1:]), layers.Dense(1)])
    accuracy = keras.metrics.BinaryAccuracy(threshold=0.0)
    model.compile("sgd", loss="hinge", metrics=[accuracy])
    return model


def _several_labels(count: int) -> Callable[[Any], keras.Model]:
    def build(x: Any) -> keras.Model:
        model = keras.Sequential(
            [
                keras.Input(x.shape[1:]),
                layers.Dense(32, activation="relu"),
                layers.Dense(count, activation="sigmoid"),
            ]
        )
        metric = "binary_accuracy"
        model.compile("adam", "binary_crossentropy", metrics=[metric])
        return model

    return build


def _autoencoder(x: Any, loss: str = "mse") -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input(x.shape[1:]),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(16, activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(784, activation="sigmoid"),
            layers.Reshape((28, 28, 1)),
        ]
    )
    model.compile("adam", loss=loss, metrics=["mse"])
    return model


def _recommender(x: Any) -> keras.Model:
    pair = keras.Input((2,), dtype="int32")
    user = layers.Embedding(300, 8)(pair[:, 0])
    item = layers.Embedding(300, 8)(pair[:, 1])
    score = layers.Dot(1)([user, item])
    model = keras.Model(pair, layers.Activation("sigmoid")(score))
    model.compile("adam", loss="mse", metrics=["mse"])
    return model


def _forecaster(x: Any) -> keras.Model:
    model = keras.Sequential(
        [keras.Input(x.shape[1:]), layers.LSTM(16), layers.Dense(1)]
    )
    model.compile("adam", loss="mse", metrics=["mse"])
    return model


class Places(layers.Layer):  # type: ignore[misc]
    """Adds a learned vector of each place."""

    def build(self, shape: Any) -> None:
        """Makes the vectors."""
        self.vectors = self.add_weight(shape=shape[1:], initializer="uniform")

    def call(self, x: Any) -> Any:
        """Returns inputs, each with the vector of its place."""
        return x + self.vectors


def _masked_language_model(x: Any) -> keras.Model:
    tokens = keras.Input(x.shape[1:], dtype="int32")
    given = Places()(layers.Embedding(61, 32)(tokens))
    seen = layers.MultiHeadAttention(2, 16)(given, given)
    seen = layers.LayerNormalization()(given + seen)
    found = layers.Dense(32)(layers.Dense(64, activation="relu")(seen))
    found = layers.LayerNormalization()(seen + found)
    model = keras.Model(tokens, layers.Dense(60)(found))
    model.compile(
        ADAM(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=["accuracy"],
    )
    return model


ADAM, SGD = keras.optimizers.Adam, keras.optimizers.SGD


def _to_the_end_of_three_epochs() -> keras.Optimizer:
    """Returns SGD for 15,000 records in batches of 128."""
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 3 * 118)
    return SGD(schedule, momentum=0.9)


def _same(load: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: load(*arguments)


def _copied(records: int = 20_000) -> tuple[Any, ...]:
    x, _, x_test, _ = images("mnist", records)
    return x, x, x_test, x_test


TASKS = {
    "adult10k": Task(
        _same(adult, 10_000), _classifier(_network(64), 1, ADAM), 10
    ),
    "adult10k_logistic": Task(
        _same(adult, 10_000), _classifier(list, 1, SGD), 10
    ),
    "adult10k_svm": Task(_same(adult, 10_000), _vector_machine, 10),
    "adult": Task(adult, _classifier(_network(64), 1, ADAM), 10),
    "adult_sgd": Task(adult, _classifier(_network(64), 1, SGD), 10),
    "mnist_mlp": Task(
        _same(images, "mnist", 15_000), _classifier(_network(128), 10, ADAM), 10
    ),
    "mnist_mlp512": Task(
        _same(images, "mnist", 15_000), _classifier(_network(512), 10, ADAM), 10
    ),
    "mnist_mlp_sgd": Task(
        _same(images, "mnist", 15_000), _classifier(_network(128), 10, SGD), 10
    ),
    "mnist_mlp_cosine": Task(
        _same(images, "mnist", 15_000),
        _classifier(_network(128), 10, _to_the_end_of_three_epochs),
        3,
    ),
    "mnist_cnn15k": Task(
        _same(images, "mnist", 15_000), _classifier(_convolutions, 10, ADAM), 10
    ),
    "mnist_cnn15k_sgd": Task(
        _same(images, "mnist", 15_000), _classifier(_convolutions, 10, SGD), 10
    ),
    "mnist_cnn": Task(
        _same(images, "mnist"), _classifier(_convolutions, 10, ADAM), 5
    ),
    "mnist_keras": Task(
        _same(images, "mnist"), _classifier(_keras_convnet, 10, ADAM), 5
    ),
    "fashion_cnn": Task(
        _same(images, "fashion_mnist"), _classifier(_convolutions, 10, ADAM), 5
    ),
    "fashion_cnn15k": Task(
        _same(images, "fashion_mnist", 15_000),
        _classifier(_convolutions, 10, ADAM),
        10,
    ),
    "sms": Task(
        _same(texts, "sms_spam.csv.gz", 40, "spam"),
        _classifier(_words, 1, ADAM),
        20,
    ),
    "imdb": Task(
        _same(texts, "imdb_subset.csv.gz", 200, "1"),
        _classifier(_words, 1, ADAM),
        20,
    ),
    "tabular1200": Task(
        _same(tabular, 1200), _classifier(_network(16), 3, ADAM), 30
    ),
    "tabular5000": Task(
        _same(tabular, 5000), _classifier(_network(16), 3, ADAM), 20
    ),
    "autoencoder": Task(_copied, _autoencoder, 10),
    "autoencoder5k": Task(_same(_copied, 5000), _autoencoder, 10),
    "autoencoder_bce": Task(
        _same(_copied, 8000),
        functools.partial(_autoencoder, loss="binary_crossentropy"),
        10,
    ),
    "labels5": Task(_same(several_labels, 5), _several_labels(5), 10),
    "labels40": Task(_same(several_labels, 40), _several_labels(40), 10),
    "recommender": Task(ratings, _recommender, 10),
    "waves": Task(waves, _forecaster, 10),
    "tokens": Task(hidden_tokens, _masked_language_model, 30),
    "mnist_cnn15k_tanh": Task(
        _same(images, "mnist", 15_000),
        _classifier(lambda: _convolutions("tanh"), 10, ADAM),
        10,
    ),
    "mnist_mlp_tanh": Task(
        _same(images, "mnist", 15_000),
        _classifier(_network(128, "tanh"), 10, ADAM),
        10,
    ),
    "adult10k_tanh": Task(
        _same(adult, 10_000), _classifier(_network(64, "tanh"), 1, ADAM), 10
    ),
}


class Captured(Exception):  # noqa: N818
    """Ends a program that has given its model and its data."""


class Example:
    """A program of `examples/`, run up to the training of its model."""

    MOST_RECORDS = 15_000

    def __init__(self, name: str) -> None:
        self._path = EXAMPLES / name / "plain.py"

    @property
    def epochs(self) -> int:
        """Those of the program."""
        found = re.search(r"QUICK else \(\S+, (\d+)", self._path.read_text())
        return int(found[1])

    def data(self) -> tuple[Any, Any, Any, Any]:
        """Returns x, y, x_test, y_test."""
        x, y, x_test, y_test, _ = self._captured
        return x, y, x_test, y_test

    def model(self, x: Any) -> keras.Model:
        """Returns the one model, with its first weights."""
        *_, model = self._captured
        model.set_weights(self._weights)
        return model

    @functools.cached_property
    def _captured(self) -> tuple[Any, ...]:
        found: list[Any] = []
        fit, evaluate = keras.Model.fit, keras.Model.evaluate

        def fit_or_keep(model: Any, x: Any, y: Any, **options: Any) -> Any:
            if options.get("verbose") == 0:  # Of public data.
                return fit(model, x, y, **options)
            found.extend(rows_of((x, y), slice(self.MOST_RECORDS)))
            self._weights = model.get_weights()
            return None

        def keep(model: Any, x: Any, y: Any, **_: Any) -> None:
            found.extend([x, y, model])
            raise Captured

        folder = os.getcwd()
        keras.Model.fit, keras.Model.evaluate = fit_or_keep, keep
        try:
            with contextlib.suppress(Captured):
                runpy.run_path(str(self._path))
        finally:
            keras.Model.fit, keras.Model.evaluate = fit, evaluate
            os.chdir(folder)
        return tuple(found)


def rows_of(data: Any, rows: slice) -> Any:
    """Returns some rows of a nest of arrays."""
    return keras.tree.map_structure(lambda each: each[rows], data)


EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TASKS |= {
    f"examples/{path.parent.name}": Example(path.parent.name)
    for path in EXAMPLES.glob("*/plain.py")
}
for few in (100, 300):
    TASKS[f"tabular{few}"] = TASKS["tabular1200"]._replace(
        data=_same(tabular, few)
    )
for few in (200, 1000):
    TASKS[f"adult{few}"] = TASKS["adult10k"]._replace(data=_same(adult, few))
for few in (500, 1500):
    TASKS[f"mnist_mlp{few}"] = TASKS["mnist_mlp"]._replace(
        data=_same(images, "mnist", few)
    )


def train(task: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Returns what one training gave.

    Args:
        task: A name in `TASKS`.
        settings: `epsilon`, `factor` of the learning rate or `None`, `seed`,
            `options` of `make_private`, and `held_out`, if it is not 0.
    """
    of = TASKS[task]
    x, y, x_test, y_test = of.data()
    rows = len(keras.tree.flatten(y)[0])
    kept = rows - round(settings.get("held_out", 0) * rows)
    if kept < rows:
        x_test, y_test = rows_of((x, y), slice(kept, None))
        x, y = rows_of((x, y), slice(kept))
    keras.utils.set_random_seed(settings["seed"])
    model = of.model(x)
    options = dict(settings["options"])
    epochs = options.pop("epochs", of.epochs)
    ledger = keras_dp.PrivacyLedger.in_memory(dataset=task)
    given = {
        "ledger": ledger,
        "target_epsilon": settings["epsilon"],
        "epochs": epochs,
        **options,
    }
    start = time.perf_counter()
    if settings["factor"] is not None:
        scripts = float(model.optimizer.learning_rate)
        given["learning_rate"] = scripts * settings["factor"]
    records = (x, *y) if isinstance(y, tuple) else (x, y)
    private = keras_dp.make_private(model, records, **given, verbose=False)
    private.fit(verbose=0)
    query, inner = private.optimizer.query, private.optimizer.inner
    y_test, weight = y_test if isinstance(y_test, tuple) else (y_test, None)
    scores = model.evaluate(
        x_test, y_test, sample_weight=weight, batch_size=2000, verbose=0
    )
    return {
        "metric": float(np.ravel(scores)[-1]),
        "loss": float(np.ravel(scores)[0]),
        "rate": float(inner.learning_rate),
        "rounds": private.optimizer.rounds_released,
        "batch": private.settings.samples.expected_sample_size,
        "noise": query.noise_multiplier,
        "weights": model.count_params(),
        "seconds": time.perf_counter() - start,
    }


def rows(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the tasks and settings that are asked for."""
    for task, epsilon, factor, seed in itertools.product(
        options.tasks,
        options.epsilons,
        options.factors,
        range(options.seeds),
    ):
        settings = {
            "epsilon": epsilon,
            "factor": factor,
            "seed": seed,
            "options": json.loads(options.options),
        }
        if options.held_out:
            settings["held_out"] = options.held_out
        yield task, settings


def main() -> None:
    """Trains what is asked for, and prints a line for each row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1, 3, 8])
    parser.add_argument("--factors", nargs="*", type=float, default=[None])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--options", default="{}", help="JSON")
    parser.add_argument("--held-out", type=float, default=0.0)
    options = parser.parse_args()
    done = set()
    if options.out.exists():
        for line in options.out.read_text("utf-8").splitlines():
            row = json.loads(line)
            done.add(json.dumps([row["task"], row["settings"]]))
    for task, settings in rows(options):
        if json.dumps([task, settings]) in done:
            continue
        found = train(task, settings)
        row = {"task": task, "settings": settings, **found}
        with options.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(
            f"{task:16} eps {settings['epsilon']:g} factor "
            f"{settings['factor']} "
            f"{json.dumps(settings['options'])}: {found['metric']:.4f} "
            f"({found['rounds']} rounds of {found['batch']:.0f}, rate "
            f"{found['rate']:.3g}, noise {found['noise']:.3g}, "
            f"{found['seconds']:.0f} s)",
            flush=True,
        )


if __name__ == "__main__":
    main()
