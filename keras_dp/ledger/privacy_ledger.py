"""The ledger of a data set: each release is on disk before it is used."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from keras_dp import _check
from keras_dp.errors import LedgerFormatError
from keras_dp.ledger.events.rounds import (
    CountedRound,
    Round,
    SamplingEvent,
    SumQueryEvent,
)
from keras_dp.ledger.places import connections, schema
from keras_dp.ledger.places.handle import Handle
from keras_dp.ledger.places.place import FileHandle, Place, place_of
from keras_dp.ledger.rows import log
from keras_dp.ledger.rows.author import this_process
from keras_dp.ledger.rows.codec import text_from_round
from keras_dp.ledger.rows.contents import (
    AccountRecord,
    Contents,
    RunRecord,
    SealRecord,
    Verification,
    accounts_of,
    verified,
)
from keras_dp.ledger.rows.header import Header
from keras_dp.ledger.rows.run_writer import Limits, RunWriter
from keras_dp.ledger.rows.statements import (
    Account,
    RunPlan,
    RunStart,
    Seal,
)

# Decides on an account, given the accounts and the rounds of the ledger.
Decision: TypeAlias = Callable[
    [tuple[AccountRecord, ...], tuple[CountedRound, ...]], Account
]


class PrivacyLedger:
    """Records what was released from one data set, and survives crashes.

    Guarantee: when `record`, or `cover` of a run, returns, the rounds are on
    disk, in the file itself (SQLite, rollback journal, `synchronous=EXTRA`) or
    in the log of the server (PostgreSQL), and every later reader counts them. A
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
        rows_per_unit: int = 1,
    ) -> Self:
        """Returns a new ledger that lives as long as the process.

        Args:
            dataset: A name of your choice for the data set.
            unit: The privacy unit, such as "example" or "user".
            rows_per_unit: The largest number of records that one unit has,
                >= 1.

        Raises:
            ValueError: A text is empty, or `rows_per_unit` is below 1.

        >>> PrivacyLedger.in_memory(dataset="doc", unit="patient")
        <PrivacyLedger in memory, dataset='doc', unit='patient'>
        """
        header = _new_header(dataset, unit, rows_per_unit)
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
        rows_per_unit: int | None = None,
        mode: Literal["a", "r"] = "a",
    ) -> Self:
        """Opens a ledger and checks every row, or creates a new ledger.

        A new ledger takes `unit="example"` and `rows_per_unit=1` for arguments
        that are left out. An existing ledger
        has its own values: an argument that is given must be equal to the
        ledger's.

        Args:
            path: The name of a file in a folder that exists. Or the URL of a
                schema in a PostgreSQL database that exists:
                `postgresql://user@host/database?schema=clinic`; see
                `docs/guarantees.md`.
            dataset: A name of your choice for the data set; a new ledger needs
                it.
            unit: The privacy unit, such as "example" or "user".
            rows_per_unit: The largest number of records that one unit has,
                >= 1.
            mode: "a" to append, creating the ledger if there is none; "r" to
                read an existing one. If a process died while it wrote to the
                file, both modes undo its unfinished commit; "r" changes
                nothing else.

        Raises:
            FileNotFoundError: `mode` is "r", and there is no ledger.
            LedgerFormatError: The file or the schema holds something else than
                a ledger, or the ledger is truncated or corrupt.
            LedgerVersionError: The ledger has another version of the format.
            LedgerIntegrityError: A row was edited, added or removed.
            LedgerWriteError: The ledger cannot be created or written.
            LedgerError: No ledger can have this path; or the ledger cannot be
                read from this machine; or the parent process had the file open
                when it forked; or this process may not undo an unfinished
                commit.
            ValueError: `mode` is unknown, `dataset` is missing for a new
                ledger, or an argument differs from the ledger's own value.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/clinic.ledger"
        ...     with PrivacyLedger.open(path, dataset="clinic") as ledger:
        ...         ledger.header.unit, len(ledger)
        ('example', 0)
        """
        if mode not in ("a", "r"):
            raise ValueError(
                "`mode` must be 'a' (append) or 'r' (read). "
                f"Received: mode={mode!r}."
            )
        place = place_of(path)
        if mode == "a" and not place.exists():
            if dataset is None:
                raise ValueError(
                    "`dataset` must be given to create a ledger. Received: "
                    f"dataset=None, and there is no ledger {place.name!r}. "
                    "Name the data set, or correct `path` if the ledger exists."
                )
            header = _new_header(dataset, unit, rows_per_unit)
            place.create(header.as_text())
        # Everything is checked before a connection that may write.
        ledger = cls._take(place, writable=False)
        try:
            ledger.verify()
            _check_same(
                ledger.header,
                dataset=dataset,
                unit=unit,
                rows_per_unit=rows_per_unit,
            )
        except BaseException:
            ledger.close()
            raise
        if mode == "r":
            return ledger
        ledger.close()
        return cls._take(place, writable=True)

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
        """The path of the file; `None` in memory and on a server."""
        return self._handle.path

    @property
    def name(self) -> str | None:
        """The path of the file, or the URL without its password.

        `None` for a ledger in memory.
        """
        return self._handle.name

    @property
    def header(self) -> Header:
        """The header: data set, privacy unit, generator and versions."""
        return self._header

    def contents(self) -> Contents:
        """Returns the rounds, runs and accounts, all of one moment.

        Ask for them together where they are compared: others may write to the
        ledger between two questions.
        """
        with self._handle.reading() as database:
            meta = log.meta(database)
            # The head is a hash over all rows: an equal head means equal rows.
            if self._kept is None or self._kept.meta != meta:
                self._kept = None  # Its memory is free before more is read.
                self._kept = Contents.of(log.rows(database), meta)
            return self._kept

    @property
    def head(self) -> str:
        """A hash over all rows: an equal head means equal rows."""
        with self._handle.reading() as database:
            return log.meta(database)["head"]

    @property
    def rounds(self) -> tuple[CountedRound, ...]:
        """All rounds in order; equal rounds in a row are counted together.

        Reserved rounds are included.
        """
        return self.contents().rounds

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """All runs in the order of their start.

        An accountant replays one of them like a ledger. Rounds that were
        recorded outside of any run come first, as run 0.
        """
        return self.contents().runs

    @property
    def accounts(self) -> tuple[AccountRecord, ...]:
        """All accounts in the order of their opening."""
        with self._handle.reading() as database:
            return accounts_of(database)

    @property
    def seals(self) -> tuple[SealRecord, ...]:
        """All seals in the order of their writing."""
        with self._handle.reading() as database:
            return tuple(map(SealRecord.of, log.rows(database, Seal.kind)))

    def __bool__(self) -> bool:
        """True, also for a ledger without rounds."""
        return True

    def __iter__(self) -> Iterator[CountedRound]:
        return iter(self.rounds)

    def __len__(self) -> int:
        """The number of rounds, including reserved ones."""
        with self._handle.reading() as database:
            log.begin(database)
            return int(log.meta(database)["total"])

    @property
    def unsettled(self) -> int:
        """The number of rounds that are reserved and not settled.

        Their process is still running, or it died. If it died, some of these
        rounds may never have run; they count all the same.
        """
        return self.contents().unsettled

    def lock(self) -> contextlib.AbstractContextManager[log.Database]:
        """Runs one transaction, in which nobody else writes to the ledger.

        All its changes are durable when it ends, or none is made.

        Raises:
            LedgerIntegrityError: The last row or the table `meta` was edited.
            LedgerWriteError: The ledger could not be written.
        """
        return self._handle.transaction()

    def record(
        self,
        sampling: SamplingEvent,
        queries: Iterable[SumQueryEvent],
        count: int = 1,
        *,
        seeded: bool = False,
    ) -> None:
        """Adds `count` equal rounds that ran already, on disk.

        They belong to no run. `start_run` is for rounds that are still to run.

        Args:
            sampling: How the sample of each round was drawn.
            queries: The sums that were released over each sample, at least
                one.
            count: The number of rounds, >= 1.
            seeded: Whether the caller chose the seed of the rounds.

        Raises:
            LedgerWriteError: The rounds were not recorded. An exception is a
                commit that itself failed: the rounds may be in the ledger, and
                the message says so. Also raised in a ledger with accounts,
                where a run must pay.
            OverflowError: The number of all rounds would not fit 64 bits. The
                rounds were not recorded.
        """
        _check.integer_at_least(1, count=count)
        round_ = Round(sampling, tuple(queries), seeded)
        with self.lock() as database:
            rounds = log.Rounds(text_from_round(round_))
            log.append_record(database, rounds, int(count))

    def start_run(
        self,
        name: str,
        *,
        purpose: str = "training",
        description: str = "",
        model: str = "",
        library: str = "",
        plan: Iterable[tuple[Round, int]] = (),
        delta: float | None = None,
        limits: Limits | None = None,
    ) -> RunWriter:
        """Begins a run: a training, a trial, a statistic.

        The ledger notes who begins the run, when and where: the user, the
        machine, the process, the program with its hash, and the versions of
        the loaded libraries. The run that is returned covers rounds.

        Args:
            name: A name for people; several runs may share one.
            purpose: "training", "trial", "preprocessing", "statistics",
                "audit" or "other".
            description: Free text. It must hold nothing secret.
            model: The SHA-256 hash of the model's summary, if there is a model.
            library: The name and version of another library that draws the
                samples, clips and adds the noise. Reports and certificates
                then say that this was declared, and not checked.
            plan: The most that the run will do; see `RunWriter.plan`.
            delta: The delta of the plan, in (0, 1).
            limits: They say what the run may do, and which account pays, as
                `spending.RunLimits` does; by default anything, and none.

        Raises:
            LedgerWriteError: The run was not begun.
            ValueError: `name` is empty, `purpose` is unknown, the ledger has no
                account of the name in `limits`, or `delta` comes without a
                plan.
        """
        limits = Limits() if limits is None else limits
        _check.kind(Limits, limits=limits)
        planned = RunPlan.of(plan, delta)
        if delta is not None and not planned.rounds:
            raise ValueError(
                "`delta` must come with `plan`, whose delta it is. Received: "
                f"delta={delta!r} and no rounds. Pass `plan`, or leave `delta` "
                "out."
            )
        start = RunStart(
            name,
            purpose,
            description,
            limits.account,
            model,
            this_process(),
            library,
        )
        run = RunWriter(self.lock, start, limits).begin()
        if planned.rounds:
            run.plan(planned.rounds, delta=delta)
        return run

    def continue_run(
        self, number: int, *, library: str = "", limits: Limits | None = None
    ) -> RunWriter:
        """Continues an interrupted run, whose plan has rounds left.

        The rounds that follow are a part of this plan. The ledger notes who
        continues the run, as `start_run` does.

        Args:
            number: The number of the run. Its `RunRecord.rest` says what is
                left.
            library: As in `start_run`; by default as the run was begun.
            limits: As in `start_run`, of the account that pays for the run.

        Raises:
            LedgerWriteError: The run was not continued.
            ValueError: No run of this number can be continued; perhaps another
                process continues it already. Or another account pays for it.

        >>> from keras_dp.ledger import FullDataset, GaussianSum, Round
        >>> ledger = PrivacyLedger.in_memory(dataset="doc")
        >>> step = Round(FullDataset(), (GaussianSum("all", 1.0, 4.0),))
        >>> with ledger.start_run("night", plan=[(step, 10)]) as run:
        ...     run.cover(step, 3)
        >>> with ledger.continue_run(run.number) as run:
        ...     run.cover(step, 7)
        >>> [(each.number, each.state, len(each)) for each in ledger.runs]
        [(1, 'finished', 10)]
        """
        _check.integer_at_least(1, number=number)
        limits = Limits() if limits is None else limits
        _check.kind(Limits, limits=limits)
        start = RunStart(
            f"run {number}", "other", "", None, "", this_process(), library
        )
        return RunWriter(self.lock, start, limits, number).begin()

    def open_account(self, account: Account | Decision) -> AccountRecord:
        """Opens an account. From then on, an account must pay for every round.

        The ledger only counts; it does not know what the capacities mean.
        Use `keras_dp.budgets.open_account`, which chooses them so that they
        keep a promise in epsilon and delta.

        Args:
            account: The name of the new account, its capacities and terms. Or
                a function that returns the account, from the accounts and the
                rounds of the ledger. While it runs, nobody else writes to the
                ledger.

        Raises:
            LedgerWriteError: The account was not opened.
            ValueError: Another account of the ledger has this name.
        """
        with self.lock() as connection:
            opened = accounts_of(connection)
            if not isinstance(account, Account):
                held = Contents.of(log.rows(connection), log.meta(connection))
                account = account(opened, held.rounds)
            if any(account.name == each.account.name for each in opened):
                raise ValueError(
                    "`account` must have a name that no account of the ledger "
                    f"has. Received: {account.name!r}. Choose another name."
                )
            log.append_statement(connection, account)
            return accounts_of(connection)[-1]

    def seal(self, note: str = "") -> SealRecord:
        """Writes a seal, a row after which no earlier row is changed.

        A certificate that names the seal can be checked later, against this
        ledger or a copy, even if rows were added since.

        Args:
            note: Free text. It must hold nothing secret.

        Raises:
            LedgerWriteError: The seal was not written.

        >>> ledger = PrivacyLedger.in_memory(dataset="doc")
        >>> ledger.seal("end of the study").number
        1
        """
        with self.lock() as connection:
            number = log.append_statement(connection, Seal(note))
            return SealRecord.of(log.row(connection, number))

    def until(self, row: int) -> Self:
        """Returns a copy, in memory, of the ledger up to a row.

        Args:
            row: The number of the last row of the copy, in
                [0, number of rows]. Choose a seal: the rows before it never
                change.

        Raises:
            ValueError: The ledger has no row of this number.
        """
        with self._handle.reading() as connection:
            rows, meta = log.rows(connection), log.meta(connection)
        if not 0 <= row <= len(rows):
            raise ValueError(
                f"`row` must be in [0, {len(rows)}]. Received: row={row!r}."
            )
        database = schema.database_until(rows[:row], meta)
        connections.adopt(database)
        return type(self)(FileHandle(database, None, writable=True))

    def verify(self) -> Verification:
        """Checks the hash of every row, and reads every row.

        Returns:
            The number of rows and rounds, and the head.

        Raises:
            LedgerIntegrityError: A row was edited, added or removed.
            LedgerFormatError: The ledger has a table that is missing, changed
                or foreign; or this version cannot read a row.
        """
        with self._handle.reading() as database:
            self._handle.check_tables(database)
            return verified(log.rows(database), log.meta(database))

    def close(self) -> None:
        """Closes the file, or the connection to the server."""
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


def _new_header(
    dataset: str, unit: str | None, rows_per_unit: int | None
) -> Header:
    return Header(
        dataset,
        "example" if unit is None else unit,
        rows_per_unit=1 if rows_per_unit is None else rows_per_unit,
    )


def _check_same(header: Header, **given_by_name: Any) -> None:
    for name, given in given_by_name.items():
        own = getattr(header, name)
        if given is not None and given != own:
            raise ValueError(
                f"`{name}` must be {own!r}, as in the ledger. "
                f"Received: {name}={given!r}. Leave `{name}` out to use this "
                "ledger, or open another ledger: each belongs to one data set "
                "and one privacy unit."
            )
