"""Starts workers and gives them their turns.

All frameworks of a workload run side by side, one step after another's: A B C
A B C. A machine that is slow for a while is then slow for all of them.
"""

import json
import os
import selectors
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent
BENCHMARKS = FOLDER.parent
POLL_SECONDS = 0.1
KIBIBYTE = 1024


def use_cores(cores: int) -> None:
    """Leaves this process, and all that it starts, so many cores."""
    if hasattr(os, "sched_setaffinity"):
        mine = sorted(os.sched_getaffinity(0))[:cores]
        os.sched_setaffinity(0, mine)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(cores)


class WorkerError(Exception):
    """A worker that failed, with the reason to print in the table."""


class Turn(NamedTuple):
    """What a worker answers after its steps.

    Attributes:
        seconds: Per step.
        peak_megabytes: Most memory that the process ever held, or that its
            framework held of the accelerator, where there is one.
    """

    seconds: float
    peak_megabytes: float


def _resident_bytes(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status")
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return 0  # It ended, or this is not Linux.
    for line in lines:
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * KIBIBYTE
    return 0


class Worker:
    """A process that obeys `protocol.py`.

    Attributes:
        parameters: Trainable parameters of what it built.
        versions: Of what it built it with.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        most_bytes: int = 16 * 10**9,
        patience_seconds: float = 300.0,
    ) -> None:
        """Starts the process and waits until it has warmed up.

        Args:
            command: Interpreter, script and arguments.
            most_bytes: A process that holds more is ended.
            patience_seconds: For one answer.

        Raises:
            WorkerError: It could not be built.
        """
        self._most_bytes = most_bytes
        self._patience_seconds = patience_seconds
        self._folder = tempfile.TemporaryDirectory()
        self._errors = Path(self._folder.name) / "stderr"
        paths = [str(BENCHMARKS), str(BENCHMARKS.parent)]
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)
        built = self._answer()
        self.parameters = int(built["parameters"])
        self.versions = str(built["versions"])

    def run(self, steps: int) -> Turn:
        """Returns what so many steps took.

        Raises:
            WorkerError: A step failed.
        """
        try:
            self._process.stdin.write(f"run {steps}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # Its answer, or its end, says why.
        answer = self._answer()
        return Turn(
            answer["seconds"] / answer["steps"], answer["peak_megabytes"]
        )

    def close(self) -> None:
        """Ends the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
        self._selector.close()
        self._folder.cleanup()

    def _answer(self) -> dict[str, Any]:
        until = time.monotonic() + self._patience_seconds
        while not self._selector.select(POLL_SECONDS):
            if _resident_bytes(self._process.pid) > self._most_bytes:
                gigabytes = self._most_bytes / 10**9
                self._fail(f"needs more than {gigabytes:.0f} GB")
            if time.monotonic() > until:
                self._fail(f"no answer in {self._patience_seconds:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            said = self._errors.read_text("utf-8", "replace").split("\n")
            said = [line for line in said if line.strip()] or [""]
            self._fail(f"ended with status {status}: {said[-1]}")
        answer = json.loads(line)
        if "error" in answer:
            self._fail(answer["error"])
        return answer

    def _fail(self, reason: str) -> None:
        self.close()
        raise WorkerError(reason)


def in_turns(
    workers: Sequence[Worker], steps: Sequence[int], rounds: int
) -> list[list[Turn] | WorkerError]:
    """Returns each worker's turns, or why it failed on the way."""
    turns: list[list[Turn] | WorkerError] = [[] for _ in workers]
    for _ in range(rounds):
        for i, worker in enumerate(workers):
            done = turns[i]
            if isinstance(done, WorkerError):
                continue
            try:
                done.append(worker.run(steps[i]))
            except WorkerError as error:
                turns[i] = error
    return turns
