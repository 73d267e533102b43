"""McMahan et al. 2018: several queries of one sample, and one ledger.

    python tutorials/papers/mcmahan_general.py [--data mnist.npz] [--quick]

arXiv:1812.06210v2 separates the training from its accounting: all that a round
asks of its sample, gradients of each layer, metrics and statistics, are
Gaussian sums that stand in a ledger. By its equation 1 they cost what one sum
of noise multiplier `z = (sum_g (S_g / sigma_g)^2)^(-1/2)` does.

Here each round releases the gradients and five statistics: the loss, the
accuracy, the mean norm of the gradients, the share that is clipped, and the
number of examples of each class. Five ways to clip and to share out the noise
(sections 2 and 4) are compared at the same z. All runs are in one ledger, whose
epsilon grows with each. The paper reports no accuracy.

Trains on the embedded census data; `--data` or $KERAS_DP_DATA names MNIST.
"""

import argparse
import math
from typing import Any

import keras
import numpy as np
from common import draw_bars, print_table, read_options
from mechanisms import DELTA, Task, load, loss, shared_out

import keras_dp
from keras_dp.accountants import Fourier
from keras_dp.dp_queries import JointClipQuery
from keras_dp.ledger import GaussianSum, PoissonSampling, Round
from keras_dp.optimizers import DPAdam
from keras_dp.training import (
    PrivateClassCounts,
    PrivateClippedShare,
    PrivateGradientNorm,
    PrivateLoss,
    PrivateMean,
    PrivateMetric,
    mean_gradient_norms,
)

BATCH, NOISE_MULTIPLIER = 512, 1.5
# Each variable is a group: a kernel and a bias of two layers.
GROUPS = {
    "hidden kernel": "hidden/kernel",
    "hidden bias": "hidden/bias",
    "head kernel": "head/kernel",
    "head bias": "head/bias",
}
STATISTIC_NOISE = 20.0


def first_clips(task: Task) -> dict[str, float]:
    """Returns the mean norm of each group's gradients on random inputs."""
    noise = np.random.Generator(np.random.Philox(0))
    return mean_gradient_norms(
        task.make_model(),
        loss(),
        noise.random((64, *task.train[0].shape[1:]), np.float32),
        noise.integers(0, task.classes, 64),
        groups=GROUPS,
    )


def statistics(task: Task, clip: float) -> dict[str, PrivateMetric]:
    """Returns what is asked beside the gradients, with 20 times its bound."""

    def average(bound: float) -> keras_dp.GaussianAverageQuery:
        return keras_dp.GaussianAverageQuery(
            bound, STATISTIC_NOISE * bound, task.batch
        )

    return {
        "loss": PrivateLoss(average(2 * math.log(task.classes))),
        "accuracy": PrivateMean(
            average(1.0), keras.metrics.sparse_categorical_accuracy
        ),
        "norm": PrivateGradientNorm(average(2 * clip)),
        "clipped": PrivateClippedShare(average(1.0), l2_norm=clip),
        "count": PrivateClassCounts(
            keras_dp.dp_queries.GaussianSumQuery(1.0, STATISTIC_NOISE),
            task.classes,
        ),
    }


def allocations(
    task: Task, clips: dict[str, float]
) -> dict[str, dict[str, Any]]:
    """Returns five queries of gradients that cost the same.

    Args:
        task: The data and the expected batch.
        clips: Bound of each group. One joint clip has the norm of them all.
    """
    scales, total = list(clips.values()), math.hypot(*clips.values())
    ways: dict[str, dict[str, Any]] = {
        "one clip": {
            "query": keras_dp.GaussianAverageQuery(
                total, NOISE_MULTIPLIER * total, task.batch
            )
        },
        "joint clip, scaled": {
            "query": JointClipQuery(
                scales,
                math.sqrt(len(scales)),
                NOISE_MULTIPLIER * math.sqrt(len(scales)),
                task.batch,
            )
        },
    }
    model = task.make_model()
    sizes = {v.path: math.prod(v.shape) for v in model.trainable_variables}
    grouped = keras_dp.optimizers.group_variables(model, GROUPS)
    weights = {
        "proportional": dict.fromkeys(clips, 1.0),
        "dimension_adjusted": {
            group: sum(map(sizes.get, paths))
            for group, paths in grouped.items()
        },
        "equal": {group: clip**2 for group, clip in clips.items()},
    }
    for name, each in weights.items():
        query = shared_out(
            clips, each, noise_multiplier=NOISE_MULTIPLIER, batch=task.batch
        )
        ways[name] = {"query": query, "groups": GROUPS}
    return ways


