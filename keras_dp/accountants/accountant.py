"""The base class of accountants, with the contract that they all keep."""

import abc
import math
from typing import ClassVar

from keras_dp import _check
from keras_dp.accountants.groups import Profile, UnitGroup
from keras_dp.accountants.normalize.few_kinds import few_kinds
from keras_dp.accountants.normalize.mechanisms import (
    SLACK,
    CountedMechanism,
    Mechanism,
)
from keras_dp.accountants.normalize.normalize import normalized
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.accountants.normalize.truncation import with_and_without_slack
from keras_dp.accountants.slack import (
    sampled_as_slack,
    split,
    with_slack,
    without_slack,
)
from keras_dp.errors import UnsupportedEventError

# A bound that is below every float is rounded up, not to 0.
_LEAST_DELTA = 5e-324
CHOOSE_DELTA = " Choose a value well below 1 over the number of records."


class Accountant(abc.ABC):
    """Turns a ledger into a guarantee. An accountant holds no state.

    Guarantee: all releases of the ledger together are
    `(epsilon(ledger, delta=delta), delta)`-differentially private, and
    `(epsilon, delta(ledger, epsilon=epsilon))`-differentially private. This
    holds for the adjacency relation `neighbours`; if none is given, for the
    strongest one that all rounds support, which `strongest_neighbours` returns.
    If a unit has several records, as the header of a ledger says, it holds for
    all of them together; see `groups.UnitGroup`. Both numbers are upper bounds,
    and floating-point errors are rounded up.

    | Ledger | `epsilon` | `delta` |
    | --- | --- | --- |
    | without a release | 0 | 0 |
    | with a sum without noise | `inf`; 0 at `delta=1` | 1 |
    | any other at `delta=0` | `inf` | |

    Sampled rounds that hardly ever draw the changed record cost next to
    nothing, whatever their noise is. Epsilon is 0 if delta is above the chance
    that any of them draws it, and delta is never above that chance
    (`slack.sampled_as_slack` proves it).

    Slack is a part of delta that some rounds take (see `mechanisms.Slack`).
    All accountants treat it in the same way: it is subtracted from delta before
    the mechanisms are bounded, and epsilon is `inf` if nothing is left.

    Attributes:
        name: The name of the accountant in reports.
        mechanisms: The kinds of mechanism that the accountant has a bound for,
            besides slack.
    """

    __slots__ = ()
    name: ClassVar[str]
    mechanisms: ClassVar[frozenset[type[Mechanism]]]

    def epsilon(
        self,
        ledger: LedgerLike,
        *,
        delta: float,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> float:
        """Returns an upper bound on epsilon; `inf` if no finite one holds.

        Args:
            ledger: A ledger, a run, or pairs of a Round and its count.
            delta: In [0, 1].
            neighbours: The adjacency relation; by default the strongest that
                all rounds support.
            units: How many units are protected together, >= 1. A unit has
                `rows_per_unit` records if `ledger` says so, else one.

        Raises:
            UnsupportedEventError: This accountant has no sound bound for a
                round under `neighbours`. It never guesses.
            ValueError: `delta` is not in [0, 1], `neighbours` is unknown, or
                `units` is below 1.
        """
        check_delta(delta)
        return self.group(ledger, neighbours, units).epsilon(delta)

    def delta(
        self,
        ledger: LedgerLike,
        *,
        epsilon: float,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> float:
        """Returns an upper bound on delta; 1 if no smaller one holds.

        The other arguments and errors are those of `epsilon`.

        Args:
            ledger: A ledger, a run, or pairs of a Round and its count.
            epsilon: Finite and >= 0.
            neighbours: The adjacency relation.
            units: How many units are protected together.

        Raises:
            ValueError: `epsilon` is negative or not finite.
        """
        _check.finite_non_negative(epsilon=epsilon)
        return self.group(ledger, neighbours, units).delta(epsilon)

    @abc.abstractmethod
    def _epsilon(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        """Returns the bound for rounds without slack, for a delta in (0, 1).

        There are at most some hundreds of kinds of rounds.
        """

    @abc.abstractmethod
    def _profile(self, rounds: tuple[CountedMechanism, ...]) -> Profile:
        """Returns the bound on delta for the same rounds."""

    def group(
        self, ledger: LedgerLike, neighbours: Neighbours | None, units: int
    ) -> UnitGroup:
        """Returns the rounds of a ledger, for several questions.

        Arguments and errors are those of `epsilon`.
        """
        _check.integer_at_least(1, units=units)
        found = normalized(ledger, neighbours)
        self.check_supported(found.mechanisms)
        return UnitGroup(
            self, found.mechanisms, found.rows_per_unit * int(units)
        )

    def check_supported(self, rounds: tuple[CountedMechanism, ...]) -> None:
        """Raises unless this accountant has a bound for every mechanism."""
        for mechanism, _ in rounds:
            kind = type(mechanism)
            if kind not in self.mechanisms and not issubclass(kind, SLACK):
                known = sorted(kind.__name__ for kind in self.mechanisms)
                raise UnsupportedEventError(
                    f"`ledger` must normalize to {' or '.join(known)} for "
                    f"`{type(self).__name__}`. Received: {mechanism!r}. "
                    "`available_accountants` lists the accountants that can "
                    "replay the ledger."
                )

    def supports(self, rounds: tuple[CountedMechanism, ...]) -> bool:
        """Returns whether this accountant has a bound for every mechanism."""
        try:
            self.check_supported(rounds)
        except UnsupportedEventError:
            return False
        return True

    def epsilon_of(
        self, rounds: tuple[CountedMechanism, ...], delta: float
    ) -> float:
        """Returns the bound on epsilon for one record.

        `check_supported` accepts the rounds, and delta is in [0, 1].
        """
        if not rounds or delta == 1:
            return 0.0
        if delta == 0 or has_bare_sum(rounds):
            return math.inf
        choices = with_and_without_slack(rounds)
        if len(choices) > 1:
            some = filter(self.supports, choices)
            return min(self.epsilon_of(each, delta) for each in some)

        def beside(slack: float, others: tuple[CountedMechanism, ...]) -> float:
            left = without_slack(delta, slack)
            return self.epsilon_of(others, left) if left > 0 else math.inf

        slack, rest = split(rounds)
        if slack:
            return beside(slack, rest)
        chance, undrawn = sampled_as_slack(rounds)
        least = beside(chance, undrawn) if chance else math.inf
        if not least:
            return 0.0
        fewer = few_kinds(rounds).upper
        return min(least, max(0.0, self._epsilon(fewer, float(delta))))

    def profile_of(self, rounds: tuple[CountedMechanism, ...]) -> Profile:
        """Returns the bound on delta for one record, a function of epsilon.

        `check_supported` accepts the rounds.
        """
        if not rounds:
            return lambda epsilon: 0.0
        if has_bare_sum(rounds):
            return lambda epsilon: 1.0
        choices = with_and_without_slack(rounds)
        if len(choices) > 1:
            some = [self.profile_of(c) for c in choices if self.supports(c)]
            return lambda epsilon: min(each(epsilon) for each in some)
        slack, rest = split(rounds)
        if slack:
            without = self.profile_of(rest)
            return lambda epsilon: with_slack(without(epsilon), slack)
        whole = self._profile(few_kinds(rounds).upper)
        chance, undrawn = sampled_as_slack(rounds)
        others = self.profile_of(undrawn) if chance else whole

        def least(epsilon: float) -> float:
            found = min(1.0, whole(epsilon))
            if 0 < chance < found:
                found = min(found, with_slack(others(epsilon), chance))
            return max(_LEAST_DELTA, found)

        return least


def has_bare_sum(rounds: tuple[CountedMechanism, ...]) -> bool:
    """Returns whether a round releases a sum without noise."""
    return any(mechanism.noise_multiplier == 0 for mechanism, _ in rounds)


def check_delta(delta: float) -> None:
    """Raises unless `delta` is a probability."""
    _check.share("[0, 1]", CHOOSE_DELTA, delta=delta)
