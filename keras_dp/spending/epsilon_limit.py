"""Ends a training before its ledger exceeds an epsilon."""

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

from keras_dp._counted import rest_of
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.samplings import (
    RELATIONS,
    supported_neighbours,
)
from keras_dp.accountants.replay import Replay
from keras_dp.errors import BudgetExceededError, UnsupportedEventError
from keras_dp.ledger import (
    CountedRound,
    PrivacyLedger,
    Round,
    UnverifiedSampling,
)
from keras_dp.planning.calibration import MOST_ROUNDS, checked_target
from keras_dp.planning.rounds_left import rounds_left


@dataclasses.dataclass(frozen=True, slots=True)
class PrivacyTarget:
    """The most that a ledger may spend.

    It is compared with the epsilon of reports: by the tightest accountant, for
    the strongest adjacency relation that all rounds support.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        epsilon, delta = checked_target(self.epsilon, self.delta)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)


class _Held(NamedTuple):
    """The rounds of the own run and of others that count beforehand."""

    own: tuple[CountedRound, ...]
    others: tuple[CountedRound, ...]
    together: Replay


class EpsilonLimit:
    """Says how many rounds a ledger may still hold under a target.

    Guarantee: if `allowed` returns a number > 0, the ledger followed by that
    many rounds meets the target. Of other runs it counts what reports count:
    the whole plan of a run that kept to it, also while it goes on. A
    `RunWriter` reserves the rounds only if nobody wrote to the ledger since.

    It searches for the number of rounds at the first question. It searches
    again if the mechanism of the rounds changes, or what else counts: rounds of
    other runs, their plans, or other rounds of the training. `head_seen`
    is the head that the ledger had for the last answer.
    """

    def __init__(
        self,
        target: PrivacyTarget,
        ledger: PrivacyLedger,
        rounds_per_pass: int | None = None,
        most: int = MOST_ROUNDS,
    ) -> None:
        """Starts without a search, which looks for `most` rounds at most."""
        self.target, self._ledger = target, ledger
        self._rounds_per_pass, self._most_wanted = rounds_per_pass, most
        self._question: tuple[object, ...] = ()
        self._most = 0
        self.head_seen = ""
        self._is_unverified = False
        self._planned_by_others = 0

    def allowed(
        self,
        planned: Round,
        count: int,
        promised: int = 0,
        row: int | None = None,
    ) -> int:
        """Returns how many of `count` more rounds the target leaves room for.

        The training began in the row, and is planned for `promised` rounds
        more. If the target has room for them together, none of them is refused:
        the bounds for fewer rounds may be less precise.
        """
        self._is_unverified = isinstance(planned.sampling, UnverifiedSampling)
        mechanism = normalize([(planned, 1)])
        held = self._held(row, [(planned, 1)])
        alike = {
            each: each == planned or normalize([(each, 1)]) == mechanism
            for each in {each for each, _ in held.own}
        }
        own = sum(n for each, n in held.own if alike[each])
        unlike = tuple(each for each in held.own if not alike[each.round])
        question = (mechanism, held.others, unlike)
        if question != self._question:
            left = functools.partial(
                rounds_left,
                held.together,
                planned,
                target_epsilon=self.target.epsilon,
                delta=self.target.delta,
                rounds_per_pass=self._rounds_per_pass,
            )
            most = left(most=self._most_wanted)
            if most < promised:
                most = max(most, left(most=promised))
            self._question, self._most = question, own + most
        return max(0, min(count, self._most - own))

    def allowed_of(
        self,
        coming: Sequence[tuple[Round, int]],
        count: int,
        own: int,
        row: int | None = None,
    ) -> int:
        """Returns how many of the next of given rounds there is room for.

        The rounds to come are all rounds of the training in order. Of these the
        ledger has the first `own`.
        """
        held = self._held(row, coming)
        known = {each for each, _ in coming}
        unlike = tuple(each for each in held.own if each.round not in known)
        question = (tuple(coming), held.others, unlike)
        if question != self._question:
            most = rounds_left(
                held.together,
                rest_of(coming, own),
                target_epsilon=self.target.epsilon,
                delta=self.target.delta,
            )
            self._question, self._most = question, own + most
        return max(0, min(count, self._most - own))

    def _held(
        self, row: int | None, coming: Sequence[tuple[Round, int]]
    ) -> _Held:
        """Returns what counts beside rounds to come.

        These decide, too, under which adjacency relation plans are kept.
        """
        replay = Replay(self._ledger)
        self.head_seen = replay.head
        for relation in RELATIONS:
            own: list[CountedRound] = []
            others: list[CountedRound] = []
            for run, rounds in zip(
                replay.runs, replay.that_count(relation).of_runs, strict=True
            ):
                if run.row == row:
                    own.extend(run.rounds)
                else:
                    others.extend(rounds)
            together = replay.of([*others, *own])
            with contextlib.suppress(UnsupportedEventError):
                if relation in supported_neighbours(together.plus(coming)):
                    break
        counts = [sum(n for _, n in each.rounds) for each in (together, replay)]
        self._planned_by_others = counts[0] - counts[1]
        return _Held(tuple(own), tuple(others), together)

    def exceeded(self, rounds: str = "one more round") -> BudgetExceededError:
        """Returns the error for rounds after the last question."""
        remedy = (
            "Train with a larger target or more noise, or with a ledger that "
            "has spent less."
        )
        if self._is_unverified:
            remedy = (
                "Batches that the caller brings cost as much as the full data: "
                "call fit() without data where make_private has them, or pass "
                "a sampler, such as PoissonBatches."
            )
        others = ""
        if self._planned_by_others:
            others = (
                f" and {self._planned_by_others:,} more that other trainings "
                "have planned, which may still run"
            )
            remedy = (
                "Plan fewer rounds for each training (`rounds=` or `epochs`), "
                "together no more than the target has room for. Or train with "
                "a larger target or more noise."
            )
        return BudgetExceededError(
            f"`target_epsilon` must leave room for {rounds}. Received: "
            f"target_epsilon={self.target.epsilon!r} at "
            f"delta={self.target.delta!r}, for a ledger of "
            f"{len(self._ledger):,} rounds{others}. No round ran. {remedy}"
        )
