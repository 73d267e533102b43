"""A PostgreSQL server of the tests' own, in a folder that they remove."""

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

from tests.waiting import HUNG_SECONDS, wait_until

# A user whom the server asks for this password; it trusts all others.
GUARDED, PASSWORD = "guarded", "p@ss/word:?#%"

_PR_SET_PDEATHSIG = 1  # Of `prctl`, in linux/prctl.h.

_ACCESS = f"""
local all {GUARDED} scram-sha-256
local all all trust
"""


def programs() -> Path | None:
    """Returns the folder of the server's programs, the newest there is."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/postgres"),
        key=lambda path: int(path.parts[-3]),
    )
    on_path = shutil.which("postgres")
    if found:
        return found[-1].parent
    return Path(on_path).resolve().parent if on_path else None


class Server:
    """A server that listens on a socket in its folder, and nowhere else."""

    def __init__(self, folder: Path) -> None:
        """Makes a server that does not run yet."""
        self._folder = folder
        # The server refuses to run as root.
        self._as = {"user": "postgres"} if os.getuid() == 0 else {}
        if self._as:
            shutil.chown(folder, "postgres")
        found = programs()
        assert found is not None
        command = [found / "initdb", "-D", folder / "data", "--no-sync"]
        subprocess.run(
            [*command, "--auth=trust", "--username=ledger"],
            check=True,
            capture_output=True,
            cwd=folder,
            **self._as,
        )
        (folder / "data" / "pg_hba.conf").write_text(_ACCESS)

    def start(self) -> None:
        folder = programs()
        assert folder is not None
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(folder / "postgres", "-D", self._folder / "data"),
                    *("-k", self._folder, "-c", "listen_addresses="),
                ],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                preexec_fn=_end_with_the_parent,
                **self._as,
            )

        def is_ready() -> bool:
            assert self._process.poll() is None, self._read_log()
            return self._is_ready()

        wait_until(is_ready)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stops it; SIGQUIT is like the death of its machine."""
        self._process.send_signal(how)
        self._process.wait(timeout=HUNG_SECONDS)

    def new_url(self, user: str = "ledger") -> str:
        """Returns the address of a ledger that is not there yet."""
        return self.url(f"s{secrets.token_hex(6)}", user)

    def url(self, schema: str, user: str = "ledger") -> str:
        host = urllib.parse.quote(str(self._folder), safe="")
        return f"postgresql://{user}@{host}/postgres?schema={schema}"

    def execute(self, *statements: str, url: str = "") -> list[tuple[Any, ...]]:
        """Runs statements, and returns what the last one does.

        Args:
            *statements: Each in a transaction of its own.
            url: The ledger whose tables they name, if any.
        """
        import psycopg

        found: list[tuple[Any, ...]] = []
        with psycopg.connect(
            host=str(self._folder),
            user="ledger",
            dbname="postgres",
            autocommit=True,
        ) as connection:
            if url:
                schema = schema_of(url)
                connection.execute(f'SET search_path = "{schema}"'.encode())
            for statement in statements:
                cursor = connection.execute(statement.encode())
                found = cursor.fetchall() if cursor.description else []
        return found

    def _is_ready(self) -> bool:
        import psycopg

        try:
            return self.execute("SELECT 1") == [(1,)]
        except psycopg.OperationalError:
            return False

    def _read_log(self) -> str:
        return (self._folder / "log").read_text()


def _end_with_the_parent() -> None:
    """Lets the kernel stop the server when the tests are killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT)


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]
