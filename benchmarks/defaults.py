"""The default settings of `make_private`, beside a random search.

    python benchmarks/defaults.py search --out rows.jsonl --tasks adult sms
        [--epsilons 1 3 8] [--settings 40]
    python benchmarks/defaults.py confirm --out rows.jsonl [--seeds 3]

The model, the loss and the optimizer are those of the script (`TASKS` of
`first_run.py`). A setting is a learning rate, a clip, a batch size and a number
of epochs, all drawn at random. The search trains on four fifths of the training
data, and keeps the setting that is best on the rest, by the last or by the
averaged weights. To be fast, it has no ledger: the gradients, the clip, the
noise and the update are those of the library, in one loop of TensorFlow for
each batch size. `confirm` trains with the best setting by `make_private`, on
all of the training data, and with the defaults, and compares both on the test
set. A row that the file has already is not computed again.
"""

import argparse
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import first_run
import keras
import numpy as np
import tensorflow as tf

import keras_dp
from keras_dp.gradients import GradientEngine, example_losses
from keras_dp.keras_internals import compiled_loss_of
from keras_dp.planning import calibrate_noise
from keras_dp.recipes.learning_rate import chosen_rate, trained_weights
from keras_dp.sampling.draw import default_physical_batch_size

CLIPS = (0.03, 0.1, 0.3, 1.0, 3.0, "automatic")
EPOCHS = (0.5, 1, 2, 3, 5)
# The largest factor of the rate that `make_private` would choose.
FARTHEST = 5.0
GAMMA = 0.01
# Tasks whose metric is an error.
ERRORS = ("autoencoder", "recommender", "waves", "time_series", "vae")
# Of the training data, to choose on.
HELD_OUT = 0.2
# A training of the search takes at most so many rounds.
MOST_ROUNDS = 6_000


