"""A private income classifier on census data, from the first step to the bill.

Trains a small network on the UCI Adult census data (1994 US census extract,
48,842 people) with differential privacy for each person, then trains the same
network without it, and reports the accuracy of both, what the ledger holds,
and what was spent by every accountant.

    python tutorials/adult_income.py [--out out/adult_income] [--epochs 20]

What is public here: the list of categories, the edges of the bins (round
numbers), the number of training records, and everything typed below.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import keras
import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

import keras_dp
from keras_dp.reporting import make_report

DATA = Path(__file__).resolve().parent.parent / "data" / "adult.npz"
EXPECTED_BATCH = 1024
TARGET_EPSILON = 2.9
# Public ranges of the numeric columns that enter as they are.
LINEAR = {"age": 90.0, "education-num": 16.0, "hours-per-week": 99.0}
BINS = {
    "age": [20, 25, 30, 35, 40, 45, 50, 55, 60, 65, 70],
    "capital-gain": [1, 3000, 5000, 7000, 10_000, 20_000],
    "capital-loss": [1, 1500, 2000, 2500],
    "hours-per-week": [20, 30, 36, 40, 41, 50, 60],
}


class Records(NamedTuple):
    """Features `[n, 131]` and whether the income exceeds 50,000 dollars."""

    x: np.ndarray
    y: np.ndarray


class Trained(NamedTuple):
    """A finished private training."""

    history: dict[str, list[float]]
    delta: float
    seconds: float


def load(split: str) -> Records:
    """Returns the records of `"train"` or `"test"`, encoded."""
    with np.load(DATA) as file:
        numeric = dict(
            zip(file["num_names"], file[f"x_num_{split}"].T, strict=True)
        )
        sizes, codes = file["cat_sizes"], file[f"x_cat_{split}"].T
        labels = file[f"y_{split}"].astype(np.float32)[:, np.newaxis]
    columns = [
        numeric[name][:, np.newaxis] / high for name, high in LINEAR.items()
    ]
    for name, edges in BINS.items():
        bins = np.digitize(numeric[name], edges)
        columns.append(np.eye(len(edges) + 1)[bins])
    for size, code in zip(sizes, codes, strict=True):
        columns.append(np.eye(size)[code])
    return Records(np.concatenate(columns, 1).astype(np.float32), labels)


def make_model(features: int) -> keras.Model:
    """Returns the network, new."""
    return keras.Sequential(
        [
            keras.Input((features,)),
            keras.layers.Dense(32, activation="tanh"),
            keras.layers.Dense(1),
        ],
        name="income",
    )


def loss_and_metrics() -> dict[str, object]:
    """Returns what both trainings are compiled with."""
    accuracy = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
    return {
        "loss": keras.losses.BinaryCrossentropy(from_logits=True),
        "metrics": [accuracy],
    }


def train_privately(
    train: Records, test: Records, ledger: keras_dp.PrivacyLedger, epochs: int
) -> Trained:
    """Trains a private model, and returns what came out."""
    private = keras_dp.make_private(
        make_model(train.x.shape[1]),
        train,
        ledger=ledger,
        target_epsilon=TARGET_EPSILON,
        epochs=epochs,
        batch_size=EXPECTED_BATCH,
        optimizer=keras.optimizers.SGD(
            1.0, momentum=0.9, use_ema=True, ema_momentum=0.98
        ),
        **loss_and_metrics(),
    )
    start = time.perf_counter()
    history = private.fit(
        epochs=epochs, validation_data=test, validation_batch_size=4096
    ).history
    seconds = time.perf_counter() - start
    history["final"] = private.evaluate(*test, batch_size=4096, verbose=0)
    return Trained(history, private.settings.target.delta, seconds)


def train_without_privacy(train: Records, test: Records, epochs: int) -> float:
    """Returns the test accuracy of the same network without privacy.

    Without noise, half the epochs do: more would add little.
    """
    model = make_model(train.x.shape[1])
    model.compile(keras.optimizers.Adam(4e-3), **loss_and_metrics())
    batch, half = EXPECTED_BATCH, -(-epochs // 2)
    model.fit(*train, batch_size=batch, epochs=half, verbose=0)
    accuracy: float = model.evaluate(*test, batch_size=4096, verbose=0)[1]
    return accuracy


def plot(
    history: dict[str, list[float]], ordinary: float, majority: float, to: Path
) -> None:
    """Draws accuracy and epsilon over epochs."""
    epochs = np.arange(1, len(history["epsilon"]) + 1)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot(epochs, history["val_accuracy"], "C0o-", label="private")
    axes.axhline(ordinary, color="C2", ls="--", label="without privacy")
    axes.axhline(majority, color="gray", ls=":", label="majority class")
    axes.set(xlabel="epoch", ylabel="test accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    right = axes.twinx()
    right.plot(epochs, history["epsilon"], "C3s-", ms=3, label="epsilon")
    right.set_ylabel("epsilon spent", color="C3")
    right.set_ylim(bottom=0)
    lines = [*axes.get_lines(), *right.get_lines()]
    axes.legend(
        lines, [str(line.get_label()) for line in lines], loc="center right"
    )
    axes.set_title("Income from census data, differentially private")
    figure.savefig(to, dpi=150)
    plt.close(figure)


def new_folder(parent: Path) -> Path:
    """Returns a folder of its own for this run: ledgers are never erased."""
    number = 1 + len(list(parent.glob("run-*")))
    folder = parent / f"run-{number:03d}"
    folder.mkdir(parents=True)
    return folder


def main() -> None:
    """Trains, and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/adult_income"))
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    train, test = load("train"), load("test")
    folder = new_folder(options.out)
    path = folder / "adult.ledger"

    with keras_dp.PrivacyLedger.open(
        path, dataset="uci-adult-1994", unit="person"
    ) as ledger:
        private = train_privately(train, test, ledger, options.epochs)
        ordinary = train_without_privacy(train, test, options.epochs)
        majority = float(1 - test.y.mean())
        picture = folder / "accuracy_and_epsilon.png"
        plot(private.history, ordinary, majority, picture)

        print(
            f"\nTrained in {private.seconds:.0f} s. Accuracy on the test set:"
        )
        print(f"  {private.history['final'][1]:.2%}  private")
        print(f"  {ordinary:.2%}  the same network without privacy")
        print(f"  {majority:.2%}  always the majority class\n")
        report = make_report(ledger, delta=private.delta)
        print(report)
    print(f"\nLedger: {path}\nPlot:   {picture}")
    print(f"Replay: keras-dp report {path} --delta {private.delta!r}")


if __name__ == "__main__":
    main()
