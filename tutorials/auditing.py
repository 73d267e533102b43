"""A training on census data that is audited: before it, in it, and after.

Checks a private classifier before it trains, trains it with phantom canaries,
prints the lower bound that they show beside the certified epsilon, and draws
how well the best attack tells the canaries apart: never better than the
ledger's curve allows.

    python tutorials/auditing.py [--out out/auditing] [--epochs 10]

It needs the module beside it, `adult_income.py`, which loads the embedded data.
"""

import argparse
from pathlib import Path
from typing import Any

import keras
import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import adult_income
import matplotlib.pyplot as plt

import keras_dp
from keras_dp.accountants import Fourier, trade_off
from keras_dp.auditing import OneRun, PhantomCanaries, check
from keras_dp.reporting import make_report

DELTA = 1e-5
TARGET_EPSILON = 3.0


class BoundsByEpoch(keras.callbacks.Callback):
    """Keeps the certified epsilon, and the lower bound, after each epoch."""

    def __init__(self, canaries: PhantomCanaries) -> None:
        super().__init__()
        self._canaries = canaries
        self.certified: list[float] = []
        self.lower: list[float] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Asks both."""
        ledger = self.model.optimizer.ledger
        self.certified.append(Fourier().epsilon(ledger, delta=DELTA))
        bound = OneRun().epsilon(self._canaries.scores, delta=DELTA)
        self.lower.append(bound.epsilon)


def plot(
    canaries: PhantomCanaries,
    bounds: BoundsByEpoch,
    ledger: keras_dp.PrivacyLedger,
    to: Path,
) -> None:
    """Draws the attack, the scores, and the bounds after each epoch."""
    scores = canaries.scores
    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")

    thresholds = np.sort(scores.outside)[::-1]
    rates = np.arange(1, len(thresholds) + 1) / len(thresholds)
    found = [(scores.inside > each).mean() for each in thresholds]
    x = np.logspace(-4, 0, 200)
    most = trade_off(ledger, accountant=Fourier())
    axes[0].plot(x, most.largest_true_positive_rate(x), "C3", label="ledger")
    axes[0].plot(rates, found, "C0", label="likelihood ratio")
    axes[0].plot(x, x, "k:", label="guessing")
    axes[0].set(xscale="log", yscale="log", xlim=(1e-4, 1), ylim=(1e-4, 1.05))
    axes[0].set(xlabel="false positive rate", ylabel="true positive rate")
    axes[0].set_title("Best attack on the canaries")

    bins = np.histogram_bin_edges(
        np.concatenate([scores.inside, scores.outside]), 60
    )
    axes[1].hist(scores.outside, bins, alpha=0.6, label="never took part")
    axes[1].hist(scores.inside, bins, alpha=0.6, label="took part")
    axes[1].set(xlabel="log likelihood ratio", ylabel="canaries")
    axes[1].set_title("Scores")

    epochs = np.arange(1, len(bounds.lower) + 1)
    axes[2].plot(epochs, bounds.certified, "C3s-", ms=3, label="certified")
    axes[2].plot(epochs, bounds.lower, "C0o-", ms=3, label="lower bound, 95 %")
    axes[2].set(xlabel="epoch", ylabel="epsilon", ylim=(0, None))
    axes[2].set_title(f"Epsilon at delta = {DELTA:g}")
    for each in axes:
        each.legend()
    figure.savefig(to, dpi=150)
    plt.close(figure)


def main() -> None:
    """Checks, trains, and prints what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/auditing"))
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--canaries", type=int, default=10_000)
    options = parser.parse_args()
    train, test = adult_income.load("train"), adult_income.load("test")
    folder = adult_income.new_folder(options.out)
    path = folder / "audited.ledger"

    with keras_dp.PrivacyLedger.open(
        path, dataset="uci-adult-1994", unit="person"
    ) as ledger:
        private = keras_dp.make_private(
            adult_income.make_model(train.x.shape[1]),
            train,
            ledger=ledger,
            target_epsilon=TARGET_EPSILON,
            delta=DELTA,
            epochs=options.epochs,
            batch_size=adult_income.EXPECTED_BATCH,
            optimizer=keras.optimizers.SGD(1.0, momentum=0.9),
            private_metrics={},
            **adult_income.loss_and_metrics(),
        )
        report = check(private, private.settings.samples)
        print(report)
        canaries = PhantomCanaries(m=options.canaries)
        bounds = BoundsByEpoch(canaries)
        private.fit(callbacks=[canaries, bounds])
        _, accuracy = private.evaluate(*test, batch_size=4096, verbose=0)
        print(f"\nAccuracy on the test set: {accuracy:.2%}")
        bound = OneRun().epsilon(canaries.scores, delta=DELTA)
        print(f"The canaries show epsilon >= {bound.epsilon:.4f}\n")
        print(make_report(ledger, delta=DELTA))
        picture = folder / "audit.png"
        plot(canaries, bounds, ledger, picture)
    print(f"\nLedger: {path}\nPlot:   {picture}")


if __name__ == "__main__":
    main()
