"""A run of the ledger: its name, and what it may spend."""

import dataclasses
from typing import Any

from keras_dp import _check
from keras_dp._counted import first_of
from keras_dp._override import override
from keras_dp.budgets import charge_of, chosen_account
from keras_dp.errors import (
    BudgetExceededError,
    PrivateTrainingError,
)
from keras_dp.ledger import (
    Allowance,
    Charge,
    CountedRound,
    Forecast,
    Limits,
    PrivacyLedger,
    Round,
    RunWriter,
)
from keras_dp.ledger.rows.author import this_process
from keras_dp.ledger.rows.statements import PURPOSES, RunPlan, RunStart
from keras_dp.spending.epsilon_limit import EpsilonLimit


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

    def continuing(self, row: int | None, ledger: Any) -> "RunDetails":
        """Returns details that continue a run, if that was interrupted.

        Args:
            row: The row in which the run began; `None` without one.
            ledger: Where it is recorded.
        """
        runs = ledger.runs if isinstance(ledger, PrivacyLedger) else ()
        for run in runs:
            if run.row == row and run.rest is not None:
                return dataclasses.replace(self, continues=run.number)
        return self


class RunLimits(Limits):
    """An epsilon, an account and a plan, which a run does not exceed.

    Where the ledger has accounts, it charges the one of the run, and allows no
    more rounds than that one has room for.

    Attributes:
        most: The most rounds that will run; `None` if nobody knows.
    """

    def __init__(
        self,
        ledger: PrivacyLedger,
        *,
        account: str | None = None,
        most: int | None = None,
        epsilon_limit: EpsilonLimit | None = None,
        delta: float | None = None,
        continues: int | None = None,
    ) -> None:
        """Takes what limits a run.

        Args:
            ledger: Where rounds are recorded.
            account: The name of the account; by default the only one.
            most: The most rounds that will run; `None` if nobody knows.
            epsilon_limit: How many rounds a target leaves room for.
            delta: The delta of the plan; `None` for none.
            continues: The number of the interrupted run that goes on; it has
                the rounds that its plan has left.

        Raises:
            ValueError: The ledger has no such account, or several of which
                none was named; or no such run that can be continued.
        """
        if most is not None:
            _check.integer_at_least(1, most=most)
        self._ledger, self._epsilon_limit = ledger, epsilon_limit
        self._account = chosen_account(ledger, account)
        if self._account is not None:
            self.account = self._account.account.name
        self.most, rest = most, None
        if continues is not None:
            rest, self.row = _rest_of(ledger, continues, self.account)
            self.most = rest.count
        self._rest = rest
        self._forecast, self._delta = Forecast(most), delta
        limits = epsilon_limit, self._account, rest
        self.is_limited = any(limit is not None for limit in limits)

    @override
    def expect(self, forecast: Forecast) -> None:
        self._forecast = forecast
        if self._rest is None:
            self.most = forecast.most
        rounds = sum(count for _, count in forecast.rounds)
        if forecast.are_all and self.most is not None and self.most > rounds:
            raise ValueError(
                "Correlated noise must have as many rounds left as the "
                f"training has. Received: {rounds:,} rounds that are left "
                f"of the mechanism, and {self.most:,} in the training. "
                f"Train for at most {rounds:,} rounds, or make a new query "
                "and optimizer: their mechanism costs anew."
            )

    @override
    def allow(self, planned: Round, count: int, own: int) -> Allowance:
        if not own:
            self._check_continued(planned)
        # The plan is of the rounds that there is room for, perhaps of more.
        most = 0
        if self.row is None and self._rest is None:
            most = self.most or 0
        # Read before the account is: what is written between shows.
        head = self._ledger.head if self.is_limited else ""
        room, coming = max(count, most), self._forecast.rounds
        if self._forecast.are_all:
            room = min(room, sum(n for _, n in coming) - own)
        limit = self._epsilon_limit
        if limit is not None and room:
            if self._forecast.are_all:
                room = limit.allowed_of(coming, room, own, self.row)
            else:
                promised = (self.most or 0) - own
                room = limit.allowed(planned, room, promised, self.row)
            head = limit.head_seen
        if self._rest is not None:
            room = min(room, self._rest.count - own)
        charge = self.charge(planned)
        # The account itself refuses what it cannot pay when rounds are covered.
        if charge is not None and room:
            opened = {each.number: each for each in self._ledger.accounts}
            room = opened[charge.account].balance.room(charge, room)
        plan = None
        if most := min(most, room):
            rounds = first_of(coming or [(planned, most)], most)
            plan = RunPlan.of(rounds, self._delta)
        return Allowance(min(count, room), head, charge, plan)

    def _check_continued(self, planned: Round) -> None:
        """Raises if the run goes on with other rounds than those planned."""
        if self._rest is not None and planned != self._rest.round:
            raise PrivateTrainingError(
                "A training that continues a run must have the rounds of "
                f"its plan, {self._rest.round!r}. Received: {planned!r}. "
                "No round ran. Call make_private with the arguments of "
                "that run, or start another run (`run=RunDetails(...)`)."
            )

    @override
    def charge(self, planned: Round) -> Charge | None:
        if self._account is None:
            return None
        return charge_of(self._account, planned)

    @override
    def exceeded(
        self, planned: Round, count: int, own: int
    ) -> BudgetExceededError:
        rounds = "one more round" if count == 1 else f"{count:,} more rounds"
        if self._rest is not None and own + count > self._rest.count:
            return BudgetExceededError(
                f"The plan of the run must have {rounds}. Received: a run "
                f"of {self._rest.count:,} rounds, which has "
                f"{self._rest.count - own:,} left. No round ran. Start another "
                "run."
            )
        if self._epsilon_limit is not None and (
            self._account is None
            or self._epsilon_limit.allowed(planned, count, 0, self.row) < count
        ):
            return self._epsilon_limit.exceeded(rounds)
        return BudgetExceededError(
            f"The account must have room for {rounds}. Received: the "
            f"account {self.account!r}, which has none for {planned!r}. No "
            "round ran. Take more noise or smaller samples, or another account "
            "(`run=RunDetails(account=...)`)."
        )