class Trainer:
    """Trains one model again and again, at any setting."""

    def __init__(self, task: str) -> None:
        """Builds the model, and splits its training data."""
        of = first_run.TASKS[task]
        x, y, *_ = of.data()
        rows = len(keras.tree.flatten(y)[0])
        kept = rows - round(HELD_OUT * rows)
        keras.utils.set_random_seed(0)
        self.model = of.model(x)
        self.script = of.model(x).optimizer
        self.x, self.y = first_run.rows_of((x, y), slice(kept))
        self.held_out = first_run.rows_of((x, y), slice(kept, None))
        self.records, self.epochs = kept, of.epochs
        self._start = self.model.get_weights()
        self._loops: dict[int, Any] = {}
        self._score()  # Builds the loss.

    def settings(self, epsilon: float, seed: int) -> dict[str, Any] | None:
        """Returns a setting that is drawn, `None` if it is too long."""
        draw = np.random.default_rng([int(10 * epsilon), seed])
        least = 5
        most = int(math.log2(self.records))
        batch = 2 ** int(draw.integers(least, most + 1))
        clip = CLIPS[draw.integers(len(CLIPS))]
        epochs = EPOCHS[draw.integers(len(EPOCHS))] * self.epochs
        factor = FARTHEST ** draw.uniform(-1, 1)
        epochs = max(1, round(epochs))
        if epochs * round(self.records / batch) > MOST_ROUNDS:
            return None
        return {
            "batch_size": batch,
            "l2_norm_clip": clip,
            "epochs": epochs,
            "factor": float(f"{factor:.2g}"),
        }

    def train(self, epsilon: float, setting: dict[str, Any]) -> dict[str, Any]:
        """Returns what the last and the averaged weights give, and the rate."""
        start = time.perf_counter()
        size = setting["batch_size"]
        probability = size / self.records
        rounds = setting["epochs"] * max(1, round(1 / probability))
        noise = calibrate_noise(
            target_epsilon=epsilon,
            delta=self.records**-1.1,
            sampling_probability=probability,
            rounds=rounds,
        )
        clip, gamma = setting["l2_norm_clip"], 0.0
        if clip == "automatic":
            clip, gamma = 1.0, GAMMA
        query = keras_dp.GaussianAverageQuery(
            clip, noise_multiplier=noise, denominator=size
        )
        chosen = chosen_rate(
            self.script,
            query,
            rounds,
            trained_weights(self.model),
            self.model.loss,
        )
        rate = chosen.rate * setting["factor"]
        if size not in self._loops:
            self._loops[size] = self._loop(size)
        run, optimizer, averages, first = self._loops[size]
        self.model.set_weights(self._start)
        for variable, value in first:
            variable.assign(value)
        optimizer.learning_rate.assign(rate)
        for average in averages:
            average.assign(tf.zeros_like(average))
        run(rounds, clip, gamma, clip * noise)
        last = self._score()
        for weight, average in zip(
            self.model.trainable_variables, averages, strict=True
        ):
            weight.assign(average)
        return {
            "last": last,
            "averaged": self._score(),
            "rate": float(rate),
            "rounds": rounds,
            "noise": noise,
            "seconds": time.perf_counter() - start,
        }

    def _score(self) -> float:
        values = self.model.evaluate(*self.held_out, 2000, verbose=0)
        return float(np.ravel(values)[-1])

    def _loop(self, size: int) -> tuple[Any, ...]:
        """Returns the compiled training with one batch size, and its state."""
        probability = size / self.records
        rows = default_physical_batch_size(self.records, probability)
        engine = GradientEngine(self.model)
        optimizer = type(self.script).from_config(self.script.get_config())
        weights = self.model.trainable_variables
        optimizer.build(weights)
        first = [(each, each.numpy()) for each in optimizer.variables]
        averages = [tf.Variable(tf.zeros_like(w.value)) for w in weights]
        data = keras.tree.map_structure(tf.constant, (self.x, self.y))

        def one(number: Any, rounds: Any, clip: Any, gamma: Any, stddev: Any):
            drawn = (
                tf.random.stateless_uniform([self.records], [number, 0])
                < probability
            )
            index = tf.where(drawn)[:rows, 0]
            present = tf.range(rows) < tf.shape(index)[0]
            index = tf.pad(index, [[0, rows - tf.shape(index)[0]]])
            index = tf.ensure_shape(index, [rows])
            inputs, targets = keras.tree.map_structure(
                lambda each: tf.gather(each, index), data
            )

            def losses_of(outputs: Any) -> Any:
                return example_losses(
                    compiled_loss_of(self.model), targets, outputs, None, rows
                ).total

            with engine.computing():
                found = engine.gradients(inputs, losses_of, rows)
                norms = tf.sqrt(
                    tf.add_n([r.squared_norms() for r in found.records])
                )
                factor = tf.where(
                    gamma > 0,
                    clip / (norms + gamma),
                    tf.minimum(1.0, clip / tf.maximum(norms, 1e-12)),
                )
                factor = tf.where(present, factor, 0.0)
                sums = [r.weighted_sum(factor) for r in found.records]
            answers = [
                (
                    each
                    + stddev
                    * tf.random.stateless_normal(
                        tf.shape(each), [number, place]
                    )
                )
                / size
                for place, each in enumerate(sums, 1)
            ]
            optimizer.apply(answers)
            decay = tf.maximum(0.0, 1 - 10 / tf.cast(rounds, tf.float32))
            decay = tf.where(number == 0, 0.0, decay)
            for weight, average in zip(weights, averages, strict=True):
                average.assign(decay * average + (1 - decay) * weight.value)
            return number + 1, rounds, clip, gamma, stddev

        @tf.function(autograph=False)
        def run(rounds: Any, clip: Any, gamma: Any, stddev: Any) -> None:
            tf.while_loop(
                lambda number, rounds, *_: number < rounds,
                one,
                [0, rounds, clip, gamma, stddev],
            )

        def called(rounds: int, *numbers: float) -> None:
            run(
                tf.constant(rounds),
                *(tf.constant(each, tf.float32) for each in numbers),
            )

        return called, optimizer, averages, first


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _write(path: Path, row: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def search(options: argparse.Namespace) -> None:
    """Trains at settings that are drawn, and writes a row for each."""
    done = {
        (row["task"], row["epsilon"], row["seed"])
        for row in _rows(options.out)
        if row["kind"] == "search"
    }
    for task in options.tasks:
        trainer = Trainer(task)
        for epsilon in options.epsilons:
            found, seed = 0, -1
            while found < options.settings:
                seed += 1
                setting = trainer.settings(epsilon, seed)
                if setting is None:
                    continue
                found += 1
                if (task, epsilon, seed) in done:
                    continue
                key = {"task": task, "epsilon": epsilon, "seed": seed}
                result = trainer.train(epsilon, setting)
                _write(
                    options.out, {"kind": "search", **key, **setting, **result}
                )


def _best(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Returns the best row of a search, and which of its weights are best."""
    sign = -1 if rows[0]["task"].split("/")[-1] in ERRORS else 1
    pairs = [(row, name) for row in rows for name in ("last", "averaged")]
    return max(pairs, key=lambda pair: sign * pair[0][pair[1]])


def _trained(
    task: str,
    epsilon: float,
    seed: int,
    setting: dict[str, Any] | None,
    average: str | None = "auto",
) -> dict[str, Any]:
    """Returns what `make_private` gives, by default or with a setting."""
    options, factor = {"epochs": None}, None
    if setting is not None:
        options = {
            "batch_size": setting["batch_size"],
            "l2_norm_clip": setting["l2_norm_clip"],
            "epochs": setting["epochs"],
            "average": average,
            "learning_rate": setting["rate"],
        }
    return first_run.train(
        task,
        {
            "epsilon": epsilon,
            "factor": factor,
            "seed": seed,
            "options": options,
        },
    )


def confirm(options: argparse.Namespace) -> None:
    """Trains with the best settings and with the defaults, and prints both."""
    rows = _rows(options.out)
    done = {
        (row["task"], row["epsilon"], row["seed"], row["which"])
        for row in rows
        if row["kind"] == "confirm"
    }
    found = [row for row in rows if row["kind"] == "search"]
    for task, epsilon in sorted({(r["task"], r["epsilon"]) for r in found}):
        of = [r for r in found if (r["task"], r["epsilon"]) == (task, epsilon)]
        best, weights = _best(of)
        average = "auto" if weights == "averaged" else None
        for which, seed in itertools.product(
            ("default", "searched"), range(options.seeds)
        ):
            if (task, epsilon, seed, which) in done:
                continue
            setting = best if which == "searched" else None
            key = {"task": task, "epsilon": epsilon, "seed": seed}
            result = _trained(task, epsilon, seed, setting, average)
            _write(
                options.out,
                {"kind": "confirm", "which": which, **key, **result},
            )
    rows = [row for row in _rows(options.out) if row["kind"] == "confirm"]
    for task, epsilon in sorted({(r["task"], r["epsilon"]) for r in rows}):
        cells = [f"{task}, epsilon {epsilon:g}"]
        for which in ("default", "searched"):
            values = [
                r["metric"]
                for r in rows
                if (r["task"], r["epsilon"], r["which"])
                == (task, epsilon, which)
            ]
            cells.append(f"{np.mean(values):.4f} +- {np.std(values):.4f}")
        best, weights = _best(
            [r for r in found if (r["task"], r["epsilon"]) == (task, epsilon)]
        )
        cells.append(
            f"batch {best['batch_size']}, epochs {best['epochs']}, clip "
            f"{best['l2_norm_clip']}, rate {best['rate']:.3g}, {weights}"
        )
        print("| " + " | ".join(cells) + " |")


def main() -> None:
    """Does what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = {"search": search, "confirm": confirm}
    parser.add_argument("what", choices=commands)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tasks", nargs="+", choices=first_run.TASKS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1, 3, 8])
    parser.add_argument("--settings", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    commands[options.what](options)


if __name__ == "__main__":
    main()
