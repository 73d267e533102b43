"""`keras-dp afford`: how many more rounds a privacy target leaves room for."""

import argparse

from keras_dp.accountants.coverage import spans_of
from keras_dp.accountants.replay import Replay
from keras_dp.budgets.ledger_guarantee import AS_IF_FIXED
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    PrivacyLedger,
    Round,
)
from keras_dp.planning.calibration import MOST_ROUNDS
from keras_dp.planning.rounds_left import rounds_left
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.wording import counted, described, on_one_line, sampled

HELP = "print how many more rounds a privacy target leaves room for"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, "file", "epsilon", "delta", "neighbours", "units")


def answer(options: argparse.Namespace) -> str:
    """Returns how many more rounds like the last one there is room for.

    Raises:
        ValueError: The ledger holds no round.
        UnsupportedEventError: The last round is part of a pass or of a tree, or
            there is no bound for the rounds.
    """
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        held, unit = Replay(ledger), on_one_line(ledger.header.unit)
    last = _last_of(held)
    count = rounds_left(
        held,
        last,
        target_epsilon=options.epsilon,
        delta=options.delta,
        neighbours=options.neighbours,
        units=options.units,
    )

    def spent(rounds: Replay) -> str:
        return rounds.claim(
            delta=options.delta,
            neighbours=options.neighbours,
            units=options.units,
        ).sentence(unit)

    at_least = "at least " if count == MOST_ROUNDS else ""
    how_many = at_least + counted(count, "round") if count else "no round"
    lines = [
        f"Held: {spent(held)}",
        f"Target: epsilon <= {options.epsilon!r} at delta = {options.delta!r}",
        f"Left: {how_many} like the last one",
        f"  {sampled(last.sampling)}",
        *(f"      {described(query)}" for query in last.queries),
    ]
    if count:
        lines += [
            f"Then: {spent(held.plus([(last, count)]))}",
            f"Theorem: {AS_IF_FIXED}",
        ]
    return "\n".join(lines)


def _last_of(held: Replay) -> Round:
    if not held.rounds:
        raise ValueError(
            "`file` must be a ledger with at least one round. Received: a "
            "ledger without rounds. Plan a first training with `keras-dp plan`."
        )
    last, _ = held.rounds[-1]
    if any(spans_of(last)):
        raise UnsupportedEventError(
            "`file` must end with a round that can be repeated by itself. "
            f"Received: {last.sampling!r} and {last.queries!r}, which belong "
            "to a pass, a tree or a mechanism, which cost as a whole. For "
            "passes use `keras_dp.planning.rounds_left` with "
            "`rounds_per_pass`. For a mechanism plan another one, with "
            "`make_private` on this ledger or `calibrate_correlated_noise`."
        )
    return last
