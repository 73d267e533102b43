"""Fine-tuning a text classifier by LoRA, privately.

    python tutorials/fine_tuning.py --data DIRECTORY [--epsilon 3]

A small GPT-2 of KerasHub, from its constructor, learns to guess the next word
of public film reviews. Then it is frozen. Thin matrices beside its attention
kernels (LoRA) and a classifier learn from private text messages which are spam.
Two other ways stand beside it: all weights trained, from public text and from
random numbers.

The data are `imdb_subset.csv.gz` and `sms_spam.csv.gz` in the directory: the
option, else `$KERAS_DP_DATA`. Without either, `--quick` writes census records
as sentences, which shows the steps and no result. KerasHub is the extra
`keras_dp[keras_hub]`.
"""

import argparse
import csv
import gzip
import os
import re
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import keras
import keras_hub
import numpy as np
from keras import ops

import keras_dp
from keras_dp.reporting import make_report

DELTA = 1e-5
# Tokens of a text, and how many different ones there are: words are hashed, so
# that no vocabulary is learned from private text.
LENGTH, WORDS = 48, 4096
PADDING, FIRST, OTHERS = 0, 1, 2
# Words of a public text that are guessed.
GUESSES = 12
TEST_SHARE = 0.2
ADULT = Path(__file__).resolve().parent.parent / "data" / "adult.npz"


class Texts(NamedTuple):
    """Tokens `[n, LENGTH]`, and labels `[n]`."""

    tokens: np.ndarray
    labels: np.ndarray


class Settings(NamedTuple):
    """How large and how long; a quick run shows the steps only."""

    layers: int = 2
    width: int = 128
    public_epochs: int = 4
    epochs: int = 16
    batch: int = 1024


class Way(NamedTuple):
    """Which weights learn from private text, and from where."""

    name: str
    from_public_text: bool
    rank: int | None
    learning_rate: float


WAYS = [
    Way("in full, from random weights", False, None, 2e-3),
    Way("in full, from public text", True, None, 2e-3),
    # Far fewer coordinates get noise: steps can be longer.
    Way("by LoRA, from public text", True, 8, 2e-2),
]
QUICK = Settings(layers=1, width=16, public_epochs=1, epochs=1, batch=200)


def tokens(texts: Iterable[str]) -> np.ndarray:
    """Returns the hashed words of each text; digits are alike."""

    def of_text(text: str) -> list[int]:
        words = re.findall(r"\w+|[^\w\s]", re.sub(r"\d", "0", text.lower()))
        hashed = [
            OTHERS + zlib.crc32(word.encode()) % (WORDS - OTHERS)
            for word in words[: LENGTH - 1]
        ]
        return [FIRST, *hashed, *[PADDING] * (LENGTH - 1 - len(hashed))]

    return np.array([of_text(text) for text in texts], np.int32)


def rows_of(path: Path) -> list[dict[str, str]]:
    """Returns the rows of a table."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def load(folder: Path | None) -> tuple[np.ndarray, Texts, Texts]:
    """Returns public tokens, and private ones to train on and to test on."""
    if folder is None:
        public, private, labels = census_sentences()
    else:
        reviews = [
            row["text"].replace("<br />", " ")
            for row in rows_of(folder / "imdb_subset.csv.gz")
            if row["split"] == "train"
        ]
        # A review is cut into pieces.
        public = [
            piece
            for review in reviews
            for piece in re.findall(r"(?:\S+\s*){1,40}", review)
        ]
        messages = rows_of(folder / "sms_spam.csv.gz")
        private = [row["text"] for row in messages]
        labels = np.array([row["label"] == "spam" for row in messages])
    order = np.random.default_rng(0).permutation(len(private))
    cut = int(len(private) * TEST_SHARE)
    both = Texts(tokens(private)[order], labels.astype(np.float32)[order])
    test, train = (
        Texts(*(part[rows] for part in both))
        for rows in (slice(cut), slice(cut, None))
    )
    return tokens(public), train, test


def census_sentences() -> tuple[list[str], list[str], np.ndarray]:
    """Returns census records as text: some public, others with a label."""
    with np.load(ADULT) as file:
        names, offsets = file["cat_values"], np.cumsum(file["cat_sizes"])
        offsets = np.concatenate([[0], offsets[:-1]])
        words = names[offsets + file["x_cat_train"][:3000]]
        labels = file["y_train"][1000:3000]
    texts = [" ".join(row) for row in words]
    return texts[:1000], texts[1000:], labels


def backbone(settings: Settings) -> keras.Model:
    """Returns a new GPT-2, small."""
    return keras_hub.models.GPT2Backbone(
        vocabulary_size=WORDS,
        num_layers=settings.layers,
        num_heads=4,
        hidden_dim=settings.width,
        intermediate_dim=2 * settings.width,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )


def called_on(
    network: keras.Model, ids: keras.KerasTensor
) -> keras.KerasTensor:
    """Returns the network's output for each token, `[n, LENGTH, width]`."""
    mask = ops.cast(ids != PADDING, "int32")
    return network({"token_ids": ids, "padding_mask": mask})


