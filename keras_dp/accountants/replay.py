"""The one way from a ledger to a number: a ledger that is read once."""

import contextlib
import math
from collections.abc import Iterable
from typing import NamedTuple

from keras_dp import _check
from keras_dp.accountants.accountant import Accountant, check_delta
from keras_dp.accountants.claim import Claim
from keras_dp.accountants.coverage import kept_plans
from keras_dp.accountants.fourier import Fourier
from keras_dp.accountants.groups import UnitGroup
from keras_dp.accountants.normalize.normalize import (
    normalize,
    normalized,
)
from keras_dp.accountants.normalize.rounds import (
    LedgerLike,
    Neighbours,
    NormalizedRounds,
    counted_rounds,
    rows_per_unit_of,
)
from keras_dp.accountants.normalize.samplings import (
    RELATIONS,
    check_neighbours,
    strongest_neighbours,
    supported_neighbours,
)
from keras_dp.accountants.rdp import RDP
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    AccountRecord,
    CountedRound,
    Header,
    PrivacyLedger,
    Round,
    RunRecord,
)

# The tightest first.
_ALL: tuple[Accountant, ...] = (Fourier(), RDP())


def available_accountants(
    ledger: LedgerLike, *, neighbours: Neighbours | None = None
) -> tuple[Accountant, ...]:
    """Returns the accountants that can replay `ledger`, the tightest first.

    Args:
        ledger: A ledger, a run, or pairs of a Round and its count.
        neighbours: The adjacency relation; by default the strongest that
            all rounds support.

    Returns:
        The accountants; empty if none has a sound bound for every round.

    Raises:
        ValueError: `neighbours` is unknown.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> [each.name for each in available_accountants([(step, 10_000)])]
    ['Fourier', 'RDP']
    """
    try:
        rounds = normalize(ledger, neighbours)
    except UnsupportedEventError:
        return ()
    return tuple(each for each in _ALL if each.supports(rounds))


def tightest(rounds: NormalizedRounds) -> Accountant:
    """Returns the tightest accountant with a bound; `RDP` without any.

    The errors of `RDP` then say why.
    """
    supporting = (each for each in _ALL if each.supports(rounds.mechanisms))
    return next(supporting, RDP())


class RoundsThatCount(NamedTuple):
    """The rounds of each run whose cost is a guarantee, and of all together.

    `kept` says whether each run kept to its plan. The relation is that of the
    cost; `None` if there is none that all rounds support.
    """

    neighbours: Neighbours | None
    of_runs: tuple[tuple[CountedRound, ...], ...]
    kept: tuple[bool, ...]
    together: "Replay"


