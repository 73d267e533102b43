"""A ledger on a PostgreSQL server: what a file has no counterpart of."""

import os
import random
import signal
import sys
import urllib.parse

import pytest

from keras_dp.errors import (
    LedgerError,
    LedgerFormatError,
    LedgerVersionError,
    LedgerWriteError,
)
from keras_dp.ledger import (
    Account,
    FullDataset,
    GaussianSum,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places import connections
from keras_dp.ledger.places.place import place_of
from tests.ledger_faults import in_a_fork, start_fork
from tests.postgres_server import GUARDED, PASSWORD, schema_of
from tests.waiting import HUNG_SECONDS, wait_until

pytestmark = pytest.mark.full

QUERIES = [GaussianSum("gradients", 1.0, 4.0)]
MODES = ["a", "r"]


@pytest.fixture
def url(server) -> str:
    """A ledger of 5 rounds that no one has open."""
    url = server.new_url()
    with PrivacyLedger.open(url, dataset="d") as ledger:
        ledger.record(FullDataset(), QUERIES, count=5)
    return url


def rounds_of(url: str) -> int:
    with PrivacyLedger.open(url, mode="r") as ledger:
        return ledger.verify().rounds


def refuses(ledger: PrivacyLedger, message: str | None = None) -> bool:
    for act in (
        lambda: ledger.record(FullDataset(), QUERIES),
        lambda: ledger.start_run("a"),
        lambda: ledger.open_account(Account("all", (9,), "{}")),
        lambda: ledger.seal(),
    ):
        with pytest.raises(LedgerWriteError, match=message):
            act()
    return True


def as_user(url: str, user: str) -> str:
    return url.replace("//ledger@", f"//{user}@")


class TestAddresses:
    def test_without_a_schema_it_has_a_name(self, server, url) -> None:
        base = url.partition("?")[0]
        with PrivacyLedger.open(base, dataset="d") as ledger:
            assert ledger.name == f"{base}?schema=keras_dp"
        server.execute("DROP SCHEMA keras_dp CASCADE")

    @pytest.mark.parametrize(
        "schema", ["a%20b", "%C3%A9%E2%98%83", "a%22b", "a'b;--", "A", "log"]
    )
    def test_odd_names_are_names(self, server, schema) -> None:
        url = server.url(schema)
        with PrivacyLedger.open(url, dataset="d") as ledger:
            ledger.record(FullDataset(), QUERIES)

        assert rounds_of(url) == 1
        assert place_of(url).short_name == urllib.parse.unquote(schema)
        name = urllib.parse.unquote(schema).replace('"', '""')
        server.execute(f'DROP SCHEMA "{name}" CASCADE')

    @pytest.mark.parametrize(
        "schema",
        ["", "pg_toast", "information_schema", "x" * 64, "a&schema=b", "%00"],
    )
    def test_names_of_no_schema_are_refused(self, server, schema) -> None:
        with pytest.raises(LedgerError, match=r"`path` must .*Received"):
            PrivacyLedger.open(server.url(schema), dataset="d")

    @pytest.mark.parametrize(
        "url",
        [
            "postgresql://al:secret/1@host/db",
            "postgresql://al:1/secret@host/db",
            "postgresql://al:se@cret@host/db",
            "postgresql://al:%secret@host/db",
            "postgresql://al@host/db?secret=1",
            "postgresql://al@host/db?password",
            "postgresql://al@host:secret/db",
            "postgresql://al:secret;host/db",
            "postgresql://al:1@host:5432x/db?application_name=secret",
        ],
    )
    def test_a_url_that_is_none_is_not_repeated(self, url) -> None:
        with pytest.raises(LedgerError, match="`path` must be a URL") as found:
            PrivacyLedger.open(url, dataset="d")

        assert "secret" not in str(found.value)
        # Neither in the errors that a traceback shows.
        assert found.value.__suppress_context__
        assert found.value.__cause__ is None

    def test_a_server_that_is_not_there_is_named(self, tmp_path) -> None:
        host = urllib.parse.quote(str(tmp_path), safe="")
        for mode in MODES:
            with pytest.raises(LedgerError, match="cannot be reached"):
                PrivacyLedger.open(
                    f"postgresql://al:secret@{host}/db", dataset="d", mode=mode
                )

    def test_without_psycopg_it_says_what_to_install(self, monkeypatch) -> None:
        monkeypatch.delitem(
            sys.modules, "keras_dp.ledger.places.postgres", False
        )
        monkeypatch.setitem(sys.modules, "psycopg", None)

        with pytest.raises(LedgerError, match=r"keras_dp\[postgres\]"):
            PrivacyLedger.open("postgresql://al:secret@host/db", dataset="d")


class TestPasswords:
    @pytest.fixture
    def guarded(self, server):
        """Returns the address of a ledger for a password."""
        server.execute(
            f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{PASSWORD}'",
            f"GRANT CREATE ON DATABASE postgres TO {GUARDED}",
        )
        fresh = server.new_url()
        made = []

        def with_password(password: str) -> str:
            made.append(fresh)
            text = urllib.parse.quote(password, safe="")
            return as_user(fresh, f"{GUARDED}:{text}")

        yield with_password
        server.execute(f"DROP OWNED BY {GUARDED}", f"DROP ROLE {GUARDED}")

    def test_they_open_and_are_not_shown(self, guarded) -> None:
        with PrivacyLedger.open(guarded(PASSWORD), dataset="d") as ledger:
            shown = [repr(ledger), str(ledger.name), repr(vars(ledger._handle))]
            ledger.record(FullDataset(), QUERIES)
        encoded = urllib.parse.quote(PASSWORD, safe="")

        for text in shown:
            assert PASSWORD not in text
            assert encoded not in text
        # The name opens the ledger where libpq has the password from elsewhere.
        assert GUARDED in ledger.name

    @pytest.mark.parametrize("password", ["a?b", "a?schema=b&c=d", "a:#b&"])
    def test_libpq_and_the_schema_agree_where_they_end(
        self, server, password
    ) -> None:
        url = as_user(server.new_url(), f"ledger:{password}")
        with PrivacyLedger.open(url, dataset="d") as ledger:
            assert ledger.name == as_user(url, "ledger").replace(
                f"ledger:{password}", "ledger"
            )

    def test_wrong_ones_are_not_shown(self, guarded) -> None:
        with pytest.raises(LedgerError, match="authentication failed") as found:
            PrivacyLedger.open(guarded("s3cret:/@"), dataset="d")

        error: BaseException | None = found.value
        while error is not None:
            assert "s3cret" not in repr(error)
            error = error.__cause__


class TestDurability:
    def test_users_cannot_switch_it_off_for_a_session(self, server, url):
        for setting in ("synchronous_commit = off", "search_path = pg_catalog"):
            server.execute(f"ALTER ROLE ledger SET {setting}")
        try:
            with PrivacyLedger.open(url) as ledger:
                with ledger._handle.transaction() as database:
                    (found,) = database.execute(
                        "SHOW synchronous_commit"
                    ).fetchone()
                ledger.record(FullDataset(), QUERIES)
            assert rounds_of(url) == 6
        finally:
            server.execute("ALTER ROLE ledger RESET ALL")
        assert found == "on"

    def test_a_server_that_does_not_sync_is_refused(self, server, url) -> None:
        server.execute(
            "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()"
        )
        try:
            wait_until(lambda: server.execute("SHOW fsync") == [("off",)])
            with pytest.raises(LedgerWriteError, match="fsync off"):
                PrivacyLedger.open(url)
            assert rounds_of(url) == 5
        finally:
            server.execute(
                "ALTER SYSTEM RESET fsync", "SELECT pg_reload_conf()"
            )
            wait_until(lambda: server.execute("SHOW fsync") == [("on",)])

    def test_a_commit_that_no_standby_has_is_in_doubt(self, server, url):
        """Promoted, the standby would have forgotten it."""
        ledger = PrivacyLedger.open(url)
        server.execute(
            "ALTER SYSTEM SET synchronous_standby_names = 'absent'",
            "SELECT pg_reload_conf()",
        )
        waiting = (
            "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        )

        def give_up() -> bool:
            wait_until(lambda: server.execute(waiting))
            server.execute(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity "
                "WHERE wait_event = 'SyncRep'"
            )
            return True

        try:
            wait_until(
                lambda: (
                    server.execute("SHOW synchronous_standby_names")
                    == [("absent",)]
                )
            )
            child = start_fork(give_up)
            with pytest.raises(LedgerWriteError, match="open whether"):
                ledger.record(FullDataset(), QUERIES)
            assert os.waitpid(child, 0)[1] == 0
        finally:
            server.execute(
                "ALTER SYSTEM RESET synchronous_standby_names",
                "SELECT pg_reload_conf()",
            )
        assert refuses(ledger, "Open the ledger again")
        assert rounds_of(url) == 6


class TestConcurrency:
    def test_one_process_writes_at_a_time(self, url, monkeypatch) -> None:
        monkeypatch.setattr(connections, "BUSY_SECONDS", 0.05)
        first, second = PrivacyLedger.open(url), PrivacyLedger.open(url)

        with first._handle.transaction():
            assert refuses(second, "This write changed nothing")
            with pytest.raises(LedgerWriteError, match="opened for writing"):
                PrivacyLedger.open(url)
            assert len(second) == rounds_of(url) == 5

        second.record(FullDataset(), QUERIES)
        assert len(first) == 6

    def test_a_reader_sees_one_state(self, url) -> None:
        reader, writer = (PrivacyLedger.open(url, mode=m) for m in ("r", "a"))
        with reader._handle.reading() as database:
            query = "SELECT value FROM meta WHERE key = 'total'"
            before = database.execute(query).fetchone()
            writer.record(FullDataset(), QUERIES)
            assert database.execute(query).fetchone() == before == ("5",)

        assert len(reader) == 6

    def test_a_writer_that_stands_still_is_undone(
        self, url, monkeypatch
    ) -> None:
        monkeypatch.setattr(
            "keras_dp.ledger.places.postgres._IDLE_SECONDS", 1.0
        )
        stopped, other = PrivacyLedger.open(url), PrivacyLedger.open(url)

        def stand_still() -> None:
            with stopped._handle.transaction():
                other.record(FullDataset(), QUERIES)

        with pytest.raises(LedgerWriteError, match="changed nothing"):
            stand_still()
        assert rounds_of(url) == 6

    def test_killed_while_it_creates_it_leaves_all_or_nothing(
        self, server
    ) -> None:
        chosen = random.Random(13)
        for _ in range(10):
            url = server.new_url()

            def create(url: str = url) -> None:
                for number in range(1000):
                    PrivacyLedger.open(f"{url}.{number}", dataset="d").close()

            child = start_fork(create)
            wait_until(lambda url=url: names_of(server, url))
            for _ in range(chosen.randrange(20)):
                names_of(server, url)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

            for name in names_of(server, url):
                assert rounds_of(server.url(name)) == 0


def names_of(server, url) -> list[str]:
    """Returns the ledgers whose names begin like that of an address."""
    rows = server.execute(
        "SELECT nspname FROM pg_namespace "
        f"WHERE starts_with(nspname, '{schema_of(url)}')"
    )
    return [name for (name,) in rows]


class TestForks:
    def test_a_fork_uses_no_connection_of_its_parent(self, url) -> None:
        ledger = PrivacyLedger.open(url)

        def appends() -> bool:
            ledger.close()
            with PrivacyLedger.open(url) as own:
                own.record(FullDataset(), QUERIES)
            with pytest.raises(LedgerError, match="forked"):
                len(ledger)
            return refuses(ledger, "forked")

        assert in_a_fork(appends) == 0
        ledger.record(FullDataset(), QUERIES)
        assert rounds_of(url) == 7

    def test_a_fork_that_exits_leaves_it_to_its_parent(self, url) -> None:
        ledger = PrivacyLedger.open(url)

        def exits() -> None:
            # As a process does that ends: destructors run.
            signal.alarm(int(HUNG_SECONDS))
            os.execv(sys.executable, [sys.executable, "-c", ""])

        assert in_a_fork(exits) == 0
        ledger.record(FullDataset(), QUERIES)
        assert rounds_of(url) == 6


class TestForm:
    @pytest.mark.parametrize(
        "change",
        [
            "CREATE TABLE more (x int)",
            "CREATE VIEW more AS SELECT 1",
            "CREATE SEQUENCE more",
            "CREATE INDEX more ON log (hash)",
            "DROP INDEX ends",
            "DROP TABLE bodies",
            "ALTER TABLE bodies DROP CONSTRAINT bodies_once",
            "ALTER TABLE log DROP CONSTRAINT log_pkey",
            "ALTER TABLE log ADD COLUMN more int",
            "ALTER TABLE log ALTER count TYPE int",
            "ALTER TABLE log ALTER count DROP NOT NULL",
            "ALTER TABLE log ALTER time SET DEFAULT 0",
            'ALTER TABLE log ALTER kind TYPE text COLLATE "C"',
            "ALTER TABLE log ADD CHECK (count < 99)",
            "ALTER TABLE log SET UNLOGGED",
            "ALTER TABLE log ENABLE ROW LEVEL SECURITY",
            "CREATE TABLE pg_temp.more () INHERITS (log)",
            "CREATE FUNCTION more() RETURNS int LANGUAGE sql RETURN 1",
            "CREATE RULE more AS ON INSERT TO log DO INSTEAD NOTHING",
            "CREATE TRIGGER more BEFORE INSERT ON log "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        ],
    )
    def test_tables_that_were_changed_are_refused(
        self, server, url, change
    ) -> None:
        if "pg_temp" in change:
            change = change.replace("pg_temp", "public")
        with PrivacyLedger.open(url, mode="r") as reader:
            server.execute(change, url=url)
            try:
                with pytest.raises(LedgerError):
                    reader.verify()
                for mode in MODES:
                    with pytest.raises(LedgerFormatError, match="tables only"):
                        PrivacyLedger.open(url, mode=mode)
            finally:
                server.execute("DROP TABLE IF EXISTS public.more")

    @pytest.mark.parametrize("mode", MODES)
    def test_other_schemas_are_refused(self, server, mode) -> None:
        url = server.new_url()
        schema = schema_of(url)
        server.execute(
            f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.meta (x int)"
        )

        with pytest.raises(LedgerFormatError, match="must be that of a ledger"):
            PrivacyLedger.open(url, dataset="d", mode=mode)
        assert server.execute("SELECT * FROM meta", url=url) == []

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize(
        ("mark", "error"),
        [
            ("'keras_dp ledger, format 5'", LedgerVersionError),
            ("'keras_dp ledger, format 1'", LedgerVersionError),
            ("'another'", LedgerFormatError),
            ("NULL", LedgerFormatError),
        ],
    )
    def test_other_versions_are_refused(
        self, server, url, mode, mark, error
    ) -> None:
        server.execute(f"COMMENT ON TABLE meta IS {mark}", url=url)

        with pytest.raises(error):
            PrivacyLedger.open(url, mode=mode)

    def test_long_texts_fit(self, url) -> None:
        """More than an entry of a B-tree holds, and hard to compress."""
        chosen = random.Random(1)
        names = [f"{chosen.getrandbits(200_000):x}" for _ in range(2)]
        with PrivacyLedger.open(url) as ledger:
            for name in (*names, *names):
                ledger.record(FullDataset(), [GaussianSum(name, 1.0, 4.0)])

            assert ledger.verify()[:2] == (5, 9)


class TestPermissions:
    @pytest.fixture
    def reader(self, server, url):
        schema = schema_of(url)
        server.execute(
            "CREATE ROLE reader LOGIN",
            f"GRANT USAGE ON SCHEMA {schema} TO reader",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader",
        )
        yield as_user(url, "reader")
        server.execute("DROP OWNED BY reader", "DROP ROLE reader")

    def test_readers_read_and_do_not_write(self, reader) -> None:
        assert rounds_of(reader) == 5
        with pytest.raises(LedgerWriteError, match="permission denied"):
            PrivacyLedger.open(reader)

    def test_strangers_do_neither(self, server, url, reader) -> None:
        server.execute(f"REVOKE ALL ON SCHEMA {schema_of(url)} FROM reader")

        for mode in MODES:
            with pytest.raises(LedgerError, match="permission"):
                PrivacyLedger.open(reader, mode=mode)

    def test_creating_needs_a_right(self, server, reader) -> None:
        with pytest.raises(LedgerWriteError, match="cannot be created"):
            PrivacyLedger.open(as_user(server.new_url(), "reader"), dataset="d")

    def test_a_right_that_is_taken_away_stops_the_writer(
        self, server, reader
    ) -> None:
        schema = schema_of(reader)
        server.execute(
            f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} "
            "TO reader"
        )
        ledger = PrivacyLedger.open(reader)
        server.execute(f"REVOKE INSERT ON {schema}.log FROM reader")

        assert refuses(ledger, "permission denied")
        assert len(ledger) == 5


TERMINATE = (
    "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
    "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


class TestFailures:
    def test_a_lost_connection_reserves_nothing(self, server, url) -> None:
        ledger = PrivacyLedger.open(url)
        block = ledger.start_run("a")
        block.cover(Round(FullDataset(), QUERIES), 3)
        server.execute(TERMINATE)

        with pytest.raises(LedgerWriteError, match="changed nothing"):
            block.settle(used=1)
        assert refuses(ledger, "open the ledger again")
        with pytest.raises(LedgerError, match="open the ledger again"):
            len(ledger)
        assert rounds_of(url) == 8

    def test_a_connection_lost_inside_a_transaction_undoes_it(
        self, server, url
    ) -> None:
        ledger = PrivacyLedger.open(url)

        def lose() -> None:
            with ledger._handle.transaction():
                server.execute(TERMINATE)

        with pytest.raises(LedgerWriteError, match="changed nothing"):
            lose()
        assert rounds_of(url) == 5

    @pytest.mark.parametrize("happened", [False, True])
    def test_a_connection_lost_in_a_commit_leaves_it_open(
        self, server, url, happened, monkeypatch
    ) -> None:
        ledger = PrivacyLedger.open(url)
        block = ledger.start_run("a")
        block.cover(Round(FullDataset(), QUERIES), 3)
        database = ledger._handle._database
        execute = database.execute

        def lose(sql: str, *parameters: object) -> object:
            if sql == "COMMIT":
                if happened:
                    execute("COMMIT")
                server.execute(TERMINATE)
            return execute(sql, *parameters)

        monkeypatch.setattr(database, "execute", lose)
        with pytest.raises(LedgerWriteError, match="open whether it happened"):
            block.settle(used=2)

        assert refuses(ledger, "Open the ledger again")
        with pytest.raises(LedgerWriteError, match="Open the ledger again"):
            block.settle(used=2)
        assert rounds_of(url) == (7 if happened else 8)

    @pytest.mark.parametrize("act", ["remove", "move", "replace"])
    def test_a_schema_that_went_away_stops_the_writer(
        self, server, url, act
    ) -> None:
        ledger = PrivacyLedger.open(url)
        schema = schema_of(url)
        if act == "remove":
            server.execute(f"DROP SCHEMA {schema} CASCADE")
        else:
            server.execute(f"ALTER SCHEMA {schema} RENAME TO {schema}_old")
        if act == "replace":
            PrivacyLedger.open(url, dataset="d").close()

        assert refuses(ledger)
        with pytest.raises(LedgerError):
            len(ledger)

    def test_a_server_that_stops_leaves_what_covers_all(
        self, server, tmp_path
    ) -> None:
        url, side = server.new_url(), tmp_path / "releases"
        side.touch()
        PrivacyLedger.open(url, dataset="d").close()
        chosen = random.Random(15)

        def release(releases: int) -> bool:
            ledger = PrivacyLedger.open(url)
            try:
                block = ledger.start_run("a")
                block.cover(Round(FullDataset(), QUERIES), 7)
                while True:
                    os.write(releases, b"." * 7)
                    block.cover(Round(FullDataset(), QUERIES), 7, most=7)
            except LedgerWriteError as error:
                return "pen the ledger again" in str(error)

        for stop in range(1, 6):
            enough = side.stat().st_size + 70
            releases = os.open(side, os.O_WRONLY | os.O_APPEND)
            child = start_fork(lambda releases=releases: release(releases))
            os.close(releases)
            wait_until(lambda enough=enough: side.stat().st_size >= enough)
            for _ in range(chosen.randrange(5000)):
                side.stat()
            server.stop(signal.SIGQUIT)
            server.start()

            assert os.waitpid(child, 0)[1] == 0
            assert 0 <= rounds_of(url) - side.stat().st_size <= 7 * stop
