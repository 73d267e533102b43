"""Where the time and the memory of a private step go.

    python benchmarks/step_profile.py [--workload w1 ...] [--turns 15]

compiles growing parts of a step and runs them in turn: the forward pass, the
backward pass to the outputs of layers, what their rules build, norms, weighted
sums. A column is what a part takes more than the one before. Noise is drawn
alone, for as many parameters. The whole step, with update, metrics, ledger and
everything that runs in Python, is `fit` on batches of one size; what is not a
part of the above is the rest. Times are those of the processor, over all cores.

With `--memory` each part is a process of its own, and the table says how far it
raises the peak.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from peers.keras_dp_worker import keras_step, private_step
from peers.protocol import peak_megabytes
from workloads import WORKLOADS, Workload, data

PARTS = [
    "forward",
    "backward",
    "products",
    "norms",
    "sums",
    "noise",
    "fit",
    "keras",
]
WARM_UP = 2
RUNS_ALONE = 3
CLIP = 1.0


def part(workload: Workload, name: str) -> Callable[[], Any]:
    """Returns a function that runs a step up to a part of it."""
    import keras
    import tensorflow as tf

    from keras_dp.gradients import GradientEngine

    if name in ("fit", "keras"):
        step = (
            keras_step(workload, [])
            if name == "keras"
            else private_step(workload, [], draws=False, checks=False)
        )
        # `fit` prepares its data anew: so several steps at once.
        return lambda: step.run(workload.steps)
    model = workload.make()
    if name == "noise":
        return _noise(model)
    engine = GradientEngine(model)
    x, y = (tf.constant(each[: workload.batch]) for each in data(workload))

    def losses_of(outputs: tf.Tensor) -> tf.Tensor:
        return keras.losses.sparse_categorical_crossentropy(
            y, outputs, from_logits=True
        )

    @tf.function(autograph=False)
    def run() -> Any:
        if name == "forward":
            return tf.reduce_sum(losses_of(engine.call(x)))
        if name == "backward":
            ran = engine.hooked_pass(x, losses_of, workload.batch)
            return [
                tf.reduce_sum(own)
                for each in ran.calls
                for own in each.call.cotangents
            ]
        result = engine.gradients(x, losses_of, workload.batch)
        if name == "products":
            return [_used(record) for record in result.records]
        with engine.computing():
            squares = [each.squared_norms() for each in result.records]
            norms = tf.sqrt(tf.add_n(squares))
            if name == "norms":
                return norms, [_used(record) for record in result.records]
            weights = tf.minimum(1.0, CLIP / norms)
            return [each.weighted_sum(weights) for each in result.records]

    return run


def _used(record: Any) -> list[Any]:
    """Returns a number of each tensor that records keep."""
    import tensorflow as tf

    tensors = [
        value
        for value in tf.nest.flatten(list(vars(record).values()))
        if tf.is_tensor(value) and value.dtype.is_floating
    ]
    # Nothing is left out that the whole step computes, or copied.
    return [tf.reshape(tensor, [-1])[0] for tensor in tensors]


def _noise(model: Any) -> Callable[[], Any]:
    import tensorflow as tf

    from keras_dp.noise import grid, seeds

    shapes = [variable.shape for variable in model.trainable_variables]
    seed = seeds.fresh(None)

    @tf.function(autograph=False)
    def run() -> Any:
        likes = [tf.zeros(shape) for shape in shapes]
        unit = tf.constant(2.0**24, tf.float64)
        drawn, _ = grid.draws(likes, unit, seed)
        return [tf.reduce_sum(each) for each in drawn]

    return run


def times(workload: Workload, turns: int) -> dict[str, float]:
    """Returns the processor's seconds of a step up to each part."""
    parts = {name: part(workload, name) for name in PARTS}
    found: dict[str, list[float]] = {name: [] for name in PARTS}
    for turn in range(turns + WARM_UP):
        for name, run in parts.items():
            start = time.process_time()
            run()
            seconds = time.process_time() - start
            if turn >= WARM_UP:
                steps = workload.steps if name in ("fit", "keras") else 1
                found[name].append(seconds / steps)
    return {name: statistics.median(each) for name, each in found.items()}


def memory(name: str) -> dict[str, float]:
    """Returns the peak of a process for each part, in megabytes."""
    peaks = {}
    for each in PARTS:
        command = [sys.executable, __file__, "--workload", name]
        ran = subprocess.run(
            [*command, "--alone", each],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=True,
        )
        peaks[each] = float(json.loads(ran.stdout.splitlines()[-1]))
    return peaks


def time_row(name: str, found: dict[str, float]) -> str:
    """Returns the shares of the parts in the whole."""
    whole = found["fit"]
    names = PARTS[: PARTS.index("noise")]
    before = [0.0, *(found[each] for each in names)]
    shares = [
        found[each] - last
        for each, last in zip(names, before[:-1], strict=True)
    ]
    shares += [found["noise"], whole - found["sums"] - found["noise"]]
    cells = " | ".join(f"{100 * share / whole:.0f} %" for share in shares)
    ratio = whole / found["keras"]
    return f"| {name} | {1e3 * whole:.1f} | {cells} | {ratio:.2f} |"


def main() -> None:
    """Prints the table that the arguments ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [name for name in WORKLOADS if name != "adult"]
    parser.add_argument("--workload", nargs="+", default=names)
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--alone", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        run = part(WORKLOADS[options.workload[0]], options.alone)
        for _ in range(RUNS_ALONE):
            run()
        print(peak_megabytes())
        return
    if options.memory:
        print("| model | " + " | ".join(PARTS) + " |")
        print("| --- " * (1 + len(PARTS)) + "|")
        for name in options.workload:
            peaks = memory(name)
            cells = " | ".join(f"{peaks[each]:.0f}" for each in PARTS)
            print(f"| {name} | {cells} |", flush=True)
        return
    print(
        "| model | CPU ms | forward | backward | products | norms | sums "
        "| noise | update, metrics, host | / Keras |"
    )
    print("| --- " * 10 + "|")
    for name in options.workload:
        found = times(WORKLOADS[name], options.turns)
        print(time_row(name, found), flush=True)


if __name__ == "__main__":
    main()
