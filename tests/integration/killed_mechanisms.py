"""Kills trainings with correlated noise, and checks what they leave behind.

    python -m tests.integration.killed_mechanisms FOLDER KILLS HOW ...

Each training is a fork of this process, which runs no operation of TensorFlow
itself. It writes a line for each release: the mechanism, its row, the key of
the row's draws, and its own number. A kill comes at a random moment. Then the
next training begins anew, or as the rest of the plan of the dead one, or with
the secret state of the dead one, which it must not use. HOW is

* `query`: rounds of a query and a recorder alone. Draws are all zero, because
  theirs take a second to compile; keys follow from one another as ever;
* `thief`: as `query`, in a ledger that lets any process go on: a control;
* `late`: as `query`, covered after the release: a control.

It prints a line of JSON for each: what it counted, or what was violated.
"""

import collections
import contextlib
import hashlib
import json
import os
import pickle
import random
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest import mock

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

from keras_dp.accountants import Fourier
from keras_dp.dp_queries import CorrelatedSumQuery
from keras_dp.errors import (
    BudgetExceededError,
    LedgerWriteError,
    PrivateTrainingError,
)
from keras_dp.ledger import (
    BandedToeplitz,
    CorrelatedSum,
    FullDataset,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.rows import log
from keras_dp.noise import grid
from keras_dp.spending import RunDetails
from keras_dp.spending.run import new_run
from tests.ledger_faults import start_fork
from tests.waiting import let_others_run, until

STRATEGY, STDDEV, ROUNDS = BandedToeplitz((1.0, 0.5, 0.25)), 20.0, 24
DELTA = 1e-5
# Then another ledger begins, because a check reads all of it.
KILLS_OF_A_LEDGER = 25
QUERY = CorrelatedSumQuery(STRATEGY, 1.0, STDDEV, ROUNDS, tf.TensorSpec([2]))


class ViolationError(Exception):
    """Something ran that the ledger must not let run, or does not cover."""


class Place:
    """A ledger, and beside it what its trainings released and left."""

    def __init__(self, path: Path) -> None:
        self.ledger = path.with_suffix(".db")
        self.releases = path.with_suffix(".releases")
        self.state = path.with_suffix(".state")
        self.releases.touch()
        PrivacyLedger.open(self.ledger, dataset="d").close()

    def note(self, mechanism: np.ndarray, row: int, key: np.ndarray) -> None:
        """Writes that a row was released."""
        words = (int(word) % 2**64 for word in mechanism)
        name = "".join(f"{word:016x}" for word in words)
        line = json.dumps([name, int(row), key.tobytes().hex(), os.getpid()])
        file = os.open(self.releases, os.O_WRONLY | os.O_APPEND)
        os.write(file, f"{line}\n".encode())
        os.close(file)

    def keep(self, state: object) -> None:
        """Saves a secret state, as no training may."""
        beside = self.state.with_suffix(".new")
        beside.write_bytes(pickle.dumps(state))
        beside.replace(self.state)

    def released(self) -> list[tuple[str, int, str, int]]:
        lines = self.releases.read_text("utf-8").splitlines()
        return [tuple(json.loads(line)) for line in lines]


def zeros_for_draws(sums, stddev, seed):
    """Stands for `grid.draws`: no noise, and keys that follow one another."""
    words = hashlib.sha256(seed.numpy().tobytes()).digest()
    following = tf.constant(np.frombuffer(words, np.int64), seed.dtype)
    return [tf.zeros(x.shape, tf.int32) for x in sums], following


def run_query(place: Place, how: str, begins: str) -> None:
    """Runs trainings without end, after what it is told to try first."""
    tf.config.run_functions_eagerly(True)
    ledger = PrivacyLedger.open(place.ledger)
    with mock.patch.object(grid, "draws", zeros_for_draws):
        dead = [run.number for run in ledger.runs if run.rest is not None]
        if dead and begins != "anew":
            state = QUERY.initial_global_state()
            if begins == "with the state" and place.state.exists():
                kept = pickle.loads(place.state.read_bytes())
                state = tf.nest.map_structure(tf.constant, kept)
            # The plan is of another mechanism, or of another process.
            with contextlib.suppress(
                BudgetExceededError,
                LedgerWriteError,
                PrivateTrainingError,
                ValueError,
            ):
                run_rounds(place, ledger, state, dead[-1])
        while True:
            run_rounds(place, ledger, QUERY.initial_global_state(), None, how)


def run_rounds(place, ledger, state, continues, how=""):
    """Runs the rounds that a mechanism has left, as a training does."""
    left = ROUNDS - int(state.secret_noise.step)
    run = new_run(ledger, RunDetails(continues=continues), most=left)
    step = Round(FullDataset(), QUERY.ledger_events(QUERY.planned_event(state)))
    while (row := int(state.secret_noise.step)) < ROUNDS:
        if how != "late":
            run.cover(step, most=ROUNDS - row)
        place.keep(tf.nest.map_structure(np.asarray, state))
        noise = state.secret_noise
        result = QUERY.get_noised_result(tf.zeros([2]), state)
        place.note(state.secret_id.numpy(), row, noise.seed.numpy())
        if how == "late":
            run.cover(step, most=ROUNDS - row)
        state = result.global_state
        event = result.event
        run.released(lambda event=event: QUERY.ledger_events(event))
    run.finish()


def check(place: Place) -> tuple[int, int, int]:
    """Returns how many mechanisms and rows ran, and how many rows count.

    Raises:
        ViolationError: A row ran twice, out of order, in two processes, with
            another's key, after the last one, or without being covered; or
            epsilon is below that of the rows that ran.
    """
    rows, keys, owners = collections.defaultdict(list), set(), {}
    for name, row, key, process in place.released():
        rows[name].append(row)
        if key in keys or owners.setdefault(name, process) != process:
            raise ViolationError(f"{name}: a row of {process} ran twice.")
        keys.add(key)
    covered = collections.Counter()
    with PrivacyLedger.open(place.ledger, mode="r") as ledger:
        ledger.verify()
        for each, count in ledger.rounds:
            (event,) = each.queries
            covered[event.mechanism_id] += count
        paid = Fourier().epsilon(ledger, delta=DELTA) if covered else 0.0
    ran = []
    for name, found in rows.items():
        if found != list(range(len(found))):
            raise ViolationError(f"{name}: the rows {found} ran.")
        if not len(found) <= covered[name] <= ROUNDS:
            raise ViolationError(
                f"{name}: {len(found)} rows, {covered[name]} in the ledger."
            )
        event = CorrelatedSum("sum", 1.0, STDDEV, STRATEGY, ROUNDS, name)
        ran.append((Round(FullDataset(), (event,)), len(found)))
    spent = Fourier().epsilon(ran, delta=DELTA) if ran else 0.0
    if paid < (1 - 1e-6) * spent:
        raise ViolationError(f"{spent} was spent, and {paid} is counted.")
    return len(rows), sum(map(len, rows.values())), sum(covered.values())


def kill(
    act: Callable[[], object], place: Place, chosen: random.Random
) -> None:
    """Kills a training at a random moment."""
    enough = len(place.released()) + chosen.randrange(
        chosen.choice([4, ROUNDS + 6])
    )

    def told() -> None:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            raise

    child = start_fork(told)
    for _ in until(lambda: place.releases.read_bytes().count(b"\n") >= enough):
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            raise ViolationError("A training ended by itself.")
        let_others_run()
    for _ in range(chosen.randrange(chosen.choice([1, 3000]))):
        place.releases.stat()
    os.kill(child, signal.SIGKILL)
    if os.waitpid(child, 0)[1] != signal.SIGKILL:
        raise ViolationError("A training ended by itself.")


def count(folder: Path, kills: int, how: str) -> dict[str, int]:
    """Kills so many trainings, checks the ledger after each, and adds up.

    Raises:
        ViolationError: See `check`.
    """
    chosen, totals = random.Random(32), np.zeros(3, int)
    for number in range(kills):
        if number % KILLS_OF_A_LEDGER == 0:
            place = Place(folder / f"{how}-{number}")
        begins = chosen.choice(["anew", "with the plan", "with the state"])
        kill(lambda: run_query(place, how, begins), place, chosen)  # noqa: B023
        found = check(place)
        if (number + 1) % KILLS_OF_A_LEDGER == 0 or number + 1 == kills:
            totals += found
    names = "mechanisms", "released", "covered"
    return dict(zip(names, totals.tolist(), strict=True))


def main(folder: Path, kills: int, *how: str) -> None:
    """Prints what was counted, or the violation that was found."""
    for each in how:
        found: object
        try:
            with contextlib.ExitStack() as stack:
                if each == "thief":
                    stack.enter_context(
                        mock.patch.object(
                            log, "check_holder", return_value=None
                        )
                    )
                found = count(folder, kills, each)
        except ViolationError as error:
            found = str(error)
        sys.stdout.write(json.dumps({each: found}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
