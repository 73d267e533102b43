"""Rounds that are covered by the ledger before they run."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from keras_dp import _check
from keras_dp.errors import LedgerError, LedgerWriteError
from keras_dp.ledger import log
from keras_dp.ledger.charges import Charge
from keras_dp.ledger.codec import text_from_round
from keras_dp.ledger.events import Round

Transaction = Callable[[], contextlib.AbstractContextManager[log.Database]]


class Reservation:
    """A block of equal rounds, counted in full until it is settled.

    Made by `PrivacyLedger.reserve`. If the process dies, or `settle` is never
    called, the whole block stays counted.

    Attributes:
        round: The sample and the releases of each of the rounds.
        count: How many are reserved.

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

        Call it before a round that the block covers. A forked process has a
        copy of the block, and would run the same rounds a second time.

        Raises:
            LedgerWriteError: The process was forked since.
        """
        if self._process != os.getpid():
            raise LedgerWriteError(
                "The rounds were reserved before this process was forked. "
                "Nothing may be released that the ledger does not cover. Open "
                "the ledger in this process, and reserve rounds of its own."
            )

    def settle(self, used: int) -> None:
        """Counts `used` rounds instead of the whole block, durably.

        Args:
            used: In `[0, count]`.

        Raises:
            LedgerError: The reservation is settled already.
            LedgerWriteError: The block still counts in full. Only if the
                commit itself failed, and the message says so, may it count
                as `used` rounds.
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
            used: In `[0, self.count]`.
            count: Rounds of the next block, at least 1.
            round_: The sample and the releases of each; by default the same.
            charge: The cost of each `round_` to the account of the run, if it
                has one and the round is another.

        Raises:
            BudgetExceededError: The account has no room for the next block.
                This one still counts in full.
            LedgerError: The reservation is settled already.
            LedgerWriteError: This block still counts in full, and the next one
                is not reserved. Only if the commit itself failed, and the
                message says so, may both have happened. Release nothing.
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
                f"`used` must be <= {self.count}, what was reserved. "
                f"Received: used={used!r}."
            )
        with self._lock:
            if not self._is_open:
                raise LedgerError("The reservation is settled already.")
            # Closed first: after an interrupt nobody knows whether it was
            # settled, and the row's number may be that of another block.
            self._is_open = False
            try:
                with self._transaction() as connection:
                    yield connection
            except Exception:
                self._is_open = True
                raise

    def _settle(self, connection: log.Database, used: int) -> None:
        log.settle(connection, self._row, self._rounds, self.count, int(used))
