"""Nasr et al. on MNIST: what is changed before and after the noise.

    python tutorials/papers/nasr_mnist.py --data mnist.npz [--quick]

Two papers of the same authors change gradients around the noise:

* Before it, they round coordinates to -1, 0 and 1 ("discretized", Generalizable
  Deep Learning with Differential Privacy), or clip sorted coordinates to
  preselected vectors ("encoded", arXiv:2007.11524v1), which allows noise that
  is not Gaussian.
* After it, they replace coordinates by the most probable one of three values
  ("corrected"), or shrink answers that look like noise ("denoised").

All run on one network with the same samples, and with noise of one epsilon by
`RDP`, the one accountant that has a bound for all of them. That epsilon is the
true one of the row of the first paper that has noise multiplier 1.1 and states
epsilon 2.27 for 8,000 rounds of 256 images. One epoch is 235 rounds, so that
accuracies compare with each other, and not with those of the papers.

The clips of "encoded" are 100 vectors of sorted Gaussian magnitudes, fixed
before any data is read. The papers sample from private gradients, which no
accountant covers. Without MNIST the census data is taken.
"""

import argparse
import dataclasses
from typing import Any

from common import draw_bars, print_table, read_options
from mechanisms import DELTA, Task, Trained, load, mechanisms, train

from keras_dp import accountants
from keras_dp.dp_queries import DPQuery, KSDenoisedQuery
from keras_dp.ledger import (
    EncodedSum,
    GaussianSum,
    PoissonSampling,
    Round,
    SumQueryEvent,
)
from keras_dp.planning import calibrate_scale

BATCH, MNIST_RECORDS = 256, 60_000
STATED_EPSILON, STATED_NOISE, STATED_ROUNDS = 2.27, 1.1, 8000
# What the papers state for each row, where they do.
STATED = {
    "gaussian": "95.6 % at 2.27; 96 % at 5",
    "corrected": "96.0 % at 2.27",
    "student, denoised": "96 % at 2.5",
}
NAMES = (
    "gaussian",
    "denoised",
    "discretized",
    "corrected",
    "encoded",
    "student",
    "student, denoised",
)


def true_epsilon() -> float:
    """Returns the true epsilon of the training that states 2.27."""
    sampling = PoissonSampling(BATCH / MNIST_RECORDS)
    queries = (GaussianSum("gradients", 1.0, STATED_NOISE),)
    ledger = [(Round(sampling, queries), STATED_ROUNDS)]
    return accountants.Fourier().epsilon(ledger, delta=DELTA)


def load_task(options: argparse.Namespace) -> Task:
    """Returns the data; the noise is found later."""
    task = load(options.data, BATCH, 1.0)
    if not options.quick:
        return task
    x, y = (part[:320] for part in task.train)
    return task._replace(train=(x, y), batch=max(1, len(x) // 5))


def mechanism(task: Task, name: str) -> dict[str, Any]:
    """Returns the query of one row, for the noise of the task."""
    inner, _, wrapped = name.partition(", ")
    options = mechanisms(task)[inner]()
    if wrapped == "denoised":
        options["query"] = KSDenoisedQuery(options["query"])
    return options


def scaled(event: SumQueryEvent, scale: float) -> SumQueryEvent:
    """Returns an event with so much noise; all bounds are 1."""
    if isinstance(event, EncodedSum):
        noise = dataclasses.replace(event.noise, scale=scale)
        return dataclasses.replace(event, noise=noise)
    return dataclasses.replace(event, noise_stddev=scale)


def scale_for(task: Task, query: DPQuery, epsilon: float) -> float:
    """Returns the scale of the noise at which one epoch costs so much.

    A scale is the standard deviation of Gaussian noise. Student's t with 9
    degrees of freedom has 1.13 times its scale.
    """
    event = query.planned_event(query.initial_global_state())
    (planned,) = query.ledger_events(event)
    probability = task.batch / len(task.train[0])
    rounds = round(1 / probability)
    return calibrate_scale(
        lambda scale: [
            (
                Round(PoissonSampling(probability), (scaled(planned, scale),)),
                rounds,
            )
        ],
        target_epsilon=epsilon,
        delta=DELTA,
        accountant=accountants.RDP(),
    )


def main() -> None:
    """Prints one line for each mechanism, and draws them."""
    options = read_options(__doc__)
    task = load_task(options)
    epsilon = true_epsilon()
    print(f"{STATED_EPSILON:g} as stated is {epsilon:.4f} in truth.")
    rows, bars = [], {}
    for name in NAMES[::3] if options.quick else NAMES:
        query = mechanism(task, name)["query"]
        scale = scale_for(task, query, epsilon)
        own = task._replace(noise_multiplier=scale)
        trained = train(own, mechanism(own, name), epochs=1)
        bars[name.replace(", ", ",\n")] = {"ours": 100 * trained.accuracy}
        rows.append(row(name, scale, trained))
        print(*rows[-1], sep="  ", flush=True)
    print()
    print_table(
        (
            "mechanism",
            "stated (papers)",
            "ours",
            "true epsilon",
            "by",
            "noise scale",
            "seconds",
        ),
        rows,
    )
    print(f"{trained.rounds} rounds, delta = {DELTA:g}; one run of each.")
    draw_bars(
        bars,
        "test accuracy, %",
        f"One epoch at epsilon {epsilon:.2f} by RDP",
        options.out / "nasr_mnist.png",
    )


def row(name: str, scale: float, trained: Trained) -> tuple[str, ...]:
    """Returns a line of the table."""
    return (
        name,
        STATED.get(name, "-"),
        f"{trained.accuracy:.2%}",
        f"{trained.epsilon:.4f}",
        trained.accountant,
        f"{scale:.4f}",
        f"{trained.seconds:.0f}",
    )


if __name__ == "__main__":
    main()
