"""What a private vocabulary costs a filter of spam, at several noises.

    python benchmarks/vocabularies.py [--data sms_spam.csv.gz] [--draws 5]

Words are learned from 4,500 messages of the SMS Spam Collection, with and
without noise. A naive Bayes filter, which is itself not private, learns from
these messages by either vocabulary, and judges the others. So the difference is
that of the words alone. Without data, words are drawn by Zipf's law.
"""

import argparse
import csv
import gzip
import math
import os
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

from keras_dp.accountants import Fourier
from keras_dp.ledger import PrivacyLedger
from keras_dp.preprocessing import TextVectorization

DELTA, THRESHOLD_DELTA, MOST_KEYS = 1e-5, 1e-6, 20
NOISES = (2.5, 5.0, 10.0)
LEARNED_FROM = 4500


class Messages(NamedTuple):
    """Texts `[n]`, and whether each is spam, `[n]`."""

    texts: np.ndarray
    spam: np.ndarray


class Found(NamedTuple):
    """A vocabulary, and the filter that sees it alone.

    Attributes:
        words: Their number.
        right: The share of other messages on which the filter is right.
        epsilon: The cost of the vocabulary at `DELTA`, `inf` without noise.
    """

    words: int
    right: float
    epsilon: float


def load(path: Path) -> Messages:
    """Returns the messages in a random order that is always the same."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng(0).permutation(len(rows))
    return Messages(
        np.array([row["text"] for row in rows])[order],
        np.array([row["label"] == "spam" for row in rows])[order],
    )


def synthetic() -> Messages:
    """Returns messages of ten words; every fourth word of spam is its own."""
    generator = np.random.default_rng(0)
    words = generator.zipf(1.3, [5500, 10]) % 50_000
    spam = generator.random(5500) < 0.13
    own = spam[:, np.newaxis] & (generator.random(words.shape) < 0.25)
    named = np.char.add(np.where(own, "s", "w"), words.astype(str))
    texts = [" ".join(row) for row in named]
    return Messages(np.array(texts), spam)


def without_noise(messages: Messages) -> Found:
    """Returns the vocabulary that Keras adapts: every word is in it."""
    layer = keras.layers.TextVectorization(output_mode="multi_hot")
    layer.adapt(messages.texts[:LEARNED_FROM])
    return Found(
        layer.vocabulary_size() - 1, share_of_right(layer, messages), math.inf
    )


def with_noise(messages: Messages, noise_multiplier: float) -> Found:
    """Returns a private vocabulary of the same messages."""
    ledger = PrivacyLedger.in_memory(dataset="messages")
    layer = TextVectorization(
        noise_multiplier, THRESHOLD_DELTA, MOST_KEYS, output_mode="multi_hot"
    ).adapt(messages.texts[:LEARNED_FROM], ledger)
    return Found(
        layer.vocabulary_size() - 1,
        share_of_right(layer, messages),
        Fourier().epsilon(ledger, delta=DELTA),
    )


def share_of_right(layer: keras.Layer, messages: Messages) -> float:
    """Returns how often naive Bayes on the words of a layer is right."""
    texts, spam = messages
    parts = [layer(texts[i : i + 500]) for i in range(0, len(texts), 500)]
    words = np.concatenate(parts)
    known, labels = words[:LEARNED_FROM], spam[:LEARNED_FROM]
    ones, zeros = (
        (known[labels == label].sum(axis=0) + 1)
        / (np.count_nonzero(labels == label) + 2)
        for label in (True, False)
    )
    scores = words @ np.log(ones / zeros)
    scores += (1 - words) @ (np.log1p(-ones) - np.log1p(-zeros))
    scores += math.log(labels.mean() / (1 - labels.mean()))
    return float(((scores > 0) == spam)[LEARNED_FROM:].mean())


def main() -> None:
    """Prints a row for each noise, over some draws of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="sms_spam.csv.gz")
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    path = options.data
    if path is None and "KERAS_DP_DATA" in os.environ:
        path = Path(os.environ["KERAS_DP_DATA"]) / "sms_spam.csv.gz"
    messages = synthetic() if path is None else load(path)
    print("| Noise multiplier | epsilon | Words | Right (range) |")
    print("| --- | --- | --- | --- |")
    bare = without_noise(messages)
    print(f"| none | inf | {bare.words:,} | {bare.right:.1%} |")
    for noise_multiplier in NOISES:
        found = [
            with_noise(messages, noise_multiplier) for _ in range(options.draws)
        ]
        words = sorted(each.words for each in found)
        right = [each.right for each in found]
        print(
            f"| {noise_multiplier:g} | {found[0].epsilon:.4f} "
            f"| {words[0]:,} to {words[-1]:,} "
            f"| {np.mean(right):.1%} ({min(right):.1%} to {max(right):.1%}) |"
        )


if __name__ == "__main__":
    main()
