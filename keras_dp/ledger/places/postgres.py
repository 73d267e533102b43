"""A ledger in a schema of a PostgreSQL database, for several machines.

It promises what a ledger file promises. SQLite keeps the promise by locking the
file and syncing its journal. The server keeps it by a lock on a table, and by
its write-ahead log:

* a transaction that writes locks the table `log` against all other writers, and
  a reader sees the state of one moment;
* `COMMIT` returns when the server has synced its log. A server with `fsync` off
  is refused, and each transaction sets `synchronous_commit` for itself;
* the ledger is a schema with exactly the tables below. Views, triggers, rules,
  policies and functions in it are refused, before a row is read;
* settings belong to the transaction, not to the session. So a pool of
  connections between the process and the server does no harm.

If the connection is lost during `COMMIT`, nobody knows whether the commit
happened, as with a disk that fails at this moment. The handle then refuses to
write.
"""

import contextlib
import errno
import hashlib
import os
import re
import urllib.parse
import weakref
from functools import partial
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from keras_dp._override import override
from keras_dp.errors import (
    LedgerError,
    LedgerFormatError,
    LedgerVersionError,
    LedgerWriteError,
)
from keras_dp.ledger.places import connections
from keras_dp.ledger.places.handle import Handle
from keras_dp.ledger.rows import chain, log
from keras_dp.ledger.rows.header import FORMAT_VERSION

DEFAULT_SCHEMA = "keras_dp"

# A comment on the table `meta`, which copies of a database keep.
_MARK = "keras_dp ledger, format "

# The server ends the transaction of a process that stands still for so long,
# since all others wait for it.
_IDLE_SECONDS = 60

# The URL may say otherwise. With them a process notices a lost server.
_DEFAULTS = {"connect_timeout": 30, "tcp_user_timeout": 60_000}

# A B-tree holds no long text, so that a hash keeps bodies apart.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE bodies (
  id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body TEXT NOT NULL,
  CONSTRAINT bodies_once EXCLUDE USING hash (body WITH =));
CREATE TABLE log (
  seq BIGINT PRIMARY KEY, kind TEXT NOT NULL, run BIGINT,
  body BIGINT NOT NULL, count BIGINT NOT NULL, target BIGINT, charge TEXT,
  time BIGINT NOT NULL, hash TEXT NOT NULL);
CREATE INDEX ends ON log (run) WHERE kind = 'end';
"""

# All that stands in a schema and could change what its tables answer.
_CONTENT = """
WITH place AS (SELECT oid, nspname FROM pg_namespace WHERE nspname = ?),
own AS (
  SELECT c.* FROM pg_class c JOIN place ON c.relnamespace = place.oid)
SELECT concat_ws(' ', 'relation', relkind, relname, relpersistence,
  relrowsecurity, relhassubclass, relispartition) FROM own
UNION ALL SELECT concat_ws(' ', 'column', relname, attnum, attname,
  format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
  collname, pg_get_expr(adbin, adrelid))
  FROM own JOIN pg_attribute ON attrelid = own.oid AND attnum > 0
  LEFT JOIN pg_attrdef ON adrelid = own.oid AND adnum = attnum
  LEFT JOIN pg_collation ON pg_collation.oid = attcollation
  WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
UNION ALL SELECT concat_ws(' ', 'constraint', relname, conname,
  pg_get_constraintdef(pg_constraint.oid))
  FROM own JOIN pg_constraint ON conrelid = own.oid WHERE contype <> 'n'
UNION ALL SELECT concat_ws(' ', 'index', own.relname, indisvalid, replace(
  pg_get_indexdef(indexrelid), quote_ident(nspname) || '.', ''))
  FROM own JOIN pg_index ON indexrelid = own.oid, place
UNION ALL SELECT concat_ws(' ', 'trigger', relname, tgname)
  FROM own JOIN pg_trigger ON tgrelid = own.oid
UNION ALL SELECT concat_ws(' ', 'rule', relname, rulename)
  FROM own JOIN pg_rewrite ON ev_class = own.oid
UNION ALL SELECT concat_ws(' ', 'parent', relname)
  FROM own JOIN pg_inherits ON inhrelid = own.oid
UNION ALL SELECT concat_ws(' ', 'function', proname)
  FROM pg_proc JOIN place ON pronamespace = place.oid
UNION ALL SELECT concat_ws(' ', 'operator', oprname)
  FROM pg_operator JOIN place ON oprnamespace = place.oid
LIMIT 100
"""

# `_CONTENT` returns these lines for the schema of a ledger.
_EXPECTED = frozenset(
    """\
