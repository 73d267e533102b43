"""Three tools for practical differential privacy, as a workflow on MNIST.

    python tutorials/three_tools.py --data mnist.npz [--quick]

van der Veen et al. 2018, arXiv:1812.02890v1, choose the settings of a private
training without a look at the private data:

1. The budget: train on random images with random labels, which are public. A
   model that is private enough cannot say their labels better than by chance.
   The largest epsilon at which that holds is taken.
2. The clip: it follows the mean norm of the gradients of each layer, or a
   quantile of them. The first clip comes from random images.
3. The batch: the largest one, and the learning rate grows with it.

Epsilon is the true one of all tensors of a round together. The paper prices
each tensor as if it had a sample of its own, and so states 20 for what is 421.
The check of step 1 is a test of one model on one set: it can find that a budget
is too large, and never that one is small enough.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
from mechanisms import Task, loss, train
from papers.common import (
    draw_bars,
    load_mnist,
    print_table,
    read_options,
)

import keras_dp
from keras_dp import accountants
from keras_dp.dp_queries import (
    AdaptiveClipSumQuery,
    GaussianSumQuery,
    NestedQuery,
    NormalizedQuery,
    QuantileAdaptiveClipSumQuery,
)
from keras_dp.experimental.memorization import NoiseRecords
from keras_dp.ledger import GaussianSum, PoissonSampling, Round
from keras_dp.planning import calibrate_scale
from keras_dp.training import mean_gradient_norms

DELTA = 1e-5
FALSE_ALARM = 0.01
CLASSES = 10
LAYERS = {"hidden": "hidden", "head": "head"}


class Size(NamedTuple):
    """How much is trained, in full or for `--quick`.

    Attributes:
        budgets: That are checked, from none at all to a small one.
        noise_images: On which they are.
        noise_epochs: Of each check.
        epochs: Of each training on MNIST.
        batch: The smallest.
        largest_batch: The largest.
        rows: Of the tables of clips and of batches; None for all.
    """

    budgets: tuple[float, ...]
    noise_images: int
    noise_epochs: int
    epochs: int
    batch: int
    largest_batch: int
    rows: int | None = None


FULL = Size(
    (math.inf, 421.0, 100.0, 20.0, 8.0, 3.0, 1.0), 1000, 40, 3, 128, 2048
)
QUICK = Size((math.inf, 20.0), 200, 20, 1, 64, 256, rows=2)


def print_stated_and_true() -> None:
    """Prints the paper's epsilon, by its rule and in truth."""
    records, batch, epochs, noise, tensors = 50_000, 128, 60, 0.7225, 10
    delta = records**-1.1
    rounds = epochs * records // batch
    sampling = PoissonSampling(batch / records)
    sums = [GaussianSum(f"tensor {n}", 1.0, noise) for n in range(tensors)]
    by_rule = accountants.RDP(conversion="moments").epsilon(
        [(Round(sampling, (sums[0],)), tensors * rounds)], delta=delta
    )
    true = accountants.Fourier().epsilon(
        [(Round(sampling, tuple(sums)), rounds)], delta=delta
    )
    print(f"The paper states epsilon 20; its rule gives {by_rule:.2f}.")
    print(f"All ten tensors of a round together: {true:.1f} in truth.\n")


