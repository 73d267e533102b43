"""Rounds are recorded once they ran, or reserved before they run."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator

from keras_dp import _check
from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger.events.rounds import Round, SamplingEvent, SumQueryEvent
from keras_dp.ledger.rows import log
from keras_dp.ledger.rows.charges import Charge
from keras_dp.ledger.rows.codec import text_from_round

Transaction = Callable[[], contextlib.AbstractContextManager[log.Database]]


class Reservation:
    """A block of equal rounds, which counts in full until it is settled.

    `PrivacyLedger.reserve` and `Run.reserve` make reservations. If the process
    dies, or `settle` is never called, the whole block stays counted.

    Attributes:
        round: The sample and the releases of each round.
        count: The number of rounds that are reserved.

    >>> from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger
    >>> ledger = PrivacyLedger.in_memory(dataset="doc")
    >>> queries = [GaussianSum("sum", 1.0, 2.0)]
    >>> block = ledger.reserve(FullDataset(), queries, count=10)
    >>> len(ledger), ledger.unsettled
    (10, 10)
    >>> block.settle(used=3)
    >>> len(ledger), ledger.unsettled
    (3, 0)
    """

    def __init__(
        self,
        transaction: Transaction,
        row: int,
        rounds: log.Rounds,
        round_: Round,
        count: int,
    ) -> None:
        self._transaction, self._row, self._rounds = transaction, row, rounds
        self.round, self.count = round_, count
        self._process = os.getpid()
        self._is_open = True
        self._lock = threading.RLock()

    def check_process(self) -> None:
        """Raises unless this process made the reservation.

        Call it before each round of the block. A forked process has a copy of
        the block, and would run the same rounds a second time.

        Raises:
            LedgerWriteError: Another process made the reservation, from which
                this one was forked.
        """
        if self._process != os.getpid():
            raise LedgerWriteError(
                "The rounds were reserved before this process was forked, by "
                "its parent. This process must not release them. Open the "
                "ledger in this process, and reserve other rounds."
            )

    def settle(self, used: int) -> None:
        """Counts the rounds that ran, in place of the whole block.

        Args:
            used: The number of rounds that ran, in `[0, count]`.

        Raises:
            ValueError: `used` is not in `[0, count]`.
            LedgerError: The reservation is settled already.
            LedgerIntegrityError: The reservation in the ledger was edited.
            LedgerWriteError: The block still counts in full, unless the commit
                itself failed: then the message says that it may count as
                `used` rounds.
        """
        with self._closing(used) as connection:
            self._settle(connection, used)

    def renew(
        self,
        used: int,
        count: int,
        round_: Round | None = None,
        charge: Charge | None = None,
    ) -> "Reservation":
        """Settles this block and reserves the next one, in one transaction.

        Args:
            used: The number of rounds of this block that ran, in `[0, count]`
                of this block.
            count: The number of rounds in the next block, >= 1.
            round_: The sample and the releases of each round in the next block;
                by default the same as in this one.
            charge: The cost of `round_` to the account of the run, if the run
                has one and `round_` differs from this block's round.

        Returns:
            The next block.

        Raises:
            BudgetExceededError: The account has no room for the next block.
                This block still counts in full.
            LedgerError: The reservation is settled already.
            LedgerWriteError: This block still counts in full, and the next one
                is not reserved; release nothing. If the commit itself failed,
                the message says that both may have happened.
        """
        _check.integer_at_least(1, count=count)
        rounds = self._rounds
        if round_ is None or round_ == self.round:
            round_ = self.round
        else:
            rounds = log.Rounds(text_from_round(round_), rounds.run, charge)
        with self._closing(used) as connection:
            self._settle(connection, used)
            row = log.append_reservation(connection, rounds, int(count))
        return Reservation(self._transaction, row, rounds, round_, int(count))

    @contextlib.contextmanager
    def _closing(self, used: int) -> Iterator[log.Database]:
        """Runs a transaction that settles the block, at most once."""
        _check.integer_at_least(0, used=used)
        if used > self.count:
            raise ValueError(
                f"`used` must be <= {self.count}, the number of rounds that "
                f"were reserved. Received: used={used!r}."
            )
        with self._lock:
            if not self._is_open:
                raise LedgerError(
                    "The reservation is settled already. Reserve other rounds."
                )
            # Closed first: after an interrupt nobody knows whether it was
            # settled, and the row may by now hold another block.
            self._is_open = False
            try:
                with self._transaction() as connection:
                    yield connection
            except Exception:
                self._is_open = True
                raise

    def _settle(self, connection: log.Database, used: int) -> None:
        log.settle(connection, self._row, self._rounds, self.count, int(used))


class Recorder:
    """Adds rounds to a ledger, or to one of its runs.

    `PrivacyLedger` and `Run` are recorders.
    """

    def __init__(
        self, transaction: Transaction, row: int | None = None
    ) -> None:
        """Takes how to write.

        Args:
            transaction: Runs one transaction of the ledger.
            row: The row in which the run began; `None` without a run.
        """
        self._transaction, self._run = transaction, row

    def record(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
        charge: Charge | None = None,
    ) -> None:
        """Adds `count` equal rounds, and returns when they are on disk.

        Args:
            sampling: How the sample of each round was drawn.
            queries: The sums that were released over each sample, at least
                one.
            count: The number of rounds, >= 1.
            seeded: Whether the caller chose the seed of the rounds.
            charge: The price that the account of the run pays per round, as
                `budgets.charge_of` returns it; `None` without accounts. In a
                ledger with accounts only runs can add rounds.

        Raises:
            BudgetExceededError: The account has no room for the rounds.
            LedgerWriteError: The rounds were not recorded. An exception is a
                commit that itself failed: the rounds may be in the ledger, and
                the message says so. Also raised for a run that has ended, and
                without a charge in a ledger with accounts.
            OverflowError: The number of all rounds would not fit 64 bits. The
                rounds were not recorded.
            ValueError: There is a charge, and no run.
        """
        _check.integer_at_least(1, count=count)
        round_ = Round(sampling, tuple(queries), seeded)
        rounds = self._paid_by(charge, round_)
        with self._transaction() as connection:
            log.append_record(connection, rounds, int(count))

    def reserve(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
        charge: Charge | None = None,
    ) -> Reservation:
        """Reserves up to `count` equal rounds, on disk, before they run.

        All of them count until the reservation is settled.

        Args:
            sampling: How the sample of each round will be drawn.
            queries: The sums that each round will release, at least one.
            count: The largest number of rounds, >= 1.
            seeded: Whether the caller chose the seed of the rounds.
            charge: See `record`.

        Returns:
            The reservation, whose `settle` takes the number of rounds that ran.

        Raises:
            BudgetExceededError: The account has no room for the rounds.
            LedgerWriteError: No round may be released. Nothing was reserved,
                unless the commit itself failed: then the rounds may count. Also
                raised for a run that has ended, and without a charge in a
                ledger with accounts.
            OverflowError: The number of all rounds would not fit 64 bits.
            ValueError: There is a charge, and no run.
        """
        _check.integer_at_least(1, count=count)
        round_ = Round(sampling, tuple(queries), seeded)
        rounds = self._paid_by(charge, round_)
        with self._transaction() as connection:
            row = log.append_reservation(connection, rounds, int(count))
        return Reservation(self._transaction, row, rounds, round_, int(count))

    def _paid_by(self, charge: Charge | None, round_: Round) -> log.Rounds:
        if charge is not None and self._run is None:
            raise ValueError(
                "`charge` must be None for rounds outside of a run, which have "
                f"no account. Received: charge={charge!r}. Start a run with "
                "`ledger.start_run(name, account=...)`."
            )
        return log.Rounds(text_from_round(round_), self._run, charge)