relation r meta p f f f
relation i meta_pkey p f f f
relation r bodies p f f f
relation S bodies_id_seq p f f f
relation i bodies_pkey p f f f
relation i bodies_once p f f f
relation r log p f f f
relation i log_pkey p f f f
relation i ends p f f f
column meta 1 key text t default
column meta 2 value text t default
column bodies 1 id bigint t a
column bodies 2 body text t default
column log 1 seq bigint t
column log 2 kind text t default
column log 3 run bigint f
column log 4 body bigint t
column log 5 count bigint t
column log 6 target bigint f
column log 7 charge text f default
column log 8 time bigint t
column log 9 hash text t default
constraint meta meta_pkey PRIMARY KEY (key)
constraint bodies bodies_pkey PRIMARY KEY (id)
constraint bodies bodies_once EXCLUDE USING hash (body WITH =)
constraint log log_pkey PRIMARY KEY (seq)
index meta_pkey t CREATE UNIQUE INDEX meta_pkey ON meta USING btree (key)
index bodies_pkey t CREATE UNIQUE INDEX bodies_pkey ON bodies USING btree (id)
index bodies_once t CREATE INDEX bodies_once ON bodies USING hash (body)
index log_pkey t CREATE UNIQUE INDEX log_pkey ON log USING btree (seq)
index ends t CREATE INDEX ends ON log USING btree (run) \
WHERE (kind = 'end'::text)
""".splitlines()
)

# The user with the password, as libpq finds them; the place; the rest.
_URL = re.compile(r"(\w+://(?:[^@/]*@)?)([^?]*)(?:\?(.*))?", re.DOTALL)

_PORTS = re.compile(r"[0-9]*(,[0-9]*)*")

# For this transaction only: where unqualified names are looked up, how durable
# its commit is, and how long it may wait.
_SETTINGS = """
SELECT set_config('search_path', quote_ident(?), true),
  set_config('synchronous_commit', CASE current_setting('synchronous_commit')
    WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true),
  set_config('lock_timeout', ?, true),
  set_config('idle_in_transaction_session_timeout', ?, true)
"""

_RIGHTS = """
SELECT has_table_privilege('log', 'SELECT')
  AND has_table_privilege('log', 'INSERT')
  AND has_table_privilege('log', 'DELETE')
  AND has_table_privilege('bodies', 'INSERT')
  AND has_table_privilege('meta', 'UPDATE')
