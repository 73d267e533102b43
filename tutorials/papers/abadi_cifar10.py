"""Abadi et al. 2016 on CIFAR-10, as far as a part of the data allows.

    python tutorials/papers/abadi_cifar10.py --data cifar10_subset.npz [--quick]

Section 5.3 of arXiv:1607.00133v2: convolutional layers are trained on public
images, CIFAR-100, and kept. Two layers of 384 ReLU units above them are trained
on CIFAR-10, on lots of 4 or 8 % of the images, with gradients clipped at 3. The
paper reaches 67 %, 70 % and 73 % at epsilon 2, 4 and 8, delta 1e-5, and 80 %
without privacy.

Here the private images are a part of CIFAR-10, and the public ones are
Fashion-MNIST, `fashion_mnist.npz` beside them: grey pictures of clothes, which
tell less of frogs and ships than CIFAR-100 does. All are cropped to 24 x 24
pixels. As in `abadi_mnist.py` the epsilon of the paper is the true one.

* "paper's settings": as above, in 80 epochs, with our learning rate. Features
  of each image are scaled to one length.
* "tuned": one linear layer above the same features, with larger samples and
  averaged weights.
* "without privacy": the layers of the paper, by Adam, in 8 epochs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
from abadi_mnist import DELTA, Result, train_to_target
from common import (
    QUICK_RECORDS,
    Images,
    draw_bars,
    print_table,
    read_options,
)

import keras_dp

SIDE, UNITS, CLASSES = 24, 384, 10
PUBLIC_RECORDS = 30_000


class Target(NamedTuple):
    """What the paper states for one budget.

    Attributes:
        epsilon: Of the paper, and the true one here.
        stated: Test accuracy in the paper.
        lot: The share of the images that a lot holds.
    """

    epsilon: float
    stated: float
    lot: float


TARGETS = (
    Target(2.0, 0.67, 0.04),
    Target(4.0, 0.70, 0.08),
    Target(8.0, 0.73, 0.08),
)


def load(path: Path, splits: Sequence[str], count: int | None) -> list[Images]:
    """Returns images `[n, 24, 24, 3]` with pixels in [-1, 1], and labels."""
    found = []
    with np.load(path) as file:
        for split in splits:
            images = file[f"x_{split}"][:count]
            edge = (images.shape[1] - SIDE) // 2
            images = images[:, edge : edge + SIDE, edge : edge + SIDE]
            if images.ndim == 3:  # Grey.
                images = np.repeat(images[..., np.newaxis], 3, axis=-1)
            labels = file[f"y_{split}"][:count].astype(np.int32)
            found.append(Images(images.astype(np.float32) / 127.5 - 1, labels))
    return found


def loss() -> keras.losses.Loss:
    """Returns the loss of all trainings."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def public_features(public: Images) -> keras.Model:
    """Returns the convolutional layers, trained on public images."""
    layers = keras.layers
    features = keras.Sequential(
        [
            keras.Input((SIDE, SIDE, 3)),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
        ]
    )
    whole = keras.Sequential(
        [
            features,
            layers.Dense(UNITS, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )
    whole.compile(keras.optimizers.Adam(1e-3), loss())
    whole.fit(*public, batch_size=128, epochs=1, verbose=0)
    return features


def head(inputs: int, *units: int) -> keras.Model:
    """Returns ReLU layers of so many units, and one of the classes."""
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            *(keras.layers.Dense(each, activation="relu") for each in units),
            keras.layers.Dense(CLASSES),
        ]
    )


def scaled(features: np.ndarray) -> np.ndarray:
    """Returns features `[n, d]` of mean 0 and length 10, each by itself."""
    centred = features - features.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return 10 * centred / np.maximum(lengths, 1e-6)


def train_as_paper(
    train: Images, test: Images, target: Target, epochs: int
) -> Result:
    """Returns what two layers of 384 units reach."""
    return train_to_target(
        head(train.x.shape[1], UNITS, UNITS),
        train,
        test,
        keras_dp.PrivacyLedger.in_memory(dataset="cifar10"),
        target,
        epochs=epochs,
        batch_size=round(target.lot * len(train.x)),
        l2_norm_clip=3.0,
        optimizer=keras.optimizers.SGD(0.1),
    )


def train_tuned(
    train: Images, test: Images, target: Target, epochs: int
) -> Result:
    """Returns what one linear layer reaches at the same epsilon.

    Noise has 23,050 coordinates, not 1,036,810, and gradients are bounded by
    the length of the features.
    """
    return train_to_target(
        head(train.x.shape[1]),
        train,
        test,
        keras_dp.PrivacyLedger.in_memory(dataset="cifar10"),
        target,
        epochs=epochs,
        batch_size=len(train.x) // 4,
        l2_norm_clip=1.0,
        optimizer=keras.optimizers.SGD(
            2.0, momentum=0.9, use_ema=True, ema_momentum=0.95
        ),
    )


def train_without_privacy(train: Images, test: Images, epochs: int) -> float:
    """Returns the accuracy of the paper's layers without clip and noise."""
    model = head(train.x.shape[1], UNITS, UNITS)
    model.compile(keras.optimizers.Adam(1e-3), loss(), metrics=["accuracy"])
    model.fit(*train, batch_size=128, epochs=epochs, verbose=0)
    return model.evaluate(*test, batch_size=1000, verbose=0)[1]


def main() -> None:
    """Prints one line for each budget and each of the two settings."""
    options = read_options(__doc__, "cifar10_subset.npz")
    if options.data is None:
        raise SystemExit(
            "CIFAR-10 is missing: pass --data cifar10_subset.npz, or name a "
            "folder that has it in $KERAS_DP_DATA."
        )
    quick = options.quick
    count = QUICK_RECORDS if quick else None
    (public,) = load(
        options.data.with_name("fashion_mnist.npz"),
        ["train"],
        count or PUBLIC_RECORDS,
    )
    features = public_features(public)
    train, test = (
        Images(scaled(features.predict(x, batch_size=500, verbose=0)), y)
        for x, y in load(options.data, ["train", "test"], count)
    )
    accuracy = train_without_privacy(train, test, 1 if quick else 8)
    print(f"Without privacy: {accuracy:.2%}", flush=True)
    rows, bars = [], {}
    bars["without privacy"] = {
        "stated": 80.0,
        "paper's settings": 100 * accuracy,
    }
    for target in TARGETS[-1:] if quick else TARGETS:
        of_target = bars[f"epsilon {target.epsilon:g}"] = {
            "stated": 100 * target.stated
        }
        for name, run, epochs in (
            ("paper's settings", train_as_paper, 80),
            ("tuned", train_tuned, 60),
        ):
            result = run(train, test, target, 1 if quick else epochs)
            of_target[name] = 100 * result.accuracy
            rows.append(
                (
                    f"{target.stated:.0%} at {target.epsilon:g}",
                    name,
                    f"{result.accuracy:.2%}",
                    f"{result.epsilon:.4f}",
                    f"{result.noise_multiplier:.3f}",
                    f"{result.seconds:.0f}",
                )
            )
            print(*rows[-1], sep="  ", flush=True)
    print()
    print_table(
        (
            "stated (paper)",
            "ours",
            "accuracy",
            "true epsilon",
            "noise",
            "seconds",
        ),
        rows,
    )
    print(f"delta = {DELTA:g}; add or remove one image; one run of each.")
    draw_bars(
        bars,
        "test accuracy, %",
        f"CIFAR-10, {len(train.x):,} images; stated: 50,000 and CIFAR-100",
        options.out / "abadi_cifar10.png",
    )


if __name__ == "__main__":
    main()