def new_run(
    ledger: PrivacyLedger,
    details: RunDetails | None = None,
    *,
    name: str = "training",
    purpose: str = "training",
    model: str = "",
    most: int | None = None,
    epsilon_limit: EpsilonLimit | None = None,
    delta: float | None = None,
) -> RunWriter:
    """Returns a run that begins, or goes on, with its first round.

    The name and the purpose are those of the details, by default the given
    ones. The other arguments limit it, as in `RunLimits`.
    """
    details = RunDetails() if details is None else details
    limits = RunLimits(
        ledger,
        account=details.account,
        most=most,
        epsilon_limit=epsilon_limit,
        delta=delta,
        continues=details.continues,
    )
    start = RunStart(
        details.name or name,
        details.purpose or purpose,
        details.description,
        limits.account,
        model,
        this_process(),
    )
    return RunWriter(ledger.lock, start, limits, details.continues)


def _rest_of(
    ledger: PrivacyLedger, number: int, account: str | None
) -> tuple[CountedRound, int]:
    """Returns what the plan of an interrupted run has left, and its row.

    It refuses a run that has nothing left, that another account pays for, or
    that another library ran.
    """
    rests = {
        run.number: (run.rest, run.row)
        for run in ledger.runs
        if run.start is not None
        and run.start.account == account
        and not run.start.library
    }
    rest, row = rests.get(number, (None, 0))
    if rest is None:
        left = [each for each, (found, _) in rests.items() if found is not None]
        raise ValueError(
            "`continues` must be the number of an interrupted run that has "
            "rounds of its plan left, that this library ran, and that the same "
            f"account pays for. Received: continues={number!r}. The ledger has "
            f"such runs of the numbers {left!r}."
        )
    return rest, row
