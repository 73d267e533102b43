"""The best accuracy that a budget buys: the board of docs/accuracy.md.

    python benchmarks/accuracy.py NAME ... [--trainings 5] [--results FOLDER]
    python benchmarks/accuracy.py --page --results benchmarks/accuracy_results

A name is that of a row, such as `adult`; of a row with one part changed, such
as `adult:unscaled`; `adult:default`, the same model by the defaults of
`make_private`; or `adult:plain`, the same model without privacy. Each training
has a ledger of its own, in FOLDER. When it is done, it is written to
`FOLDER/NAME.jsonl`, with the certificate of its ledger. A row that was
interrupted goes on with the trainings that are missing. `--page` renders the
tables of the page from the files of a folder.

`--held-out` trains on five sixths of the training data, and measures on the
rest: settings are chosen by this, and nothing of it is kept.

The data is in the folder `$KERAS_DP_DATA`: mnist.npz, fashion_mnist.npz,
cifar10_jpeg.npz, adult.npz, sms_spam.csv.gz and imdb_subset.csv.gz.
"""

import argparse
import csv
import functools
import gc
import gzip
import json
import os
import re
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_dp
from keras_dp.preprocessing import PCA
from keras_dp.reporting.certificate import certify

PAGE = Path(__file__).resolve().parent.parent / "docs" / "accuracy.md"
DELTA = 1e-5
# What a Keras user writes first.
PLAIN_EPOCHS, PLAIN_BATCH = 20, 256

Pair = tuple[np.ndarray, np.ndarray]


class Training(NamedTuple):
    """A model, its data, and the settings of its private training.

    Attributes:
        model: Returns the model, new.
        train: Inputs and labels; labels of two classes are `[n, 1]`.
        test: The same.
        settings: Arguments of `make_private` besides the target.
        adapt: Returns the inputs of both after statistics of the training data
            were released, with noise, into the ledger of the training.
    """

    model: Callable[[], keras.Model]
    train: Pair
    test: Pair
    settings: dict[str, Any]
    adapt: Callable[[keras_dp.PrivacyLedger, Pair, Pair], tuple[Pair, Pair]] = (
        lambda ledger, train, test: (train, test)
    )


class Row(NamedTuple):
    """A row of the board.

    Attributes:
        task: What is learned.
        epsilon: The target.
        technique: What wins, in a few words.
        make: Returns the training; its arguments are what parts change.
        published: The number to compare with, its source, and what differs.
        trials: How many settings were tried on held-out data.
        parts: Name of a part -> what it says, and the arguments that change it.
    """

    task: str
    epsilon: float
    technique: str
    make: Callable[..., Training]
    published: str
    trials: int
    parts: Mapping[str, tuple[str, dict[str, Any]]] = MappingProxyType({})


def folder() -> Path:
    """Returns the folder with the data."""
    return Path(os.environ["KERAS_DP_DATA"])


def arrays(name: str) -> dict[str, np.ndarray]:
    """Returns the arrays of a file."""
    with np.load(folder() / name) as file:
        return dict(file)


