"""A run of the ledger, as one training keeps it."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable

from keras_dp import _check
from keras_dp._counted import first_of
from keras_dp.budgets import charge_of, chosen_account
from keras_dp.errors import (
    BudgetExceededError,
    LedgerError,
    PrivateTrainingError,
)
from keras_dp.ledger import (
    AccountRecord,
    Charge,
    CountedRound,
    PrivacyLedger,
    Reservation,
    Round,
    Run,
)
from keras_dp.ledger.rows.header import GENERATOR
from keras_dp.ledger.rows.statements import PURPOSES
from keras_dp.spending.epsilon_limit import EpsilonLimit

Coming = Callable[[Round, int], Iterable[tuple[Round, int]]]
Correlated = Callable[[Round], list[tuple[Round, int]] | None]


@dataclasses.dataclass(frozen=True, slots=True)
class RunDetails:
    """How the ledger describes a training.

    Attributes:
        name: The name of the model by default.
        purpose: "training", "trial" (its result only guides other trainings),
            "preprocessing", "statistics", "audit" or "other". By default
            "training", or "preprocessing" if a layer is adapted.
        description: Free text. It must hold nothing secret.
        account: The account that pays. By default the only one of the ledger.
        continues: The number of an interrupted run of the ledger. The training
            then has the rounds that the plan of this run has left, and adds
            them to it. `make_private` finds such a run by itself.

    >>> RunDetails("learning rate 0.1", purpose="trial").account is None
    True
    """

    name: str | None = None
    purpose: str | None = None
    description: str = ""
    account: str | None = None
    continues: int | None = None

    def __post_init__(self) -> None:
        if self.name is not None:
            _check.non_empty_text(name=self.name)
        if self.purpose is not None:
            _check.one_of(PURPOSES, purpose=self.purpose)
        _check.kind(str, description=self.description)
        if self.continues is not None:
            _check.integer_at_least(1, continues=self.continues)

    @classmethod
    def of(cls, given: "RunDetails | str | None") -> "RunDetails":
        """Returns the details, made of a name if a text is given.

        Raises:
            TypeError: Something else was given.
        """
        if isinstance(given, RunDetails):
            return given
        if given is not None and not isinstance(given, str):
            raise TypeError(
                "`run` must be a name or RunDetails. Received: "
                f"run={given!r}. Pass such as RunDetails(name='night')."
            )
        return cls(given)


class TrainingRun:
    """Begins or continues a run of the ledger with its first rounds; ends it.

    Where the ledger has accounts, it charges the one of the run, and reserves
    no more rounds than that one has room for.

    Attributes:
        ledger: Where rounds are recorded.
        note: Text that is added to the description when the run begins.
    """

    def __init__(
        self,
        ledger: PrivacyLedger,
        details: RunDetails | None = None,
        *,
        name: str = "training",
        purpose: str = "training",
        model: str = "",
        library: str = "",
        most: int | None = None,
        limit: EpsilonLimit | None = None,
        coming: Coming = lambda planned, rounds: [(planned, rounds)],
        correlated: Correlated = lambda planned: None,
        delta: float | None = None,
    ) -> None:
        """Starts without a row in the ledger.

        Args:
            ledger: Where rounds are recorded.
            details: Its name, purpose and account.
            name: The name by default.
            purpose: The purpose by default.
            model: SHA-256 of the model's summary.
            library: The other library that runs the rounds, with its version;
                empty for this one.
            most: The most rounds that will run; `None` if nobody knows.
            limit: How many rounds a target leaves room for.
            coming: From the first round and a number to all rounds, counted.
            correlated: From the first round to all rounds that are left of
                correlated noise, counted; `None` for independent noise.
            delta: The delta of the plan; `None` for none.

        Raises:
            PrivateTrainingError: The ledger names another generator of noise
                than the one that draws.
            ValueError: The ledger has no such account, or several of which
                none was named; or no such run has rounds of its plan left.
        """
        if ledger.header.generator != GENERATOR:
            raise PrivateTrainingError(
                f"`ledger` must name {GENERATOR!r}, the generator that draws "
                f"the noise. Received: a ledger of "
                f"{ledger.header.generator!r}, which can only be read. Open "
                "another ledger, and add up what both certify."
            )
        self.ledger, self._limit, self.note = ledger, limit, ""
        self._details = RunDetails() if details is None else details
        self._name, self._purpose = name, purpose
        self._model, self._library, self._most = model, library, most
        self._account = chosen_account(ledger, self._details.account)
        self._run: Run | None = None
        self._own, self._coming, self._delta = 0, coming, delta
        self._rounds_of_noise = correlated
        self._correlated: list[tuple[Round, int]] | None = None
        self._rest: CountedRound | None = None
        if self._details.continues is not None:
            self._rest = self._rest_of(self._details.continues)
            self._most = self._rest.count

    @property
    def number(self) -> int | None:
        """Its number in the ledger, `None` before its first rounds."""
        return None if self._run is None else self._run.number

    @property
    def row(self) -> int | None:
        """The row in which it began, `None` before its first rounds."""
        return None if self._run is None else self._run.row

    @property
    def has_limit(self) -> bool:
        """Whether a target, an account or a plan may end it."""
        limits = self._limit, self._account, self._rest
        return any(limit is not None for limit in limits)

    def expect(self, most: int | None) -> None:
        """Says anew how many rounds will run at most, before the first.

        Args:
            most: As in the constructor. A run that is continued has its plan
                already.
        """
        if self._rest is None:
            self._most = most

    def room(self, planned: Round, count: int) -> int:
        """Returns how many of `count` rounds target, account and plan allow.

        Args:
            planned: One of the rounds.
            count: >= 1.
        """
        if self._run is None and not self._own:
            self._correlated = self._rounds_of_noise(planned)
        if self._correlated is not None:
            count = self._correlated_room(self._correlated, count)
        elif self._limit is not None:
            promised = (self._most or 0) - self._own
            count = self._limit.allowed(planned, count, self._own, promised)
        if self._rest is not None:
            count = min(count, self._rest.count - self._own)
        account, charge = self._account_now(), self._charge(planned)
        if account is not None and count and charge is not None:
            count = account.balance.room(charge, count)
        return count

    def _correlated_room(
        self, coming: list[tuple[Round, int]], count: int
    ) -> int:
        """Returns how many of `count` rounds of correlated noise fit.

        Raises:
            ValueError: The noise ends before the training would.
        """
        rounds = sum(n for _, n in coming)
        if self._most is not None and self._most > rounds:
            raise ValueError(
                "Correlated noise must have as many rounds left as the "
                f"training has. Received: {rounds:,} rounds that are left "
                f"of the mechanism, and {self._most:,} in the training. "
                f"Train for at most {rounds:,} rounds, or make a new query "
                "and optimizer: their mechanism costs anew."
            )
        count = min(count, rounds - self._own)
        if self._limit is None or not count:
            return count
        return self._limit.allowed_of(coming, count, self._own)

    def reserve(
        self, planned: Round, count: int, block: Reservation | None
    ) -> Reservation:
        """Reserves the next block of rounds, as many as there is room for.

        Args:
            planned: One of the rounds.
            count: How many, at most. The rounds that are left of the training
                bound them, too: a process that dies is charged for its block.
            block: The block before, all of whose rounds ran, if there is one.

        Raises:
            BudgetExceededError: There is no room for a single round.
            LedgerWriteError: The ledger cannot be written.
        """
        if self._most is not None:
            count = max(1, min(count, self._most - self._own))
        while True:
            allowed = self.room(planned, count)
            if not allowed:
                raise self._exceeded(planned)
            try:
                reserved = self._reserve(planned, allowed, block)
            except BudgetExceededError:
                continue  # Another process was faster: there is less room.
            self._own += allowed
            return reserved

    def settled(self, unused: int) -> None:
        """Notes that rounds of the last block did not run."""
        self._own -= unused

    def record(self, planned: Round) -> None:
        """Adds one round that was released and not covered.

        Raises:
            BudgetExceededError: Its account has no room for it.
        """
        self._started(planned).record(
            planned.sampling,
            planned.queries,
            seeded=planned.seeded,
            charge=self._charge(planned),
        )

    def finish(self, *, failed: bool, exhausted: bool) -> None:
        """Ends the run, if it has begun.

        Args:
            failed: Whether an exception ended it.
            exhausted: Whether there is no room for a round more.
        """
        run, self._run = self._run, None
        if run is None:
            return
        if failed:
            run.finish("failed")
        elif self._most is not None and self._own >= self._most:
            run.finish("finished")
        elif exhausted:
            run.finish("budget")
        else:
            run.finish("finished" if self._most is None else "stopped")

    def abandon(self) -> None:
        """Ends the run if it is still open, when nothing more can come.

        Where the ledger was closed before, it shows later that the process is
        gone.
        """
        with contextlib.suppress(LedgerError):
            self.finish(failed=False, exhausted=False)

    def _reserve(
        self, planned: Round, count: int, block: Reservation | None
    ) -> Reservation:
        charge = self._charge(planned)
        if block is not None:
            return block.renew(block.count, count, planned, charge)
        return self._started(planned).reserve(
            planned.sampling,
            planned.queries,
            count,
            seeded=planned.seeded,
            charge=charge,
        )

    def _started(self, planned: Round) -> Run:
        """Returns the run; begun and planned before its first round."""
        if self._run is None and self._rest is not None:
            self._run = self._continued(self._rest, planned)
        if self._run is None:
            most, coming = self._most, None
            if most is not None:
                most = self.room(planned, most)
            if most and self._correlated is None:
                coming = list(self._coming(planned, most))
            elif most:
                coming = first_of(self._correlated or (), most)
            self._run = self.ledger.start_run(
                self._details.name or self._name,
                purpose=self._details.purpose or self._purpose,
                description="; ".join(
                    filter(None, (self._details.description, self.note))
                ),
                account=None
                if self._account is None
                else self._account.account.name,
                model=self._model,
                library=self._library,
            )
            if coming:
                self._run.plan(coming, delta=self._delta)
        return self._run

    def _rest_of(self, number: int) -> CountedRound:
        """Returns what the plan of an interrupted run has left.

        Raises:
            ValueError: No such run has anything left, or its account is
                another one.
        """
        account = None if self._account is None else self._account.account.name
        rests = {
            run.number: run.rest
            for run in self.ledger.runs
            if run.start is not None
            and run.start.account == account
            and _named(run.start.library) == _named(self._library)
        }
        rest = rests.get(number)
        if rest is None:
            left = [each for each, found in rests.items() if found is not None]
            raise ValueError(
                "`continues` must be the number of an interrupted run that has "
                "rounds of its plan left, of the same library, and paid for by "
                "the same account. "
                f"Received: continues={number!r}. The ledger has such runs of "
                f"the numbers {left!r}."
            )
        return rest

    def _continued(self, rest: CountedRound, planned: Round) -> Run:
        """Returns the run whose plan goes on.

        Raises:
            PrivateTrainingError: The rounds are others than those of the plan.
            ValueError: The run cannot be continued any more.
        """
        number = self._details.continues or 0
        if planned != rest.round:
            raise PrivateTrainingError(
                f"A training that continues run {number} must have the rounds "
                f"of its plan, {rest.round!r}. Received: {planned!r}. No round "
                "ran. Call make_private with the arguments of that run, or "
                "start another run (`run=RunDetails(...)`)."
            )
        return self.ledger.continue_run(number, library=self._library)

    def _account_now(self) -> AccountRecord | None:
        if self._account is None:
            return None
        return next(
            each
            for each in self.ledger.accounts
            if each.number == self._account.number
        )

    def _charge(self, planned: Round) -> Charge | None:
        if self._account is None:
            return None
        return charge_of(self._account, planned)

    def _exceeded(self, planned: Round) -> BudgetExceededError:
        limit, account = self._limit, self._account_now()
        if limit is not None and not limit.allowed(planned, 1, self._own):
            return limit.exceeded()
        if self._rest is not None and self._own >= self._rest.count:
            return BudgetExceededError(
                "The plan of the run must have one more round. Received: run "
                f"{self._details.continues}, which has none left. No round "
                "ran. Start another run."
            )
        name = None if account is None else account.account.name
        return BudgetExceededError(
            "The account must have room for one more round. Received: the "
            f"account {name!r}, which has none for {planned!r}. No round ran. "
            "Take more noise or smaller samples, or another account "
            "(`run=RunDetails(account=...)`)."
        )


def _named(library: str) -> str:
    """Returns the name of a library without its version."""
    return library.partition(" ")[0]