"""


class Schema:
    """A schema of a database, given by a URL; see `Place`."""

    def __init__(self, url: str) -> None:
        """Takes a URL of libpq, with `schema=NAME` as a further parameter.

        An error does not repeat the URL, because it may hold a password.
        """
        self.short_name, self._settings = _parsed(url)
        self.name = _without_password(self.short_name, self._settings)

    def exists(self) -> bool:
        """See `Place.exists`."""
        with contextlib.closing(self._connect()) as connection:
            try:
                return self._is_taken(_Database(connection))
            except psycopg.Error as error:
                raise self._unreachable(error) from error

    def create(self, header: str) -> None:
        """See `Place.create`."""
        name = hashlib.sha256(self.short_name.encode()).digest()
        with contextlib.closing(self._connect()) as connection:
            database = _Database(connection)
            try:
                with connection.transaction():
                    database.execute(
                        "SELECT pg_advisory_xact_lock(?)",
                        [int.from_bytes(name[:8], signed=True)],
                    )
                    if not self._is_taken(database):
                        self._fill(database, header)
            except psycopg.Error as error:
                raise LedgerWriteError(
                    f"The ledger {self.name!r} cannot be created: "
                    f"{_reason(error)}. Its user must be allowed to create "
                    "schemas in the database, or own an empty schema of this "
                    "name. Ask the administrator of the database."
                ) from error

    def open(self, *, writable: bool) -> Handle:
        """See `Place.open`."""
        connection = self._connect()
        handle = SchemaHandle(
            connection, self.name, self.short_name, writable=writable
        )
        try:
            handle.check_form()
        except BaseException:
            handle.close()
            raise
        return handle

    def _connect(self) -> psycopg.Connection:
        try:
            return psycopg.connect(
                autocommit=True,
                prepare_threshold=None,
                **{**_DEFAULTS, **self._settings, "client_encoding": "UTF8"},
            )
        except psycopg.Error as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: psycopg.Error) -> LedgerError:
        return LedgerError(
            f"The ledger {self.name!r} cannot be reached: {_reason(error)}. "
            "Check the URL, the server, the network, and the user's password "
            "and permissions."
        )

    def _is_taken(self, database: "_Database") -> bool:
        found = database.execute(
            "SELECT 1 FROM pg_class JOIN pg_namespace "
            "ON pg_namespace.oid = relnamespace WHERE nspname = ? LIMIT 1",
            [self.short_name],
        )
        return found.fetchone() is not None

    def _fill(self, database: "_Database", header: str) -> None:
        (name,) = database.execute(
            "SELECT quote_ident(?)", [self.short_name]
        ).fetchone()
        if not database.execute(
            "SELECT 1 FROM pg_namespace WHERE nspname = ?", [self.short_name]
        ).fetchone():
            database.execute(f"CREATE SCHEMA {name}")
        database.begin(self.short_name)
        database.execute(_TABLES)
        database.execute(f"COMMENT ON TABLE meta IS '{_MARK}{FORMAT_VERSION}'")
        for pair in chain.first_meta(header).items():
            database.execute("INSERT INTO meta VALUES (?, ?)", pair)


class SchemaHandle(Handle):
    """Reads and writes a ledger in a schema of PostgreSQL."""

    errors = (psycopg.Error,)

    def __init__(
        self,
        connection: psycopg.Connection,
        name: str,
        schema: str,
        *,
        writable: bool,
    ) -> None:
        """Takes over a connection that nobody else uses."""
        super().__init__(None, name, writable=writable, writer="")
        self._connection, self._schema = connection, schema
        self._database = _Database(connection)
        self._tables: tuple[object, ...] | None = None
        self._warnings: list[str] = []
        # Bound to the list, so that no circle keeps the handle.
        connection.add_notice_handler(partial(_note_warning, self._warnings))
        connections.adopt(connection)
        weakref.finalize(self, connections.close, connection)

    def check_form(self) -> None:
        """Raises unless the schema is a ledger that this user can use.

        For writing, the server must be durable.
        """
        with self.reading() as database:
            self._check_mark(database)
            self.check_tables(database)
            self._tables = self._tables_now()
        if self._writable:
            try:
                self._check_rights(self._begin(writing=True))
            except psycopg.Error as error:
                raise self._not_writable(_reason(error)) from error
            finally:
                self._rollback()

    @override
    def check_tables(self, database: log.Database) -> None:
        found = {
            " ".join(line.split())
            for (line,) in database.execute(_CONTENT, [self._schema])
        }
        if found != _EXPECTED:
            others = sorted(
                " ".join(line.split()[:3]) for line in found ^ _EXPECTED
            )
            raise LedgerFormatError(
                f"The ledger {self.name!r} must hold its tables only. "
                f"Received: missing, changed or added {others[:9]!r}. It was "
                "not changed. Restore it from a copy."
            )

    @override
    def _begin(self, *, writing: bool) -> log.Database:
        if self._connection.info.transaction_status != TransactionStatus.IDLE:
            raise psycopg.OperationalError("the connection was lost")
        self._database.execute(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
            if writing
            else "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        )
        self._database.begin(self._schema)
        if writing:
            self._database.execute("LOCK TABLE log IN EXCLUSIVE MODE")
        if self._tables not in (None, self._tables_now()):
            raise LedgerWriteError(
                f"The ledger {self.name!r} was moved, removed or replaced "
                "while it was open. Nothing may be released that it does not "
                "cover. Put its tables back, and open it again."
            )
        return self._database

    @override
    def _end_reading(self) -> None:
        self._database.execute("COMMIT")

    @override
    def _commit(self) -> None:
        self._warnings.clear()
        if self._database.execute("COMMIT").statusmessage != "COMMIT":
            raise psycopg.OperationalError("the server undid the transaction")
        if self._warnings:  # Such as: no standby has confirmed it.
            raise psycopg.OperationalError(self._warnings[0])

    @override
    def _may_have_committed(self, error: Exception) -> bool:
        # The server's answer decides. A lost connection gives none.
        return self._connection.closed or bool(self._warnings)

    @override
    def _rollback(self) -> None:
        status = self._connection.info.transaction_status
        if status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN):
            with contextlib.suppress(psycopg.Error):
                self._database.execute("ROLLBACK")

    @override
    def _disconnect(self) -> None:
        connections.close(self._connection)

    @override
    def _unreadable(self, error: Exception) -> LedgerError:
        return LedgerError(
            f"The ledger {self.name!r} cannot be read: {_reason(error)}. "
            "Check the server, the network and the permissions of the user, "
            "and open the ledger again."
        )

    @override
    def _remedy(self) -> str:
        return (
            "Check the server, the network and the permissions of the user. If "
            "the connection was lost, open the ledger again."
        )

    def _check_mark(self, database: log.Database) -> None:
        (mark,) = database.execute(
            "SELECT obj_description(to_regclass('meta'), 'pg_class')"
        ).fetchone()
        if mark == f"{_MARK}{FORMAT_VERSION}":
            return
        content = database.execute(_CONTENT, [self._schema]).fetchone()
        if content is None:
            raise FileNotFoundError(
                errno.ENOENT, os.strerror(errno.ENOENT), self.name
            )
        if mark is not None and mark.startswith(_MARK):
            raise LedgerVersionError(
                f"The ledger {self.name!r} has format "
                f"{mark.removeprefix(_MARK)!r}, this version of keras_dp reads "
                f"format {FORMAT_VERSION}. Read it with the version that wrote "
                "it. It was not changed."
            )
        (may_look,) = database.execute(
            "SELECT has_schema_privilege(?, 'USAGE')", [self._schema]
        ).fetchone()
        if not may_look:
            raise self._unreadable(
                psycopg.OperationalError("permission denied for the schema")
            )
        raise LedgerFormatError(
            f"The schema {self._schema!r} of {self.name!r} must be that of a "
            f"ledger, or be empty. Received: a schema that holds "
            f"{content[0].split()[:3]!r}, without the mark of a ledger. It was "
            "not changed. Name another one with `schema=` in the URL."
        )

    def _check_rights(self, database: log.Database) -> None:
        (fsync,) = database.execute("SHOW fsync").fetchone()
        if fsync != "on":
            raise self._not_writable(
                "the server runs with fsync off, and forgets what it has "
                "committed when its machine stops"
            )
        (may_write,) = database.execute(_RIGHTS).fetchone()
        if not may_write:
            raise self._not_writable("permission denied for its tables")

    def _not_writable(self, reason: str) -> LedgerWriteError:
        return LedgerWriteError(
            f"The ledger {self.name!r} cannot be opened for writing: {reason}. "
            "The user needs USAGE of the schema, and SELECT, INSERT, UPDATE "
            "and DELETE on its tables. If the user has these, another process "
            "may hold the ledger."
        )

    def _tables_now(self) -> tuple[object, ...]:
        """Returns the object ids of the tables, which no other table has."""
        found = self._database.execute(
            "SELECT to_regclass('meta')::oid, to_regclass('bodies')::oid, "
            "to_regclass('log')::oid"
        )
        return tuple(found.fetchone())


class _Database:
    """Runs statements that are written for SQLite."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Any = None, /) -> Any:
        """Runs a statement with `?` for each parameter; returns a cursor."""
        return self._connection.execute(
            sql.replace("?", "%s").encode(), parameters
        )

    def begin(self, schema: str) -> None:
        """Sets the settings of the transaction that has begun."""
        waits = (connections.BUSY_SECONDS, _IDLE_SECONDS)
        # In milliseconds, of which 0 would be without end.
        self.execute(
            _SETTINGS, [schema, *(str(int(1e3 * each) + 1) for each in waits)]
        )


