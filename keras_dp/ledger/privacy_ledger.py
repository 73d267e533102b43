"""The ledger of a data set: what was released, durably, before it is used."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from keras_dp.errors import LedgerFormatError, LedgerWriteError
from keras_dp.ledger import chain, connections, copies, creation, log, schema
from keras_dp.ledger.audits import Commitment, Verdict
from keras_dp.ledger.author import this_process
from keras_dp.ledger.charges import Charge, balances_from_text
from keras_dp.ledger.codec import text_from_round
from keras_dp.ledger.contents import (
    AccountRecord,
    CommitmentRecord,
    Contents,
    SealRecord,
    VerdictRecord,
    Verification,
    account_records,
    commitment_records,
    seal_records,
    verdict_records,
)
from keras_dp.ledger.events import Round, SamplingEvent, SumQueryEvent
from keras_dp.ledger.file_handle import FileHandle
from keras_dp.ledger.handle import Handle
from keras_dp.ledger.header import GENERATORS, Header
from keras_dp.ledger.places import FilePlace, Place, place_of
from keras_dp.ledger.reservation import Reservation
from keras_dp.ledger.runs import (
    Run,
    RunRecord,
    append_record,
    append_reservation,
)
from keras_dp.ledger.statements import (
    Account,
    CountedRound,
    RunStart,
    Seal,
)


class PrivacyLedger:
    """Records what was released from one data set, and survives crashes.

    Guarantee: when `record` or `reserve` returns, the rounds are on disk, in
    the file itself (SQLite, rollback journal, `synchronous=EXTRA`) or in the
    log of the server (PostgreSQL), and every later reader counts them. A
    reservation counts in full until it is settled, so that a process that dies
    at any moment leaves a ledger that covers all it released.

    Several processes may write to one ledger at the same time, on several
    machines if it is on a server. A handle belongs to the process that opened
    it, and may be used by all of its threads; a forked process cannot open a
    file that its parent has open.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="paper", unit="example")
    >>> ledger.record(PoissonSampling(probability=0.01),
    ...               [GaussianSum("gradients", 1.0, 4.0)], count=10_000)
    >>> len(ledger), len(ledger.rounds)
    (10000, 1)
    """

    def __init__(self, handle: Handle) -> None:
        """Takes over a handle; use `in_memory` or `open` instead."""
        self._handle = handle
        self._kept: Contents | None = None
        with handle.reading() as connection:
            header = log.meta(connection).get("header")
        if header is None:
            raise LedgerFormatError(
                "The ledger has no header. Restore it from a copy."
            )
        self._header = Header.from_text(header)

    @classmethod
    def in_memory(
        cls,
        *,
        dataset: str,
        unit: str = "example",
        metadata: Mapping[str, str] | None = None,
        generator: str = GENERATORS[0],
        rows_per_unit: int = 1,
    ) -> Self:
        """Returns a new ledger that lives as long as the process.

        Args:
            dataset: Id of the data set.
            unit: The privacy unit, such as "example" or "user".
            metadata: Free text by key. Nothing secret.
            generator: Draws the noise, "chacha20" or "philox".
            rows_per_unit: How many records one unit has at most.
        """
        header = _new_header(dataset, unit, metadata, generator, rows_per_unit)
        connection = schema.new_database(header.as_text())
        connections.adopt(connection)
        return cls(FileHandle(connection, None, writable=True))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        dataset: str | None = None,
        unit: str | None = None,
        metadata: Mapping[str, str] | None = None,
        generator: str | None = None,
        rows_per_unit: int | None = None,
        mode: Literal["a", "r"] = "a",
    ) -> Self:
        """Opens a ledger, or creates it.

        Args:
            path: The file, whose folder must exist. Or the URL of a schema of a
                PostgreSQL database, whose database must exist:
                `postgresql://user@host/database?schema=clinic`; see
                `docs/guarantees.md`.
            dataset: Id of the data set; needed for a new ledger, and compared
                with that of an existing one if given.
            unit: The privacy unit, "example" for a new ledger by default;
                alike.
            metadata: Free text by key, for a new ledger only. Nothing secret.
            generator: Draws the noise: "chacha20" for a new ledger by default,
                or "philox"; compared with that of an existing one if given.
            rows_per_unit: How many records one unit has at most, 1 for a new
                ledger by default; compared with that of an existing one if
                given.
            mode: "a" to append, creating the ledger if there is none; "r" to
                read an existing one. Both undo a commit to a file that was cut
                short; "r" changes nothing else.

        Raises:
            FileNotFoundError: `mode` is "r", and there is no ledger.
            LedgerFormatError: Something else stands there, or it is truncated
                or corrupt.
            LedgerVersionError: Written in another version of the format.
            LedgerIntegrityError: The rows are not those that were written.
            LedgerWriteError: The ledger cannot be written.
            LedgerError: No ledger can have this path; or it cannot be read from
                here; or the parent process had the file open when it forked; or
                a commit was cut short that this process may not undo.
            ValueError: `dataset`, `unit`, `generator` or `rows_per_unit` is not
                the one in the ledger.
        """
        if mode not in ("a", "r"):
            raise ValueError(
                f"`mode` must be 'a' or 'r'. Received: mode={mode!r}."
            )
        place = place_of(path)
        if mode == "a" and not place.exists():
            if dataset is None:
                raise ValueError(
                    "`dataset` must be given to create a ledger. Received: "
                    f"dataset=None, and there is no ledger {place.name!r}."
                )
            header = _new_header(
                dataset, unit, metadata, generator, rows_per_unit
            )
            place.create(header.as_text())
        # Everything is checked before a connection that may write.
        ledger = cls._take(place, writable=False)
        try:
            ledger.verify()
            _check_same(
                ledger.header,
                dataset=dataset,
                unit=unit,
                generator=generator,
                rows_per_unit=rows_per_unit,
            )
        except BaseException:
            ledger.close()
            raise
        if mode == "r":
            return ledger
        ledger.close()
        writer = cls._take(place, writable=True)
        writer._kept = ledger._kept
        return writer

    @classmethod
    def from_json(
        cls, text: str, path: str | os.PathLike[str] | None = None
    ) -> Self:
        """Returns a copy of a ledger, with the same rows and hashes.

        Args:
            text: As `to_json` returns it.
            path: A new file; `None` for a ledger in memory.

        Raises:
            LedgerFormatError: The text is none of a ledger.
            LedgerIntegrityError: Its rows are not those that were written.
            LedgerWriteError: The file exists, or cannot be created.
        """
        database = copies.database_from_text(text)
        connections.adopt(database)
        ledger = cls(FileHandle(database, None, writable=True))
        ledger.verify()
        if path is None:
            return ledger
        place = FilePlace(path)
        if place.exists():
            raise LedgerWriteError(
                "`path` must be the name of a new file. Received: "
                f"path={place.name!r}, which exists. Nothing was changed."
            )
        creation.publish(Path(place.name), database.serialize())
        ledger.close()
        return cls.open(path)

    @classmethod
    def _take(cls, place: Place, *, writable: bool) -> Self:
        handle = place.open(writable=writable)
        try:
            return cls(handle)
        except BaseException:
            handle.close()
            raise

    @property
    def path(self) -> Path | None:
        """The file, `None` for a ledger in memory or on a server."""
        return self._handle.path

    @property
    def name(self) -> str | None:
        """The file, or the URL without a password; `None` in memory."""
        return self._handle.name

    @property
    def header(self) -> Header:
        """The data set, the privacy unit and the generator."""
        return self._header

    @property
    def rounds(self) -> tuple[CountedRound, ...]:
        """All rounds in order, equal neighbours counted together.

        Rounds that are reserved and not settled are among them.
        """
        return self._contents().rounds

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs in the order of their start.

        Rounds that were recorded without a run stand first, as run 0.
        """
        return self._contents().runs

    def rounds_of(self, *runs: int | str) -> tuple[CountedRound, ...]:
        """Returns the rounds of some runs, for accountants to replay.

        Args:
            *runs: Names or numbers; a name stands for all runs that have it.

        Raises:
            ValueError: No run has this name or number.
        """
        found = self.runs
        known = {each.number for each in found} | {each.name for each in found}
        for run in runs:
            if run not in known:
                raise ValueError(
                    "`runs` must be names or numbers of runs in the ledger. "
                    f"Received: {run!r}. It has "
                    f"{[(each.number, each.name) for each in found]!r}."
                )
        chosen = [
            each for each in found if each.number in runs or each.name in runs
        ]
        return tuple(pair for each in chosen for pair in each.rounds)

    @property
    def accounts(self) -> tuple[AccountRecord, ...]:
        """All accounts in the order of their opening."""
        with self._handle.reading() as database:
            return _accounts(database)

    @property
    def seals(self) -> tuple[SealRecord, ...]:
        """All seals in the order of their writing."""
        with self._handle.reading() as database:
            return seal_records(log.rows(database, Seal.kind))

    @property
    def commitments(self) -> tuple[CommitmentRecord, ...]:
        """All commitments to canaries, in the order of their writing."""
        with self._handle.reading() as database:
            return commitment_records(log.rows(database, Commitment.kind))

    @property
    def verdicts(self) -> tuple[VerdictRecord, ...]:
        """All verdicts of audits, in the order of their writing."""
        with self._handle.reading() as database:
            return verdict_records(log.rows(database, Verdict.kind))

    def __bool__(self) -> bool:
        """True: a ledger without rounds is a ledger, `ledger or ...` too."""
        return True

    def __iter__(self) -> Iterator[CountedRound]:
        return iter(self.rounds)

    def __len__(self) -> int:
        """The number of rounds, reserved ones included."""
        with self._handle.reading() as database:
            log.begin(database)
            return int(log.meta(database)["total"])

    @property
    def unsettled(self) -> int:
        """Rounds that are reserved and not settled.

        Their process is running, or died and may not have run them all.
        """
        return self._contents().unsettled

    def record(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
    ) -> None:
        """Adds `count` equal rounds, durably.

        Args:
            sampling: How the sample of each round was drawn.
            queries: The sums released over each sample, at least one.
            count: At least 1, in 64 bits.
            seeded: Whether the caller chose the seed of the rounds.

        Raises:
            LedgerWriteError: The rounds are not recorded. Only if the commit
                itself failed, and the message says so, may they be.
            OverflowError: The count would not fit 64 bits. The rounds are not
                recorded.
        """
        round_ = Round(sampling, tuple(queries), seeded)
        rounds = log.Rounds(text_from_round(round_))
        append_record(self._handle.transaction, rounds, count)

    def reserve(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
    ) -> Reservation:
        """Covers up to `count` equal rounds, durably, before they run.

        They count in full until the reservation is settled.

        Args:
            sampling: How the sample of each round will be drawn.
            queries: The sums to be released over each sample, at least one.
            count: At least 1, in 64 bits.
            seeded: Whether the caller chose the seed of the rounds.

        Raises:
            LedgerWriteError: Nothing may be released. Nothing is reserved,
                unless the commit itself failed: then the rounds may count.
        """
        round_ = Round(sampling, tuple(queries), seeded)
        rounds = log.Rounds(text_from_round(round_))
        return append_reservation(
            self._handle.transaction, rounds, round_, count
        )

    def start_run(
        self,
        name: str,
        *,
        purpose: str = "training",
        description: str = "",
        account: str | None = None,
        model: str = "",
    ) -> Run:
        """Begins a run, to which rounds then belong.

        The ledger notes who begins it, when and where: the user, the machine,
        the process, the program with its hash, and the versions of the
        libraries that are loaded.

        Args:
            name: People call it so.
            purpose: "training", "trial", "preprocessing", "statistics",
                "audit" or "other".
            description: Free text. Nothing secret.
            account: The account that pays for its rounds, if any.
            model: SHA-256 of the model's summary, if there is a model.

        Raises:
            LedgerWriteError: The run has not begun.
            ValueError: The ledger has no such account.
        """
        start = RunStart(
            name, purpose, description, account, model, this_process()
        )
        with self._handle.transaction() as connection:
            names = [each.account.name for each in _accounts(connection)]
            if account is not None and account not in names:
                raise ValueError(
                    f"`account` must be one of {names!r}, which the ledger "
                    f"has. Received: account={account!r}."
                )
            number = log.append_statement(connection, start)
        return Run(self._handle.transaction, number, start)

    def open_account(
        self, account: Account, charge: Charge | None = None
    ) -> AccountRecord:
        """Opens an account. From then on, every round is paid by one.

        `keras_dp.budgets` opens accounts with capacities that keep a promise.

        Args:
            account: Its name, which no other account has, and its capacities.
            charge: Its cost to the account of which it is a share, if any.

        Raises:
            BudgetExceededError: The other account has no room for it.
            LedgerWriteError: It is not opened.
            ValueError: An account has this name.
        """
        with self._handle.transaction() as connection:
            if any(
                account.name == each.account.name
                for each in _accounts(connection)
            ):
                raise ValueError(
                    "`account` must have a name that no account of the ledger "
                    f"has. Received: {account.name!r}."
                )
            log.append_statement(connection, account, charge=charge)
            return _accounts(connection)[-1]

    def seal(self, note: str = "") -> SealRecord:
        """Writes a seal: no row before it is ever changed.

        A certificate that names the seal can be checked later, against this
        ledger or a copy that has grown.

        Args:
            note: Free text. Nothing secret.

        Raises:
            LedgerWriteError: The seal is not written.
        """
        with self._handle.transaction() as connection:
            number = log.append_statement(connection, Seal(note))
            return seal_records([log.row(connection, number)])[0]

    def write_commitment(self, commitment: Commitment) -> CommitmentRecord:
        """Writes which canaries a training will see, before it begins.

        `auditing.FairCoins` makes commitments.

        Args:
            commitment: To be opened by a verdict.

        Raises:
            LedgerWriteError: It is not written.
        """
        with self._handle.transaction() as connection:
            number = log.append_statement(connection, commitment)
            return commitment_records([log.row(connection, number)])[0]

    def write_verdict(self, verdict: Verdict) -> VerdictRecord:
        """Writes what an audit found. It costs nothing.

        `auditing.write_verdict` makes verdicts of lower bounds.

        Args:
            verdict: It speaks of a seal of this ledger.

        Raises:
            LedgerWriteError: The verdict is not written.
            ValueError: The ledger has no such seal, run or commitment; or the
                commitment is another, or came after the training.
        """
        with self._handle.transaction() as connection:
            reason = chain.why_unfit(verdict, log.rows(connection))
            if reason:
                raise ValueError(
                    "`verdict` must speak of rows that the ledger has. "
                    f"Received: {verdict!r}, but {reason}. Nothing was "
                    "written."
                )
            number = log.append_statement(connection, verdict)
            return verdict_records([log.row(connection, number)])[0]

    def to_json(self) -> str:
        """Returns all that the ledger holds, without loss, as JSON."""
        with self._handle.reading() as connection:
            return copies.text_of(log.rows(connection), log.meta(connection))

    def until(self, row: int) -> Self:
        """Returns a copy in memory of the ledger as it stood at a row.

        Args:
            row: In [0, number of rows]. A seal is such a row, and no row
                before it changes any more.

        Raises:
            ValueError: There is no such row.
        """
        with self._handle.reading() as connection:
            rows, meta = log.rows(connection), log.meta(connection)
        if not 0 <= row <= len(rows):
            raise ValueError(
                f"`row` must be in [0, {len(rows)}]. Received: row={row!r}."
            )
        database = copies.database_until(rows, meta, row)
        connections.adopt(database)
        return type(self)(FileHandle(database, None, writable=True))

    def verify(self) -> Verification:
        """Checks that every row is as it was written, and can be read.

        Raises:
            LedgerIntegrityError: A row was edited, added or removed.
            LedgerFormatError: The file has other tables, or a row holds no
                round that this version can read.
        """
        with self._handle.reading() as database:
            self._handle.check_tables(database)
            found = Contents(log.rows(database), log.meta(database))
        found.verify()
        self._kept = found
        return found.verification

    def verified(self) -> Verification:
        """Returns what `verify` does, without reading rows a second time.

        Under a head that was verified stand the rows that were. That they
        were changed since is what `verify` finds.

        Raises:
            LedgerIntegrityError: As `verify`.
            LedgerFormatError: As `verify`.
        """
        with self._handle.reading() as database:
            meta = log.meta(database)
        kept = self._kept
        if kept is None or kept.meta != meta or not kept.is_verified:
            return self.verify()
        return kept.verification

    def close(self) -> None:
        """Lets go of the file."""
        self._handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = "in memory" if self.name is None else repr(self.name)
        state = ", closed" if self._handle.is_closed else ""
        return (
            f"<PrivacyLedger {place}, dataset={self._header.dataset!r}, "
            f"unit={self._header.unit!r}{state}>"
        )

    def _contents(self) -> Contents:
        """Returns what stands in the ledger now, read anew if it has changed.

        The head is a hash over all rows: under the same head stand the same.
        """
        with self._handle.reading() as database:
            meta = log.meta(database)
            if self._kept is None or self._kept.meta != meta:
                self._kept = None  # Its memory is free before more is read.
                self._kept = Contents(log.rows(database), meta)
            return self._kept


def _accounts(database: log.Database) -> tuple[AccountRecord, ...]:
    balances = balances_from_text(log.meta(database)["balances"])
    rows = [log.row(database, number) for number in sorted(balances)]
    return account_records(rows, balances)


def _new_header(
    dataset: str,
    unit: str | None,
    metadata: Mapping[str, str] | None,
    generator: str | None,
    rows_per_unit: int | None,
) -> Header:
    return Header(
        dataset,
        "example" if unit is None else unit,
        tuple((metadata or {}).items()),
        GENERATORS[0] if generator is None else generator,
        1 if rows_per_unit is None else rows_per_unit,
    )


def _check_same(header: Header, **given_by_name: Any) -> None:
    for name, given in given_by_name.items():
        own = getattr(header, name)
        if given is not None and given != own:
            raise ValueError(
                f"`{name}` must be {own!r}, as in the ledger. "
                f"Received: {name}={given!r}. A ledger belongs to one data "
                "set, one privacy unit and one generator: create another for "
                "another."
            )
