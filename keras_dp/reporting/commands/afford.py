"""`keras-dp afford`: what a privacy target leaves room for."""

import argparse
from collections.abc import Iterable, Iterator

from keras_dp.accountants.replay import Replay
from keras_dp.budgets.ledger_guarantee import AS_IF_FIXED
from keras_dp.ledger import PrivacyLedger, Round
from keras_dp.planning.calibration import MOST_ROUNDS, calibrate_scale
from keras_dp.planning.continuation import (
    Continuation,
    continuation,
    with_noise,
)
from keras_dp.planning.rounds_left import rounds_left
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import Answer
from keras_dp.reporting.wording import (
    counted,
    described,
    on_one_line,
    sampled,
)

HELP = "print how many more rounds a privacy target leaves room for"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser)
    arguments.add_epsilon(parser)
    arguments.add_delta(parser)
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument(
        "--rounds",
        type=arguments.count,
        help="print the noise that so many more rounds need",
    )
    how_many.add_argument(
        "--epochs",
        type=arguments.count,
        help="print the noise that so many more epochs need",
    )
    arguments.add_neighbours(parser)
    arguments.add_units(parser)


def answer(options: argparse.Namespace) -> Answer:
    """Returns how many more rounds like the last one there is room for.

    With `--rounds` or `--epochs` the noise of so many more.

    Raises:
        ValueError: The ledger holds no round, or its epochs are not known.
        UnsupportedEventError: There is no bound for the rounds.
        CalibrationError: No noise meets the target.
    """
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        question = _Question(options, ledger)
    if options.rounds is None and options.epochs is None:
        return Answer("\n".join(question.room()))
    return Answer("\n".join(question.noise()))


class _Question:
    """The target, and what counts towards it."""

    def __init__(
        self, options: argparse.Namespace, ledger: PrivacyLedger
    ) -> None:
        self._options, self._held = options, Replay(ledger)
        self._more = continuation(self._held)

    def room(self) -> Iterator[str]:
        """Yields how many rounds are left."""
        more = self._more
        count = rounds_left(
            self._held,
            more.round,
            target_epsilon=self._options.epsilon,
            delta=self._options.delta,
            neighbours=self._options.neighbours,
            units=self._options.units,
        )
        yield from self._target()
        if not count:
            yield "Left: no round like the last one."
            yield from _listed(more.round, more)
            return
        at_least = "at least " if count == MOST_ROUNDS else ""
        yield f"Left: {at_least}{_how_many(count, more)} like the last one"
        yield from _listed(more.round, more)
        yield f"Then: {self._claim([(more.round, count)])}"
        yield f"Theorem: {AS_IF_FIXED}"

    def noise(self) -> Iterator[str]:
        """Yields the noise of a number of rounds."""
        more = self._more
        count = self._options.rounds
        if count is None and more.rounds_per_epoch is None:
            raise ValueError(
                "`--epochs` must be asked of a ledger whose epochs are known. "
                f"Received: --epochs={self._options.epochs!r}, and "
                f"{more.round.sampling!r} in the last round. Use `--rounds`."
            )
        if count is None:
            count = self._options.epochs * more.rounds_per_epoch
        factor = calibrate_scale(
            lambda scale: [(with_noise(more.round, scale), count)],
            target_epsilon=self._options.epsilon,
            delta=self._options.delta,
            ledger=self._held,
            neighbours=self._options.neighbours,
            units=self._options.units,
        )
        found = with_noise(more.round, factor)
        yield from self._target()
        yield f"Asked: {_how_many(count, more)} like the last one"
        yield from _listed(more.round, more)
        yield f"Noise: {factor:.4g} times as much as there"
        yield from _listed(found, more)
        yield f"Then: {self._claim([(found, count)])}"
        yield f"Theorem: {AS_IF_FIXED}"

    def _target(self) -> Iterator[str]:
        yield f"Held: {self._claim([])}"
        yield (
            f"Target: epsilon <= {self._options.epsilon!r} at delta = "
            f"{self._options.delta!r}"
        )

    def _claim(self, more: Iterable[tuple[Round, int]]) -> str:
        found = self._held.plus(more).claim(
            delta=self._options.delta,
            neighbours=self._options.neighbours,
            units=self._options.units,
        )
        return found.sentence(on_one_line(self._held.header.unit))


def _how_many(count: int, more: Continuation) -> str:
    if more.is_epoch:
        return f"{counted(count, 'epoch')} of disjoint batches"
    text = counted(count, "round")
    if more.rounds_per_epoch is not None:
        epochs = count / more.rounds_per_epoch
        text += f", {epochs:,.4g} epochs of {more.rounds_per_epoch:,},"
    return text


def _listed(event: Round, more: Continuation) -> Iterator[str]:
    if more.is_epoch:
        yield "  an epoch of disjoint batches: every record once"
    else:
        yield f"  {sampled(event.sampling)}"
    for query in event.queries:
        yield f"      {described(query)}"
