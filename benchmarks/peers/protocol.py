"""What a worker does: builds one step, then runs it when asked to.

A worker is a process with one framework and one way to train. It says what it
built in one line of JSON, then obeys lines on its standard input: `run N` makes
N steps and answers with their time and the process's peak memory so far; the
end of the input ends it. What fails is answered as `{"error": reason}`.
"""

import argparse
import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import workloads

WARM_UP_STEPS = 2
KIBIBYTES_PER_MEGABYTE = 1000 / 1.024

# The same for all: plain DP-SGD.
L2_NORM_CLIP = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.1


class Step(NamedTuple):
    """What a worker built.

    Attributes:
        parameters: Number of trainable parameters.
        run: Makes so many steps and returns their seconds in all.
        versions: Of the framework and what it stands on.
        device_bytes: Returns the most of the accelerator's memory that its
            allocator held. `None` without an accelerator: the memory of the
            process counts then.
    """

    parameters: int
    run: Callable[[int], float]
    versions: str
    device_bytes: Callable[[], float] | None = None


Build = Callable[[workloads.Workload, str], Step]


def peak_megabytes() -> float:
    """Returns the most memory that this process held.

    On Linux `ru_maxrss` would do as well, were it not inherited from the
    process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / KIBIBYTES_PER_MEGABYTE
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / KIBIBYTES_PER_MEGABYTE


def reason(error: BaseException) -> str:
    """Returns the kind of the error and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"


def obey(step: Step, lines: TextIO, answer: Callable[[Any], None]) -> None:
    """Runs what each line asks for."""
    for line in lines:
        verb, _, count = line.strip().partition(" ")
        if verb != "run":
            raise ValueError(f"`line` must be `run N`. Received: {line!r}.")
        steps = int(count)
        seconds = step.run(steps)
        peak = peak_megabytes()
        if step.device_bytes is not None:
            peak = step.device_bytes() / 1e6
        answer({"seconds": seconds, "steps": steps, "peak_megabytes": peak})


def serve(build: Build) -> None:
    """Builds the step that the arguments name, warms up, and obeys."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--mode", required=True)
    arguments = parser.parse_args()
    # Frameworks may print: only answers go where the driver reads.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(message: Any) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    try:
        step = build(workloads.find(arguments.workload), arguments.mode)
        step.run(WARM_UP_STEPS)
        answer({"parameters": step.parameters, "versions": step.versions})
        obey(step, sys.stdin, answer)
    except Exception as error:
        answer({"error": reason(error)})
        raise SystemExit(1) from error