def rows_of(name: str) -> list[dict[str, str]]:
    """Returns the rows of a table."""
    with gzip.open(folder() / name, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def averaged_sgd(
    rate: float, momentum: float, average: float
) -> dict[str, Any]:
    """Returns SGD as it is, which averages weights unless `average` is 0."""
    return {
        "optimizer": keras.optimizers.SGD(
            rate,
            momentum=momentum,
            use_ema=average > 0,
            ema_momentum=average or None,
        ),
        "learning_rate": None,
        "average": None,
    }


def linear(outputs: int, shape: tuple[int, ...]) -> keras.Model:
    """Returns a linear layer, which begins at zero."""
    return keras.Sequential(
        [
            keras.Input(shape),
            layers.Dense(outputs, kernel_initializer="zeros"),
        ]
    )


# Round numbers, so that nothing is learned of the data by looking at them.
EDGES = {
    "age": range(20, 80, 5),
    "education-num": range(2, 17),
    "hours-per-week": (10, 20, 25, 30, 35, 36, 40, 41, 45, 50, 55, 60, 70),
    "capital-gain": (1, *range(500, 10_001, 250), *range(12_000, 50_001, 2000)),
    "capital-loss": (1, *range(500, 3501, 100)),
}


def adult(
    *,
    money: float = 4.0,
    rate: float = 3.0,
    clip: float = 1.0,
    epochs: int = 100,
    batch: int | None = None,
    average: float = 0.95,
    momentum: float = 0.9,
) -> Training:
    """Income: a linear layer on columns in bins, all records in each round.

    A one in the columns of gains and losses is `money`. Few people have any, so
    that their weights would learn slowly.
    """
    file = arrays("adult.npz")

    def encoded(split: str) -> Pair:
        columns = [
            np.eye(size)[codes]
            for size, codes in zip(
                file["cat_sizes"], file[f"x_cat_{split}"].T, strict=True
            )
        ]
        for name, values in zip(
            file["num_names"], file[f"x_num_{split}"].T, strict=True
        ):
            if name in EDGES:
                edges = list(EDGES[name])
                ones = np.eye(len(edges) + 1)[np.digitize(values, edges)]
                # No gain is the rule: it has no column.
                rare = name.startswith("capital")
                columns.append(ones[:, 1:] * money if rare else ones)
        return (
            np.concatenate(columns, 1).astype("float32"),
            file[f"y_{split}"].astype("float32")[:, np.newaxis],
        )

    train, test = encoded("train"), encoded("test")
    return Training(
        functools.partial(linear, 1, train[0].shape[1:]),
        train,
        test,
        {
            "epochs": epochs,
            "batch_size": batch,
            "l2_norm_clip": clip,
            **averaged_sgd(rate, momentum, average),
        },
    )


# Words that say little in any English text.
FREQUENT = """
a about after all also am an and any are as at be been before being but by can
could did do does for from had has have he her here him his how i if in into is
it it's its just me my of on one or other our out over s she so some t than that
the their them then there these they this those through to too two up us was we
were what when where which while who will with would you your movie film br
"""
WORD = re.compile(r"[a-z']+|[0-9]+|[!?£$]")


def hashed(texts: Iterable[str], size: int, left_out: str) -> np.ndarray:
    """Returns which words a text has, by hashes: no vocabulary is released.

    A row has the norm 1 and a constant. A number is the count of its digits.
    """
    found, frequent = [], set(left_out.split())
    for text in texts:
        words = set(WORD.findall(text.lower())) - frequent
        keys = {f"#{len(w)}" if w[0].isdigit() else w for w in words}
        ones = np.zeros(size, "float32")
        ones[[zlib.crc32(key.encode()) % size for key in keys]] = 1.0
        ones /= max(1.0, np.linalg.norm(ones))
        found.append(np.append(ones, np.float32(0.3)))
    return np.stack(found)


def words(
    train: list[tuple[str, bool]],
    test: list[tuple[str, bool]],
    *,
    size: int,
    left_out: str,
    rate: float,
    clip: float,
    epochs: int,
    average: float,
) -> Training:
    """A linear layer on hashed words, all records in each round."""

    def encoded(pairs: list[tuple[str, bool]]) -> Pair:
        texts, labels = zip(*pairs, strict=True)
        y = np.array(labels, "float32")[:, np.newaxis]
        return hashed(texts, size, left_out), y

    return Training(
        functools.partial(linear, 1, (size + 1,)),
        encoded(train),
        encoded(test),
        {
            "epochs": epochs,
            "batch_size": None,  # All of them.
            "l2_norm_clip": clip,
            **averaged_sgd(rate / clip, 0.9, average),
        },
    )


def sms(
    *,
    size: int = 512,
    rate: float = 10.0,
    clip: float = 0.3,
    epochs: int = 60,
    average: float = 0.95,
) -> Training:
    """Spam among short messages; the last fifth is the test."""
    pairs = [
        (row["text"], row["label"] == "spam")
        for row in rows_of("sms_spam.csv.gz")
    ]
    return words(
        pairs[:4459],
        pairs[4459:],
        size=size,
        left_out="",
        rate=rate,
        clip=clip,
        epochs=epochs,
        average=average,
    )


def imdb(
    *,
    size: int = 4096,
    left_out: str = FREQUENT,
    rate: float = 10.0,
    clip: float = 0.3,
    epochs: int = 40,
    average: float = 0.95,
) -> Training:
    """Is a film review positive? 8,000 reviews, and 2,000 as the test."""
    rows = rows_of("imdb_subset.csv.gz")
    train, test = (
        [(r["text"], r["label"] == "1") for r in rows if r["split"] == split]
        for split in ("train", "test")
    )
    return words(
        train,
        test,
        size=size,
        left_out=left_out,
        rate=rate,
        clip=clip,
        epochs=epochs,
        average=average,
    )


def images(name: str) -> tuple[Pair, Pair]:
    """Returns grey images with pixels in [-1, 1], and their classes."""
    file = arrays(name)
    return tuple(  # type: ignore[return-value]
        (
            file[f"x_{split}"][..., np.newaxis].astype("float32") / 127.5 - 1,
            file[f"y_{split}"].astype("int32"),
        )
        for split in ("train", "test")
    )


def cnn(activation: str) -> keras.Model:
    """Returns the network of TensorFlow Privacy's tutorial."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(16, 8, 2, padding="same", activation=activation),
            layers.MaxPooling2D(2, 1),
            layers.Conv2D(32, 4, 2, activation=activation),
            layers.MaxPooling2D(2, 1),
            layers.Flatten(),
            layers.Dense(32, activation=activation),
            layers.Dense(10),
        ]
    )


def mnist_cnn(
    *,
    activation: str = "tanh",
    batch: int = 1024,
    rate: float = 0.4,
    momentum: float = 0.9,
    clip: float = 1.0,
    epochs: int = 12,
    average: float = 0.95,
) -> Training:
    """Digits: a small network from pixels to classes."""
    train, test = images("mnist.npz")
    return Training(
        functools.partial(cnn, activation),
        train,
        test,
        {
            "epochs": epochs,
            "batch_size": batch,
            "l2_norm_clip": clip,
            **averaged_sgd(rate, momentum, average),
        },
    )


def cifar() -> tuple[Pair, Pair]:
    """Returns the images of CIFAR-10 with pixels in [-1, 1], decoded."""
    file = arrays("cifar10_jpeg.npz")

    def decoded(split: str) -> Pair:
        ends = file[f"{split}_ends"]
        data = file[f"{split}_jpeg"]
        starts = np.concatenate([[0], ends[:-1]])
        x = np.stack(
            [
                tf.io.decode_jpeg(data[a:b].tobytes()).numpy()
                for a, b in zip(starts, ends, strict=True)
            ]
        )
        return x.astype("float32") / 127.5 - 1, file[f"y_{split}"].astype(int)

    return decoded("train"), decoded("test")


def cifar_cnn(
    *,
    batch: int = 2048,
    rate: float = 1.0,
    clip: float = 1.0,
    epochs: int = 10,
    average: float = 0.95,
) -> Training:
    """Objects: a small network from pixels to classes."""

    def network() -> keras.Model:
        return keras.Sequential(
            [
                keras.Input((32, 32, 3)),
                layers.Conv2D(32, 5, 2, padding="same", activation="tanh"),
                layers.Conv2D(64, 3, 2, padding="same", activation="tanh"),
                layers.Conv2D(64, 3, padding="same", activation="tanh"),
                layers.AveragePooling2D(2),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )

    train, test = cifar()
    return Training(
        network,
        train,
        test,
        {
            "epochs": epochs,
            "batch_size": batch,
            "l2_norm_clip": clip,
            **averaged_sgd(rate, 0.9, average),
        },
    )


@functools.cache
def wavelets(name: str, *, roots: bool, mirrors: bool) -> tuple[Pair, Pair]:
    """Returns wavelet features of images, `[n, height, width, channels]`.

    Pixels are in [0, 1]. Colors are brightness and two differences (YUV).

    Args:
        name: The file with the images.
        roots: Whether the features are square roots, with the sign.
        mirrors: Whether those of the mirror image are added. The left half then
            has all that the right half has.
    """
    pairs = cifar() if name.startswith("cifar") else images(name)
    shape = pairs[0][0].shape[1:]
    right = shape[1] // 8 if mirrors else 0
    network = keras.Sequential(
        [
            keras.Input(shape),
            keras_dp.layers.Scattering2D(J=2, L=8),
            layers.Cropping2D(((0, 0), (0, right))),
        ]
    )

    def features(x: np.ndarray) -> np.ndarray:
        found = network.predict(x, batch_size=100, verbose=0)
        return np.sign(found) * np.sqrt(np.abs(found)) if roots else found

    def all_features(x: np.ndarray) -> np.ndarray:
        x = (x + 1) / 2
        if x.shape[-1] == 3:
            x = tf.image.rgb_to_yuv(x).numpy()
        found = features(x)
        return found + features(x[:, :, ::-1]) if mirrors else found

    return tuple(  # type: ignore[return-value]
        (all_features(x), y) for x, y in pairs
    )


def whitened(
    noise: float | None,
    ledger: keras_dp.PrivacyLedger,
    train: Pair,
    test: Pair,
) -> tuple[Pair, Pair]:
    """Returns features of one length, whose channels were whitened with noise.

    Args:
        noise: The noise multiplier; with `None` they are not whitened.
        ledger: The ledger of the training.
        train: Inputs `[n, height, width, channels]`, and labels.
        test: The same.
    """
    shape = train[0].shape[1:]
    steps: list[keras.Layer] = []
    if noise is not None:
        adapter = PCA(shape[-1], noise, whiten=True)
        steps.append(adapter.adapt(train[0], ledger, run="whitening"))
    network = keras.Sequential(
        [
            keras.Input(shape),
            *steps,
            layers.UnitNormalization(axis=(1, 2, 3)),
            layers.Rescaling(10.0),
            layers.Flatten(),
        ]
    )
    return tuple(  # type: ignore[return-value]
        (network.predict(x, batch_size=1000, verbose=0), y)
        for x, y in (train, test)
    )


def wavelet_linear(
    name: str,
    *,
    roots: bool = True,
    mirrors: bool = False,
    noise: float | None = 10.0,
    batch: int = 8192,
    rate: float = 30.0,
    clip: float = 0.1,
    epochs: int = 30,
    average: float = 0.9,
) -> Training:
    """A linear layer on wavelet features with whitened channels."""
    train, test = wavelets(name, roots=roots, mirrors=mirrors)
    return Training(
        functools.partial(linear, 10, (train[0][0].size,)),
        train,
        test,
        {
            "epochs": epochs,
            "batch_size": batch,
            "l2_norm_clip": clip,
            **averaged_sgd(rate, 0.9, average),
        },
        functools.partial(whitened, noise),
    )


WAVELET_PARTS = {
    "unwhitened": ("channels not whitened", {"noise": None}),
    "unrooted": ("no square roots", {"roots": False}),
}
NO_AVERAGE = ("no averaging of weights", {"average": 0.0})
ROWS = {
    "mnist-1.2": Row(
        "MNIST",
        1.2,
        "linear on whitened wavelet features",
        functools.partial(wavelet_linear, "mnist.npz"),
        "98.7 at 3 (S)",
        25,
        WAVELET_PARTS,
    ),
    "mnist-2": Row(
        "MNIST",
        2.0,
        "linear on whitened wavelet features",
        functools.partial(
            wavelet_linear,
            "mnist.npz",
            batch=16384,
            rate=100.0,
            clip=0.03,
            epochs=100,
            average=0.97,
        ),
        "98.5 (S)",
        37,
        WAVELET_PARTS,
    ),
    "fashion": Row(
        "Fashion-MNIST",
        3.0,
        "linear on whitened wavelet features",
        functools.partial(
            wavelet_linear,
            "fashion_mnist.npz",
            rate=60.0,
            epochs=40,
            average=0.95,
        ),
        "89.7 (S)",
        25,
        WAVELET_PARTS,
    ),
    "cifar": Row(
        "CIFAR-10 (JPEG)",
        3.0,
        "linear on whitened wavelet features",
        functools.partial(
            wavelet_linear,
            "cifar10_jpeg.npz",
            mirrors=True,
            noise=3.0,
            rate=20.0,
            epochs=60,
            average=0.95,
        ),
        "67.0, 69.3 (S)",
        60,
        {
            **WAVELET_PARTS,
            "unmirrored": ("without the mirror image", {"mirrors": False}),
        },
    ),
    "adult": Row(
        "Adult",
        1.0,
        "linear, columns in bins, rare columns scaled up, all records in "
        "each round",
        adult,
        "",
        27,
        {
            "unscaled": ("rare columns not scaled", {"money": 1.0}),
            "samples": (
                "samples of 2,048, 20 epochs",
                {"batch": 2048, "epochs": 20},
            ),
            "no-momentum": (
                "no momentum, ten times the rate",
                {"momentum": 0.0, "rate": 30.0},
            ),
            "no-average": NO_AVERAGE,
            "small-clip": (
                "clip 0.1, ten times the rate",
                {"clip": 0.1, "rate": 30.0},
            ),
        },
    ),
    "sms": Row(
        "SMS Spam",
        3.0,
        "linear on 512 hashed words, all records in each round",
        sms,
        "",
        30,
        {
            "more-words": ("4,096 hashes instead of 512", {"size": 4096}),
            "clip-1": ("clip 1, the same rate on answers", {"clip": 1.0}),
            "no-average": NO_AVERAGE,
        },
    ),
    "imdb": Row(
        "IMDb, 8,000 reviews",
        3.0,
        "linear on 4,096 hashed words, all records in each round",
        imdb,
        "",
        8,
        {
            "all-words": ("frequent words too", {"left_out": ""}),
            "fewer-words": ("1,024 hashes instead of 4,096", {"size": 1024}),
            "no-average": NO_AVERAGE,
        },
    ),
    "mnist-cnn": Row(
        "MNIST, end to end",
        3.0,
        "small network, tanh, averaged weights",
        mnist_cnn,
        "98.1 (E)",
        2,
        {
            "relu": ("relu instead of tanh", {"activation": "relu"}),
            "no-average": NO_AVERAGE,
        },
    ),
    "cifar-cnn": Row(
        "CIFAR-10 (JPEG), end to end",
        8.0,
        "small network, tanh, averaged weights",
        cifar_cnn,
        "81.4 (D)",
        0,
        {
            "longer": (
                "samples of 4,096, 25 epochs",
                {"batch": 4096, "epochs": 25},
            ),
        },
    ),
}


def row_and_part(name: str) -> tuple[Row, str, Training]:
    """Returns the row of a name, its part, and what it trains."""
    base, _, part = name.partition(":")
    row = ROWS[base]
    changed: dict[str, Any] = {}
    if part not in ("", "plain", "default"):
        changed = row.parts[part][1]
    training = row.make(**changed)
    if part == "default":
        training = training._replace(settings={"optimizer": "adam"})
    return row, part, training


def held_out(training: Training) -> Training:
    """Returns a training whose test is a sixth of the training data."""
    x, y = training.train
    order = np.random.default_rng(0).permutation(len(x))
    kept, rest = order[len(x) // 6 :], order[: len(x) // 6]
    return training._replace(train=(x[kept], y[kept]), test=(x[rest], y[rest]))


def compiled(training: Training) -> dict[str, Any]:
    """Returns loss and metric: one output says yes or no, several a class."""
    if training.train[1].ndim > 1:
        loss: Any = keras.losses.BinaryCrossentropy(from_logits=True)
        metric: Any = keras.metrics.BinaryAccuracy("accuracy", threshold=0.0)
    else:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        metric = "accuracy"
    return {"loss": loss, "metrics": [metric]}


def train_plainly(training: Training) -> dict[str, Any]:
    """Returns what the model learns without privacy."""
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="plain")
    train, test = training.adapt(ledger, training.train, training.test)
    model = training.model()
    model.compile("adam", **compiled(training))
    model.fit(*train, epochs=PLAIN_EPOCHS, batch_size=PLAIN_BATCH, verbose=0)
    found = model.evaluate(*test, batch_size=1000, verbose=0)
    return {"accuracy": found[1]}


def train_privately(
    training: Training, epsilon: float, path: Path
) -> dict[str, Any]:
    """Returns the accuracy of a training, and the certificate of its ledger."""
    settings = dict(training.settings)
    if settings.get("batch_size", 0) is None:
        settings["batch_size"] = len(training.train[0])
    with keras_dp.PrivacyLedger.open(
        path, dataset=path.stem, unit="example"
    ) as ledger:
        train, test = training.adapt(ledger, training.train, training.test)
        private = keras_dp.make_private(
            training.model(),
            train,
            ledger=ledger,
            target_epsilon=epsilon,
            delta=DELTA,
            **settings,
            **compiled(training),
        )
        private.fit(verbose=0)
        found = private.evaluate(*test, batch_size=1000, verbose=0)
        certificate = certify(ledger, delta=DELTA)
    return {
        "accuracy": found[1],
        "epsilon": certificate.epsilon,
        "delta": certificate.delta,
        "neighbours": certificate.neighbours,
        "rounds": certificate.rounds,
        "seal": certificate.seal_hash,
    }


def run(name: str, count: int, results: Path, *, is_choice: bool) -> None:
    """Runs the trainings of a row that are missing, and prints each."""
    file = file_of(name, results)
    done = 0 if is_choice else len(lines_of(file))
    if done >= count:
        return
    row, part, training = row_and_part(name)
    if is_choice:
        training = held_out(training)
    for number in range(done, count):
        keras.utils.set_random_seed(number)
        start = time.perf_counter()
        if part == "plain":
            found = train_plainly(training)
        elif is_choice:
            with tempfile.TemporaryDirectory() as scratch:
                path = Path(scratch) / "choice.ledger"
                found = train_privately(training, row.epsilon, path)
        else:
            results.mkdir(parents=True, exist_ok=True)
            path = results / f"{file.stem}-{number}-{int(time.time())}.ledger"
            found = train_privately(training, row.epsilon, path)
        found["seconds"] = round(time.perf_counter() - start, 1)
        gc.collect()  # Else the inputs of all trainings would be kept.
        text = json.dumps({"name": name, "training": number, **found})
        print(text, flush=True)
        if not is_choice:
            with file.open("a") as appended:
                appended.write(text + "\n")


def lines_of(file: Path) -> list[dict[str, Any]]:
    """Returns the trainings in a file, none if there is no file."""
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def file_of(name: str, results: Path) -> Path:
    """Returns where the trainings of a row are kept."""
    return results / f"{name.replace(':', '-')}.jsonl"


def percent(found: list[dict[str, Any]]) -> str:
    """Returns the mean accuracy, and the deviation of several trainings."""
    if not found:
        return ""
    accuracies = [100 * each["accuracy"] for each in found]
    mean = f"{statistics.fmean(accuracies):.2f}"
    if len(accuracies) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(accuracies):.2f}"


def board(results: Path) -> list[str]:
    """Returns the table of all rows that were measured."""
    lines = [
        "| Row | Task | ε | Technique | Accuracy % | By default % "
        "| Without privacy % | Published % | Seconds | Certified ε | Seals |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in ROWS.items():
        found = lines_of(file_of(name, results))
        if not found:
            continue
        default, plain = (
            percent(lines_of(file_of(f"{name}:{part}", results)))
            for part in ("default", "plain")
        )
        seals = " ".join(each["seal"][:6] for each in found)
        seconds = statistics.fmean(each["seconds"] for each in found)
        certified = max(each["epsilon"] for each in found)
        lines.append(
            f"| `{name}` | {row.task} | {row.epsilon:g} | {row.technique} "
            f"| **{percent(found)}** | {default} | {plain} "
            f"| {row.published} | {seconds:.0f} | {certified:.4f} | {seals} |"
        )
    missing = [
        f"`{name}` ({row.published})"
        for name, row in ROWS.items()
        if not file_of(name, results).exists()
    ]
    if missing:
        lines += ["", "Not measured yet, beside what is published:", ""]
        lines += [f"- {each}" for each in missing]
    return lines


def parts(results: Path) -> list[str]:
    """Returns the table of rows of which one part was changed."""
    lines = [
        "| Row | Changed | Accuracy % | Points | Trainings |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in ROWS.items():
        whole = lines_of(file_of(name, results))
        for part, (says, _) in row.parts.items():
            found = lines_of(file_of(f"{name}:{part}", results))
            if not found or not whole:
                continue
            before, after = (
                100 * statistics.fmean(each["accuracy"] for each in all_found)
                for all_found in (whole, found)
            )
            lines.append(
                f"| `{name}:{part}` | {says} | {percent(found)} "
                f"| {after - before:+.2f} | {len(found)} |"
            )
    return lines


def rendered(page: str, results: Path) -> str:
    """Returns the page with its tables as the results say."""
    for name, lines in (("board", board(results)), ("parts", parts(results))):
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
        before, rest = page.split(begin)
        after = rest.split(end)[1]
        text = "\n".join(lines)
        page = f"{before}{begin}{text}\n{end}{after}"
    return page


def main() -> None:
    """Runs rows, or renders the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--trainings", type=int, default=5)
    parser.add_argument("--results", type=Path, default=Path("out/accuracy"))
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    for name in options.names:
        run(
            name,
            options.trainings,
            options.results,
            is_choice=options.held_out,
        )
    if options.page:
        PAGE.write_text(rendered(PAGE.read_text(), options.results))


if __name__ == "__main__":
    main()