def train(
    task: Task,
    options: dict[str, Any],
    asked: dict[str, PrivateMetric],
    ledger: keras_dp.PrivacyLedger,
    name: str,
    epochs: int,
) -> tuple[float, dict[str, list[float]]]:
    """Returns the test accuracy, and the noised statistics of each epoch."""
    private = keras_dp.PrivateModel(task.make_model())
    private.compile(
        DPAdam(5e-3, ledger=ledger, **options),
        loss=loss(),
        metrics=["accuracy"],
        private_metrics=asked,
    )
    samples = keras_dp.PoissonBatches(
        task.train, sampling_probability=task.batch / len(task.train[0])
    )
    run = keras_dp.RunDetails(name, purpose="trial")
    history = private.fit(samples, epochs=epochs, run=run, verbose=0).history
    return private.evaluate(*task.test, verbose=0)[1], history


def sums_of(round_: Round) -> dict[str, tuple[float, float]]:
    """Returns the bound and the noise of each sum of a round, by name."""
    return {
        query.name: (query.l2_norm_bound, query.noise_stddev)
        for query in round_.queries
        if isinstance(query, GaussianSum)
    }


def print_costs(
    ledger: keras_dp.PrivacyLedger, probability: float, rounds: int
) -> None:
    """Prints the sums of one round, and checks equation 1 by an accountant."""
    round_, _ = ledger.rounds[-1]
    sums = sums_of(round_)
    costs = {
        name: (bound / noise) ** 2 for name, (bound, noise) in sums.items()
    }
    total = math.fsum(costs.values())
    print_table(
        ("sum of the last round", "bound", "noise", "share of the cost"),
        [
            (
                name,
                f"{bound:.4g}",
                f"{noise:.4g}",
                f"{costs[name] / total:.1%}",
            )
            for name, (bound, noise) in sums.items()
        ],
    )
    together = total**-0.5
    print(f"Together, by equation 1: noise multiplier {together:.4f}.")

    def epsilon(priced: Round) -> float:
        return Fourier().epsilon([(priced, rounds)], delta=DELTA)

    sampling = PoissonSampling(probability)

    def one_sum(multiplier: float) -> Round:
        return Round(sampling, (GaussianSum("one", 1.0, multiplier),))

    print(
        f"Epsilon of {rounds} such rounds: {epsilon(round_):.4f} as recorded, "
        f"{epsilon(one_sum(together)):.4f} as one sum; "
        f"{epsilon(one_sum(NOISE_MULTIPLIER)):.4f} for the gradients alone.\n"
    )


def load_task(options: argparse.Namespace) -> Task:
    """Returns the data; fewer of them for `--quick`."""
    task = load(options.data, BATCH, NOISE_MULTIPLIER)
    if not options.quick:
        return task
    x, y = (part[:2000] for part in task.train)
    return task._replace(train=(x, y), batch=len(x) // 8)


def main() -> None:
    """Prints what a round costs, and what each way reaches."""
    options = read_options(__doc__)
    task = load_task(options)
    epochs, repeats = (1, 1) if options.quick else (3, 3)
    probability = task.batch / len(task.train[0])
    rounds = epochs * round(1 / probability)
    clips = first_clips(task)
    asked = statistics(task, math.hypot(*clips.values()))
    ledger = keras_dp.PrivacyLedger.in_memory(dataset="mcmahan")
    rows, bars = [], {}
    for name, query in allocations(task, clips).items():
        reached = []
        for repeat in range(repeats):
            run = f"{name} {repeat}"
            accuracy, noised = train(task, query, asked, ledger, run, epochs)
            reached.append(100 * accuracy)
        shown = name.replace("_", " ")
        bars[shown.replace(", ", ",\n")] = {"ours": float(np.mean(reached))}
        rows.append(
            (
                shown,
                "-",
                f"{np.mean(reached):.2f}",
                f"{min(reached):.2f} to {max(reached):.2f}",
                f"{100 * noised['accuracy'][-1]:.1f}",
                f"{noised['clipped'][-1]:.2f}",
                f"{Fourier().epsilon(ledger, delta=DELTA):.4f}",
            )
        )
    print_costs(ledger, probability, rounds)
    print_table(
        (
            "allocation",
            "stated (paper)",
            "ours, test %",
            "range",
            "noised training %",
            "noised share clipped",
            "true epsilon of the ledger so far",
        ),
        rows,
    )
    print(
        f"{repeats} runs of {rounds} rounds each, in one ledger of "
        f"{len(ledger)} rounds; delta = {DELTA:g}."
    )
    draw_bars(
        bars,
        "test accuracy, %",
        f"Shares of one noise multiplier, {NOISE_MULTIPLIER:g}",
        options.out / "mcmahan_general.png",
    )


if __name__ == "__main__":
    main()