def learn_language(
    network: keras.Model, public: np.ndarray, settings: Settings
) -> None:
    """Trains the network to guess the next word of public text."""
    generator = np.random.default_rng(0)
    places = generator.integers(0, LENGTH - 1, (len(public), GUESSES))
    places = places.astype(np.int32)
    following = np.take_along_axis(public, places + 1, axis=1)
    ids = keras.Input((LENGTH,), dtype="int32")
    where = keras.Input((GUESSES,), dtype="int32")
    read = ops.take_along_axis(
        called_on(network, ids), where[..., None], axis=1
    )
    guesses = network.token_embedding(read, reverse=True)
    model = keras.Model([ids, where], guesses)
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(
        [public, places],
        following,
        # Nothing is to be guessed after the end of a text.
        sample_weight=(following != PADDING).astype(np.float32),
        batch_size=128,
        epochs=settings.public_epochs,
        verbose=2,
    )


def classifier(network: keras.Model) -> keras.Model:
    """Returns a model from tokens to the logit of one label."""
    ids = keras.Input((LENGTH,), dtype="int32")
    hidden = called_on(network, ids)
    kept = ops.cast(ids != PADDING, hidden.dtype)[..., None]
    mean = ops.sum(hidden * kept, axis=1) / ops.sum(kept, axis=1)
    return keras.Model(ids, keras.layers.Dense(1)(mean))


def compile_options(learning_rate: float) -> dict[str, object]:
    """Returns what every training is compiled with."""
    return {
        "optimizer": keras.optimizers.Adam(learning_rate),
        "loss": keras.losses.BinaryCrossentropy(from_logits=True),
        "metrics": [
            keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0),
            keras.metrics.AUC(name="auc", from_logits=True),
        ],
    }


def trained_weights(model: keras.Model) -> int:
    """Returns how many coordinates get noise."""
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


def print_result(
    name: str, model: keras.Model, test: Texts, start: float
) -> None:
    """Prints a row of the table."""
    result = model.evaluate(*test, verbose=0, return_dict=True)
    print(
        f"| {name} | {trained_weights(model):,} | {result['accuracy']:.2%} "
        f"| {result['auc']:.4f} | {time.perf_counter() - start:.0f} |",
        flush=True,
    )


def train_privately(
    model: keras.Model,
    train: Texts,
    learning_rate: float,
    options: argparse.Namespace,
) -> str:
    """Trains what is trainable, and returns the report of the ledger."""
    model.compile(**compile_options(learning_rate))
    with keras_dp.PrivacyLedger.in_memory(dataset="messages") as ledger:
        private = keras_dp.make_private(
            model,
            train,
            ledger=ledger,
            target_epsilon=options.epsilon,
            delta=DELTA,
            epochs=options.settings.epochs,
            batch_size=options.settings.batch,
        )
        private.fit(epochs=options.settings.epochs, verbose=0)
        return str(make_report(ledger, delta=DELTA))


def main() -> None:
    """Prints one row per way to train, and the bill of the last."""
    options = read_options()
    public, train, test = load(options.data)
    keras.utils.set_random_seed(0)
    pretrained = backbone(options.settings)
    learn_language(pretrained, public, options.settings)
    weights = pretrained.get_weights()

    print("| Trained | Coordinates | Accuracy | AUC | Seconds |")
    print("| --- | --- | --- | --- | --- |")
    for way in WAYS:
        network = backbone(options.settings)
        if way.from_public_text:
            network.set_weights(weights)
        model = classifier(network)
        if way.rank is not None:
            network.enable_lora(way.rank)
        start = time.perf_counter()
        bill = train_privately(model, train, way.learning_rate, options)
        print_result(way.name, model, test, start)
    print(f"\nEach row alone costs what its ledger says; the last:\n\n{bill}")


def read_options() -> argparse.Namespace:
    """Returns the options, with the settings that they ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--data", type=Path, help="folder of both tables")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--quick", action="store_true", help="takes seconds")
    options = parser.parse_args()
    if options.data is None and "KERAS_DP_DATA" in os.environ:
        options.data = Path(os.environ["KERAS_DP_DATA"])
    if options.data is None and not options.quick:
        parser.error("--data must name the folder, or $KERAS_DP_DATA.")
    options.settings = QUICK if options.quick else Settings()
    return options


if __name__ == "__main__":
    main()
