"""What a private round and a first epoch cost in each of `examples/`.

    python benchmarks/examples.py [NAME ...] [--starts 3] [--turns 5]

`plain.py` and `private.py` of an example run up to their `fit`, each in a
process of its own, with the records and the batch size of `plain.py`. The
private side draws Poisson samples that hold as many on average. Both are
started `--starts` times, in turn. A start counts the first epoch, with tracing
and compiling. The last two processes go on in turn, `--turns` times each: these
count the rounds within an epoch, the first two of each left out.

All seconds are of the CPU, over all threads of a process, for others may use
the machine. Numbers are medians. Building the model and calibrating the noise
are not counted: they come before `fit`.
"""

import argparse
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FOLDER = Path(__file__).resolve().parent
EXAMPLES = FOLDER.parent / "examples"
SIDES = ("plain", "private")
# The target leaves room for more epochs than are run, with private metrics.
EPOCHS, EPSILON = 1_000, 100
SKIPPED = 2
SECONDS_OF_TURN = 1.0
EPOCHS_OF_FIT = 5
HEAD = """\
| Example | batch | Keras ms | private ms | ratio (range) \
| Keras first epoch s | private s | ratio |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


class ReachedError(Exception):
    """The script has come to its `fit`.

    Attributes:
        batch_size: As the script says, `None` if it does not.
        fit: Trains as the script would, for so many epochs, with callbacks.
    """

    def __init__(
        self, batch_size: int | None, fit: Callable[[int, list[Any]], Any]
    ) -> None:
        super().__init__()
        self.batch_size, self.fit = batch_size, fit


def reach(name: str, side: str, batch_size: int | None) -> ReachedError:
    """Runs a script up to its `fit`.

    Args:
        name: The example.
        side: "plain" or "private".
        batch_size: Expected sample of the private side.
    """
    import keras

    import keras_dp

    keras_fit, make_private = keras.Model.fit, keras_dp.make_private

    def stops(fit: Any) -> Any:
        def at_fit(model: Any, *args: Any, **options: Any) -> Any:
            # Some scripts train a public model before, in a function.
            caller = sys._getframe(1).f_code.co_name
            if caller != "<module>":
                return fit(model, *args, **options)

            def run(epochs: int, callbacks: list[Any]) -> Any:
                options.update(epochs=epochs, callbacks=callbacks, verbose=0)
                return fit(model, *args, **options)

            raise ReachedError(options.get("batch_size"), run)

        return at_fit

    def with_size(*args: Any, **options: Any) -> Any:
        options.update(batch_size=batch_size, epochs=EPOCHS, verbose=False)
        options.update(target_epsilon=EPSILON)
        private = make_private(*args, **options)
        private.fit = stops(type(private).fit).__get__(private)
        return private

    keras_dp.make_private = with_size
    keras.Model.fit = stops(keras_fit)
    try:
        runpy.run_path(str(EXAMPLES / name / f"{side}.py"))
    except ReachedError as reached:
        return reached
    finally:
        keras.Model.fit, keras_dp.make_private = keras_fit, make_private
    raise RuntimeError(f"{name}/{side}.py does not call `fit`.")


def serve(name: str, side: str, batch_size: int | None) -> None:
    """Answers with the first epoch, then with a turn for each line read."""
    import keras

    class Rounds(keras.callbacks.Callback):
        """Counts rounds of an epoch, and their seconds."""

        def __init__(self) -> None:
            super().__init__()
            self.count, self.seconds, self.start = 0, 0.0, 0.0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch == SKIPPED:
                self.start = time.process_time()

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch >= SKIPPED:
                now = time.process_time()
                self.seconds += now - self.start
                self.count, self.start = self.count + 1, now

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def answer(**message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    reached = reach(name, side, batch_size)
    start = time.process_time()
    reached.fit(1, [])
    seconds = time.process_time() - start
    answer(seconds=seconds, batch_size=reached.batch_size)
    for _ in sys.stdin:
        rounds = Rounds()
        while rounds.seconds < SECONDS_OF_TURN:
            reached.fit(EPOCHS_OF_FIT, [rounds])
            if not rounds.count:
                raise RuntimeError(f"{name} has too few rounds in an epoch.")
        answer(seconds=rounds.seconds / rounds.count)


class Process:
    """One side of an example, which has run its first epoch.

    Attributes:
        first_epoch: Its seconds.
        batch_size: As the script says.
    """

    def __init__(self, name: str, side: str, batch_size: int | None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        command = [sys.executable, __file__, "--worker", side, name]
        if batch_size is not None:
            command += ["--batch-size", str(batch_size)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder.name,
            env={
                **os.environ,
                "TMPDIR": self._folder.name,
                "PYTHONPATH": str(FOLDER.parent),
            },
        )
        first = self._answer()
        self.first_epoch: float = first["seconds"]
        self.batch_size: int | None = first["batch_size"]

    def turn(self) -> float:
        """Returns the seconds of a round."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        seconds: float = self._answer()["seconds"]
        return seconds

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()
        self._folder.cleanup()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(self._process.communicate()[1])
        answer: dict[str, Any] = json.loads(line)
        return answer


class Measured(NamedTuple):
    """What an example costs.

    Attributes:
        batch_size: Records of a batch.
        rounds: Seconds of a round of either side in each turn.
        epochs: Seconds of the first epoch of either side at each start.
    """

    batch_size: int
    rounds: list[tuple[float, float]]
    epochs: list[tuple[float, float]]


def measure(name: str, starts: int, turns: int) -> Measured:
    """Returns what an example costs."""
    epochs = []
    for i in range(starts):
        plain = Process(name, "plain", None)
        private = Process(name, "private", plain.batch_size)
        epochs.append((plain.first_epoch, private.first_epoch))
        if i < starts - 1:
            plain.close()
            private.close()
    rounds = [(plain.turn(), private.turn()) for _ in range(turns)]
    plain.close()
    private.close()
    return Measured(plain.batch_size, rounds, epochs)


def middle(pairs: list[tuple[float, float]]) -> tuple[float, float, float]:
    """Returns the medians of both sides and of their ratios."""
    plain, private = zip(*pairs, strict=True)
    ratios = [b / a for a, b in pairs]
    return tuple(map(statistics.median, (plain, private, ratios)))


def row(name: str, found: Measured) -> str:
    """Returns the row of an example."""
    plain, private, ratio = middle(found.rounds)
    ratios = [b / a for a, b in found.rounds]
    first, private_first, first_ratio = middle(found.epochs)
    return (
        f"| {name} | {found.batch_size} | {1e3 * plain:.2f} "
        f"| {1e3 * private:.2f} "
        f"| {ratio:.2f} ({min(ratios):.2f}-{max(ratios):.2f}) "
        f"| {first:.1f} | {private_first:.1f} | {first_ratio:.2f} |"
    )


def main() -> None:
    """Prints the table, row by row, and its medians."""
    names = sorted(each.parent.name for each in EXAMPLES.glob("*/plain.py"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=names)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--worker", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        serve(options.names[0], options.worker, options.batch_size)
        return
    print(HEAD)
    all_found = []
    for name in options.names:
        all_found.append(measure(name, options.starts, options.turns))
        print(row(name, all_found[-1]), flush=True)
    of_rounds, of_epochs = (
        statistics.median(middle(pairs)[2] for pairs in each)
        for each in (
            [found.rounds for found in all_found],
            [found.epochs for found in all_found],
        )
    )
    print(
        f"| median | | | | **{of_rounds:.2f}** | | | **{of_epochs:.2f}** |",
        flush=True,
    )


if __name__ == "__main__":
    main()
