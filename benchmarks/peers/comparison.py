"""Which ways to train are compared, how they are run, and the table."""

import dataclasses
import statistics
import sys
from collections.abc import Callable, Sequence
from typing import Any

import workloads
from peers.driver import FOLDER, Turn, Worker, WorkerError, in_turns

# A turn of a slow way ends after about so long, once a step of it is known.
TURN_SECONDS = 4.0
FEWEST_STEPS = 2
# Modes of one way that are as close to its best all have turns: alone, each at
# its own time, they cannot be told apart.
CLOSE = 1.3
# What takes longer than this many times the best peer's step has no turn
# beside the others: what it took alone is enough to know.
SLOWER_THAN_BEST = 4.0


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to train, and candidates for the fastest mode of it.

    Attributes:
        framework: Name of the worker's script and of its environment.
        name: For the table.
        modes: Of the worker; the fastest is compared.
        private: Whether it trains with differential privacy.
        slow: Whether it is left out unless asked for.
    """

    framework: str
    name: str
    modes: tuple[str, ...]
    private: bool = True
    slow: bool = False


KERAS = Way("keras_dp", "Keras", ("keras",), private=False)
OURS = Way("keras_dp", "keras_dp", ("private",))
OURS_DRAWN = Way("keras_dp", "keras_dp, Poisson", ("poisson",))
OURS_IN_BLOCKS = Way("keras_dp", "keras_dp, 50 a call", ("blocks",))
OURS_UNCHECKED = Way("keras_dp", "keras_dp, no self-check", ("unchecked",))
WAYS = [
    KERAS,
    OURS,
    OURS_DRAWN,
    OURS_IN_BLOCKS,
    OURS_UNCHECKED,
    Way("opacus", "PyTorch", ("torch",), private=False),
    Way("opacus", "Opacus, ghost", ("ghost",)),
    Way("opacus", "Opacus, gradients", ("hooks", "functorch")),
    Way("tf_privacy", "Keras 2.15", ("keras",), private=False),
    Way("tf_privacy", "TF Privacy, registry", ("registry", "registry XLA")),
    Way(
        "tf_privacy",
        "TF Privacy, DPModel",
        ("vectorized", "vectorized XLA"),
    ),
    Way("tf_privacy", "TF Privacy, optimizer", ("optimizer",), slow=True),
    Way("jax_privacy", "JAX", ("jax",), private=False),
    Way(
        "jax_privacy",
        "JAX Privacy",
        ("microbatch all", "microbatch 64", "microbatch 16", "microbatch 4"),
    ),
]


@dataclasses.dataclass
class Result:
    """What is known about a mode of a way on a workload.

    Attributes:
        way: The way to train.
        mode: One of its fastest, or the first if all failed.
        alone: The turn of a process that ran by itself.
        turns: Beside the others; empty for what is too slow.
        error: Why there is no time.
        others: What the way's other modes took, or failed of, for the notes.
    """

    way: Way
    mode: str
    alone: Turn | None = None
    turns: list[Turn] = dataclasses.field(default_factory=list)
    error: str = ""
    others: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def milliseconds(self) -> float:
        """The median turn, or the turn alone."""
        turns = self.turns or [self.alone]
        return 1e3 * statistics.median(turn.seconds for turn in turns)


Start = Callable[[Way, str], Worker]


def starter(
    workload: str, interpreters: dict[str, str], **limits: Any
) -> Start:
    """Returns the function that starts a worker in its environment."""

    def start(way: Way, mode: str) -> Worker:
        script = FOLDER / f"{way.framework}_worker.py"
        command = [interpreters[way.framework], str(script)]
        command += ["--workload", workload, "--mode", mode]
        return Worker(command, **limits)

    return start


def steps_for(seconds: float, most: int) -> int:
    """Returns how many steps make a turn."""
    return max(FEWEST_STEPS, min(most, int(TURN_SECONDS / seconds)))


def _alone(start: Start, way: Way, mode: str, size: workloads.Workload) -> Turn:
    """Returns a turn of a new process, with its peak memory."""
    worker = start(way, mode)
    try:
        if worker.parameters != size.parameters:
            raise WorkerError(
                f"{worker.parameters} parameters instead of {size.parameters}"
            )
        first = worker.run(FEWEST_STEPS)
        if FEWEST_STEPS * first.seconds > TURN_SECONDS:
            return first
        return worker.run(steps_for(first.seconds, size.steps))
    finally:
        worker.close()


def survey(start: Start, way: Way, size: workloads.Workload) -> list[Result]:
    """Returns the fastest modes of a way, each tried in a process alone."""
    turns: dict[str, Turn] = {}
    said: dict[str, str] = {}
    for mode in way.modes:
        _log(f"  {way.name}: {mode}")
        try:
            turns[mode] = _alone(start, way, mode, size)
            said[mode] = f"{1e3 * turns[mode].seconds:.1f} ms"
        except WorkerError as error:
            said[mode] = str(error)
    if not turns:
        mode = way.modes[0]
        return [Result(way, mode, error=said.pop(mode), others=said)]
    limit = CLOSE * min(turn.seconds for turn in turns.values())
    close = [mode for mode in turns if turns[mode].seconds <= limit]
    others = {mode: said[mode] for mode in way.modes if mode not in close}
    results = [Result(way, mode, alone=turns[mode]) for mode in close]
    results[0].others = others
    return results


def _is_peer(result: Result) -> bool:
    return result.way.private and result.way.framework != "keras_dp"


def compare(
    start: Start,
    size: workloads.Workload,
    rounds: int,
    ways: Sequence[Way] = tuple(WAYS),
) -> list[Result]:
    """Returns every way's result on one workload."""
    results = [r for way in ways for r in survey(start, way, size)]
    known = [r for r in results if r.alone is not None]
    peers = [r.milliseconds for r in known if _is_peer(r)]
    limit = SLOWER_THAN_BEST * min(peers, default=float("inf"))
    always = (KERAS, OURS, OURS_DRAWN, OURS_IN_BLOCKS, OURS_UNCHECKED)
    chosen = [r for r in known if r.milliseconds <= limit or r.way in always]
    workers = []
    try:
        for result in list(chosen):
            try:
                workers.append(start(result.way, result.mode))
            except WorkerError as error:
                chosen.remove(result)
                result.error = str(error)
        steps = [steps_for(r.alone.seconds, size.steps) for r in chosen]
        in_turns(workers, steps, rounds=1)  # To warm up again.
        _log(f"  {rounds} turns of {len(workers)} workers")
        turns = in_turns(workers, steps, rounds)
    finally:
        for worker in workers:
            worker.close()
    for result, done in zip(chosen, turns, strict=True):
        if isinstance(done, WorkerError):
            result.error = str(done)
        else:
            result.turns = done
    return results


def best_peer(results: Sequence[Result]) -> Result | None:
    """Returns the fastest private way that is not ours."""
    peers = [r for r in results if _is_peer(r) and not r.error]
    return min(peers, key=lambda r: r.milliseconds, default=None)


def ratios(above: Result, below: Result) -> list[float]:
    """Returns the ratio of their times in each turn that both had."""
    if not above.turns or not below.turns:
        return [above.alone.seconds / below.alone.seconds]
    pairs = zip(above.turns, below.turns, strict=True)
    return [a.seconds / b.seconds for a, b in pairs]


def _log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