class Replay:
    """The rounds of a ledger as they were at one moment, and their unit.

    It reads a ledger once, normalizes it once for each adjacency relation, and
    computes each epsilon once. Whoever has several questions makes one replay,
    and passes it on. It can be passed wherever a ledger can. All answers are
    for one unit, with all of its records.

    Rounds without a ledger have no runs, no accounts and an empty head. Their
    header says that the unit is a record, unless one is given. If there are
    accounts, `unpaid` are the rounds for which none of them paid.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> replay = Replay([(step, 10_000)])
    >>> print(replay.claim(delta=1e-5).sentence("patient"))
    epsilon <= 0.9469 at delta = 1e-05, add or remove one patient, certified ...
    """

    def __init__(
        self, ledger: LedgerLike, *, header: Header | None = None
    ) -> None:
        self.header: Header = (
            header
            or getattr(ledger, "header", None)
            or Header(
                "rounds", "record", rows_per_unit=rows_per_unit_of(ledger)
            )
        )
        self.rounds: tuple[CountedRound, ...]
        self.runs: tuple[RunRecord, ...] = ()
        self.accounts: tuple[AccountRecord, ...] = ()
        self.unpaid: tuple[CountedRound, ...] = ()
        self.head = ""
        if isinstance(ledger, PrivacyLedger):
            held = ledger.contents()
            self.rounds, self.runs = held.rounds, held.runs
            self.accounts, self.head = held.accounts, held.meta["head"]
            self.unpaid = held.unpaid if held.accounts else ()
        else:
            self.rounds = tuple(counted_rounds(ledger))
        self._relation: Neighbours | None = None
        self._normalized: dict[Neighbours, NormalizedRounds] = {}
        self._accountants: dict[Neighbours, Accountant] = {}
        # By an accountant, a relation, a delta and a number of units.
        self._epsilons: dict[tuple[Accountant, Neighbours, float, int], float]
        self._epsilons = {}
        self._that_count: dict[Neighbours | None, RoundsThatCount] = {}
        self._fewer: dict[Neighbours, NormalizedRounds] = {}
        # By what the rounds are, a delta and units. Parts of a ledger share it.
        self._bounds: dict[tuple[NormalizedRounds, float, int], float] = {}

    @property
    def rows_per_unit(self) -> int:
        """The largest number of records that one unit has."""
        return self.header.rows_per_unit

    def of(self, rounds: Iterable[tuple[Round, int]]) -> "Replay":
        """Returns the replay of other rounds of the same ledger."""
        part = Replay(tuple(rounds), header=self.header)
        part._bounds = self._bounds
        return part

    def plus(self, rounds: Iterable[tuple[Round, int]]) -> "Replay":
        """Returns the replay of these rounds, followed by others."""
        return self.of((*self.rounds, *rounds))

    def until(self, number: int) -> "Replay":
        """Returns the replay of the runs before a run."""
        runs = tuple(each for each in self.runs if each.number < number)
        part = self.of(pair for run in runs for pair in run.rounds)
        part.runs = runs
        return part

    def that_count(
        self, neighbours: Neighbours | None = None
    ) -> RoundsThatCount:
        """Returns the rounds of each run whose cost is a guarantee.

        They are the plan of a run that did only what was planned before its
        first round. They are the rounds of every other run. The relation is by
        default the strongest that all rounds support which then count.
        """
        if neighbours not in self._that_count:
            self._that_count[neighbours] = self._counted(neighbours)
        return self._that_count[neighbours]

    def _counted(self, neighbours: Neighbours | None) -> RoundsThatCount:
        for relation in RELATIONS if neighbours is None else (neighbours,):
            kept = kept_plans(self.runs, relation)
            rounds = tuple(
                run.plan if run.plan is not None and is_kept else run.rounds
                for run, is_kept in zip(self.runs, kept, strict=True)
            )
            together = self
            if rounds != tuple(run.rounds for run in self.runs):
                together = self.of(pair for run in rounds for pair in run)
            found = RoundsThatCount(relation, rounds, kept, together)
            with contextlib.suppress(UnsupportedEventError):
                if relation in supported_neighbours(together.rounds):
                    return found
        return found._replace(neighbours=neighbours)

    def relation(self, neighbours: Neighbours | None = None) -> Neighbours:
        """Returns the given relation, or the strongest of all rounds."""
        check_neighbours(neighbours)
        if neighbours is not None:
            return neighbours
        if self._relation is None:
            self._relation = strongest_neighbours(self.rounds)
        return self._relation

    def normalized(
        self, neighbours: Neighbours | None = None
    ) -> NormalizedRounds:
        """Returns the mechanisms of the rounds, which accountants read."""
        relation = self.relation(neighbours)
        if relation not in self._normalized:
            self._normalized[relation] = NormalizedRounds(
                relation, normalize(self.rounds, relation), self.rows_per_unit
            )
        return self._normalized[relation]

    def for_many_questions(
        self, neighbours: Neighbours | None = None
    ) -> NormalizedRounds:
        """Returns `normalized`; of very many kinds, few that dominate them."""
        whole = self.normalized(neighbours)
        if whole.neighbours not in self._fewer:
            self._fewer[whole.neighbours] = whole.for_many_questions()
        return self._fewer[whole.neighbours]

    def accountant(self, neighbours: Neighbours | None = None) -> Accountant:
        """Returns the tightest accountant that has a bound for all rounds.

        It is `RDP` if there is none: its errors say why.
        """
        relation = self.relation(neighbours)
        if relation not in self._accountants:
            by: Accountant = RDP()
            with contextlib.suppress(UnsupportedEventError):
                by = tightest(self.normalized(relation))
            self._accountants[relation] = by
        return self._accountants[relation]

    def epsilon(
        self,
        accountant: Accountant,
        *,
        delta: float,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> float:
        """Returns what `accountant.epsilon` does, computed once."""
        rounds = self.normalized(neighbours)
        question = (accountant, rounds.neighbours, float(delta), int(units))
        if question not in self._epsilons:
            self._epsilons[question] = accountant.epsilon(
                rounds, delta=float(delta), units=units
            )
        return self._epsilons[question]

    def bound(
        self,
        *,
        delta: float,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> float:
        """Returns a bound on epsilon, as one of many; `inf` if there is none.

        It is at least that of `claim`, and larger only if there are very many
        kinds of rounds. It is computed once for all parts of a ledger that are
        alike.
        """
        try:
            rounds = self.for_many_questions(neighbours)
            question = (rounds, float(delta), int(units))
            if question not in self._bounds:
                self._bounds[question] = tightest(rounds).epsilon(
                    rounds, delta=float(delta), units=units
                )
            return self._bounds[question]
        except UnsupportedEventError:
            return math.inf

    def claim(
        self,
        *,
        delta: float,
        accountant: Accountant | None = None,
        neighbours: Neighbours | None = None,
        units: int = 1,
    ) -> Claim:
        """Returns the epsilon of the rounds, by the tightest accountant.

        If a round has no sound bound, epsilon is `inf`.
        """
        check_delta(delta)
        _check.integer_at_least(1, units=units)
        relation, name, epsilon = neighbours, None, math.inf
        with contextlib.suppress(UnsupportedEventError):
            relation = self.relation(neighbours)
            by = accountant or self.accountant(relation)
            epsilon = self.epsilon(
                by, delta=delta, neighbours=relation, units=units
            )
            name = by.name
        return Claim(
            epsilon,
            float(delta),
            relation,
            name,
            int(units),
            self.rows_per_unit,
        )


def replay_of(ledger: LedgerLike) -> Replay:
    """Returns a replay as it is, and that of anything else."""
    return ledger if isinstance(ledger, Replay) else Replay(ledger)


def group_of(
    ledger: LedgerLike,
    accountant: Accountant | None,
    neighbours: Neighbours | None,
    units: int,
) -> UnitGroup:
    """Returns the rounds of a ledger, as an accountant bounds them.

    By default it is the tightest one that can replay the ledger.
    """
    rounds = normalized(ledger, neighbours)
    return (accountant or tightest(rounds)).group(rounds, None, units)