def make_network() -> keras.Model:
    """Returns a network that could learn all labels of the noise by heart."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(256, "tanh"),
            keras.layers.Dense(CLASSES),
        ]
    )


def predictions(noise: NoiseRecords, epsilon: float, epochs: int) -> Any:
    """Returns the labels that a model says which was trained on the noise.

    An infinite epsilon is ordinary training: the control that must be found.
    """
    network = make_network()
    data = noise.data
    compiled = {"loss": loss(), "metrics": ["accuracy"]}
    if math.isinf(epsilon):
        network.compile(keras.optimizers.Adam(2e-3), **compiled)
        network.fit(*data, batch_size=100, epochs=epochs, verbose=0)
    else:
        private = keras_dp.make_private(
            network,
            data,
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="noise"),
            target_epsilon=epsilon,
            delta=DELTA,
            epochs=epochs,
            batch_size=noise.count // 10,
            optimizer=keras.optimizers.Adam(2e-3),
            verbose=False,
            **compiled,
        )
        private.fit(verbose=0)
    return np.argmax(network.predict(data[0], verbose=0), axis=1)


def choose_epsilon(size: Size) -> float:
    """Returns the largest epsilon that passes the check."""
    noise = NoiseRecords(size.noise_images, classes=CLASSES)
    rows = []
    chosen = 0.0
    for epsilon in size.budgets:
        check = noise.check(predictions(noise, epsilon, size.noise_epochs))
        memorizes = check.pvalue < FALSE_ALARM
        rows.append(
            (
                "no privacy" if math.isinf(epsilon) else f"{epsilon:g}",
                f"{check.k} of {check.n}",
                f"{check.pvalue:.2g}",
                "memorizes" if memorizes else "passes",
            )
        )
        if not memorizes and not math.isinf(epsilon):
            chosen = max(chosen, epsilon)
    print_table(("epsilon", "random labels right", "p-value", "check"), rows)
    if not chosen:
        chosen = size.budgets[-1]
        print("None passes: the smallest is taken, and is still too large.")
    print(f"Taken: epsilon {chosen:g} (false alarms: {FALSE_ALARM:g}).\n")
    return chosen


def per_layer(
    layer: Callable[[float, float], Any],
    clips: dict[str, float],
    task: Task,
    epsilon: float,
    epochs: int,
) -> dict[str, Any]:
    """Returns a query for each layer, with noise for the budget.

    Args:
        layer: From a clip and a noise multiplier to the query of a layer.
        clips: The clip of each layer in the first round.
        task: The data and the expected batch.
        epsilon: For all rounds, and all that they release.
        epochs: How many are trained.
    """
    probability = task.batch / len(task.train[0])
    rounds = epochs * round(1 / probability)

    def query(scale: float) -> NestedQuery:
        return NestedQuery(
            {
                name: NormalizedQuery(layer(clip, scale), task.batch)
                for name, clip in clips.items()
            }
        )

    def ledger(scale: float) -> list[tuple[Round, int]]:
        asked = query(scale)
        event = asked.planned_event(asked.initial_global_state())
        events = asked.ledger_events(event)
        return [(Round(PoissonSampling(probability), events), rounds)]

    scale = calibrate_scale(ledger, target_epsilon=epsilon, delta=DELTA)
    return {"query": query(scale), "groups": LAYERS}


def clipping_rows(
    task: Task, epsilon: float, size: Size
) -> list[tuple[str, str, float, float]]:
    """Returns what each way to clip reaches: name, stated, ours, epsilon."""
    noise = NoiseRecords(128, classes=CLASSES)
    first = mean_gradient_norms(
        task.make_model(), loss(), *noise.data, groups=LAYERS
    )
    expected = float(task.batch)

    def mean_norm(clip: float, scale: float) -> AdaptiveClipSumQuery:
        # The norms get 2.5 / 0.725 times the noise of gradients, as there.
        return AdaptiveClipSumQuery(
            clip, scale, 3.45 * scale, expected_num_records=expected
        )

    def median_norm(clip: float, scale: float) -> QuantileAdaptiveClipSumQuery:
        return QuantileAdaptiveClipSumQuery(
            clip,
            scale,
            target_unclipped_quantile=0.5,
            learning_rate=0.2,
            clipped_count_stddev=expected / 20,
            expected_num_records=expected,
        )

    def fixed(clip: float, scale: float) -> GaussianSumQuery:
        return GaussianSumQuery(clip, scale * clip)

    ways = (
        ("clip 2 in each layer", "61.6 %", fixed, dict.fromkeys(LAYERS, 2.0)),
        ("mean norm", "63.5 %", mean_norm, first),
        ("median norm", "-", median_norm, first),
    )
    rows = []
    for name, stated, layer, clips in ways[: size.rows]:
        options = per_layer(layer, clips, task, epsilon, size.epochs)
        trained = train(task, options, size.epochs)
        rows.append((name, stated, trained.accuracy, trained.epsilon))
    return rows


def batch_rows(
    task: Task, epsilon: float, size: Size
) -> list[tuple[str, str, float, float]]:
    """Returns what each batch reaches: name, stated, ours, epsilon."""
    middle = math.isqrt(size.batch * size.largest_batch)
    ways = (
        (size.batch, 1.0, "61.6 % (128)"),
        (middle, middle / size.batch, "64.2 % (512)"),
        (size.largest_batch, size.largest_batch / size.batch, "66.9 % (1024)"),
        (size.largest_batch, 1.0, "47.2 % (1024)"),
    )
    rows = []
    for batch, factor, stated in ways[: size.rows]:
        ledger = keras_dp.PrivacyLedger.in_memory(dataset="mnist")
        private = keras_dp.make_private(
            task.make_model(),
            task.train,
            ledger=ledger,
            target_epsilon=epsilon,
            delta=DELTA,
            epochs=size.epochs,
            batch_size=batch,
            optimizer=keras.optimizers.SGD(0.1 * factor),
            loss=loss(),
            metrics=["accuracy"],
            verbose=False,
        )
        private.fit(verbose=0)
        accuracy = private.evaluate(*task.test, verbose=0)[1]
        true = accountants.Fourier().epsilon(ledger, delta=DELTA)
        rows.append((f"{batch}, rate {0.1 * factor:g}", stated, accuracy, true))
    return rows


def print_rows(
    what: str, rows: Sequence[tuple[str, str, float, float]]
) -> dict[str, dict[str, float]]:
    """Prints a table, and returns its bars."""
    print_table(
        (what, "stated (CIFAR-10, at 421)", "ours (MNIST)", "true epsilon"),
        [
            (name, stated, f"{accuracy:.2%}", f"{epsilon:.4f}")
            for name, stated, accuracy, epsilon in rows
        ],
    )
    print(flush=True)
    return {
        name.replace(", ", ",\n"): {"ours": 100 * accuracy}
        for name, _, accuracy, _ in rows
    }


def main() -> None:
    """Walks through the three steps."""
    options = read_options(__doc__)
    images, test = load_mnist(options)
    size = QUICK if options.quick else FULL
    print_stated_and_true()
    epsilon = choose_epsilon(size)
    batch = math.isqrt(size.batch * size.largest_batch)
    task = Task(images, test, CLASSES, batch, noise_multiplier=1.0)
    clips = clipping_rows(task, epsilon, size)
    bars = print_rows("clip", clips)
    bars |= print_rows("batch", batch_rows(task, epsilon, size))
    print(f"delta = {DELTA:g}; one run of each.")
    draw_bars(
        bars,
        "test accuracy, %",
        f"MNIST at epsilon {epsilon:g}: clips, then batches",
        options.out / "three_tools.png",
    )


if __name__ == "__main__":
    main()