def _parsed(url: str) -> tuple[str, dict[str, Any]]:
    """Returns the name of the schema, and the settings for libpq."""
    ((head, place, query),) = _URL.findall(url)
    pairs = [pair for pair in query.split("&") if pair]
    own = [pair for pair in pairs if pair.startswith("schema=")]
    others = [pair for pair in pairs if pair not in own]
    try:
        settings = conninfo_to_dict(f"{head}{place}?{'&'.join(others)}")
    except psycopg.Error:
        settings = None
    # libpq would take a part of a password for the name of a host or a port.
    if (
        settings is None
        or "@" in place
        or not _PORTS.fullmatch(str(settings.get("port", "")))
    ):
        raise LedgerError(
            "`path` must be a URL such as postgresql://user@host/database"
            "?schema=clinic, with digits for a port. Received: another form, "
            "which may hold a password. Write the characters that "
            "are special in URLs, such as @ : / ? # % in a password, as % and "
            "two hexadecimal digits, or set the password in PGPASSWORD or "
            "~/.pgpass."
        ) from None
    name = DEFAULT_SCHEMA
    if own:
        name = urllib.parse.unquote(own[-1].removeprefix("schema="))
    is_reserved = name.startswith("pg_") or name == "information_schema"
    if (
        len(own) > 1
        or is_reserved
        or "\0" in name
        or not (1 <= len(name.encode()) <= 63)
    ):
        raise LedgerError(
            "`path` must name one schema by `schema=NAME`. NAME has 1 to 63 "
            "bytes, does not begin with pg_, and is not information_schema. "
            f"Received: {len(own)} parameters `schema`, or another name."
        )
    return name, dict(settings)


def _without_password(schema: str, settings: dict[str, Any]) -> str:
    user, host, port, database, service = (
        urllib.parse.quote(str(settings.get(key, "")), safe=",")
        for key in ("user", "host", "port", "dbname", "service")
    )
    return (
        f"postgresql://{user}{'@' if user else ''}{host}"
        f"{':' if port else ''}{port}/{database}?"
        f"{'service=' if service else ''}{service}{'&' if service else ''}"
        f"schema={urllib.parse.quote(schema, safe='')}"
    )


def _note_warning(found: list[str], notice: psycopg.errors.Diagnostic) -> None:
    if notice.severity_nonlocalized == "WARNING":
        found.append(notice.message_primary or "a warning of the server")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())
