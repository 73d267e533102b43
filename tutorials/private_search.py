"""Learning rate, clip and batch of a private training, chosen privately.

    python tutorials/private_search.py [--out out/private_search] [--epochs 20]

The network of `adult_income.py` on the UCI Adult census data. About a fifth of
the training records scores each trial, with noise; the others train. The number
of trials is drawn and stays secret, the best model is kept, and one row of the
ledger covers all of it. The test set is public here: it only says how good the
result is, and chooses nothing.

What is printed at the end: the epsilon of the search, beside that of one trial
and of as many trials as there are on average, if all of them were seen.
"""

import argparse
from pathlib import Path
from typing import Any

import keras
import numpy as np
from adult_income import (
    Records,
    load,
    loss_and_metrics,
    make_model,
    new_folder,
)

import keras_dp
from keras_dp.ledger import TruncatedNegativeBinomial
from keras_dp.reporting import make_report
from keras_dp.tuning import Choice, LogUniform, PrivateScore, PrivateSearch

TARGET_EPSILON = 3.0
# The noise on the number of people whose income was guessed right.
SCORE_NOISE = 20.0
SPACE = {
    "learning_rate": LogUniform(0.01, 30.0),
    "l2_norm_clip": LogUniform(0.03, 3.0),
    "batch_size": Choice([512, 1024, 2048]),
}


# The columns of `adult_income.load`.
FEATURES = 137


def build(settings: dict[str, Any]) -> keras.Model:
    """Returns the network; `PrivateSearch` sets rate, clip and batch."""
    del settings
    model = make_model(FEATURES)
    model.compile(keras.optimizers.SGD(1.0, momentum=0.9), **loss_and_metrics())
    return model


def guessed_right(y: Any, outputs: Any) -> np.ndarray:
    """Returns for each person whether the guess is right: 1 or 0."""
    return np.asarray((np.asarray(outputs) > 0) == (np.asarray(y) > 0))[:, 0]


def divided(records: Records) -> tuple[Records, Records]:
    """Returns about four fifths to train on, and the others to score with.

    A coin of its own decides on each person. An order would not do: without one
    person, others would change places.
    """
    scoring = np.random.default_rng().random(len(records.x)) < 0.2
    return (
        Records(records.x[~scoring], records.y[~scoring]),
        Records(records.x[scoring], records.y[scoring]),
    )


def accuracy(model: keras.Model, test: Records) -> float:
    """Returns the share of the test set whose income is guessed right."""
    outputs = model.predict(test.x, batch_size=4096, verbose=0)
    return float(guessed_right(test.y, outputs).mean())


def main() -> None:
    """Searches, and prints what it found and what it cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/private_search"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--trials", type=float, default=10, help="on average")
    options = parser.parse_args()
    train, test = load("train"), load("test")
    training, scoring = divided(train)
    path = new_folder(options.out) / "adult.ledger"

    with keras_dp.PrivacyLedger.open(
        path, dataset="uci-adult-1994", unit="person"
    ) as ledger:
        search = PrivateSearch(
            build,
            SPACE,
            training,
            PrivateScore(scoring, guessed_right, noise_multiplier=SCORE_NOISE),
            law=TruncatedNegativeBinomial(shape=1, mean=options.trials),
            target_epsilon=TARGET_EPSILON,
            epochs=options.epochs,
            ledger=ledger,
        )
        found = search.run()
        cost = search.cost
        print(f"\nepsilon at delta = {search.target.delta:g}:")
        print(f"  {cost.search:.4f}  the search")
        print(f"  {cost.one_trial:.4f}  one trial")
        print(f"  {cost.composed:.4f}  {options.trials:g} trials that are seen")
        if found is not None:
            print(
                f"Accuracy on the test set: {accuracy(found.model, test):.2%}"
            )
        report = make_report(ledger, delta=search.target.delta)
        print(f"\n{report}")
    print(f"\nLedger: {path}")


if __name__ == "__main__":
    main()
