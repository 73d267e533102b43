"""A PostgreSQL server of the tests' own, in a folder that they remove."""

import os
import secrets
import shutil
import subprocess
import tempfile
import urllib.parse
from pathlib import Path
from typing import Any

# A user whom the server asks for this password; it trusts all others.
GUARDED, PASSWORD = "guarded", "p@ss/word:?#%"

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
        self._call("initdb", "--auth=trust", "--username=ledger", "--no-sync")
        (folder / "data" / "pg_hba.conf").write_text(_ACCESS)

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses='' -c max_wal_size=64"
        log = str(self._folder / "log")
        self._call("pg_ctl", "start", "--wait", f"--log={log}", "-o", options)

    def stop(self, mode: str = "fast") -> None:
        """Stops it; mode "immediate" is like the death of its machine."""
        self._call("pg_ctl", "stop", "--wait", f"--mode={mode}")

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

    def _call(self, name: str, *arguments: str) -> None:
        folder = programs()
        assert folder is not None
        command = [folder / name, *arguments, "-D", self._folder / "data"]
        # A server that starts would keep a pipe open.
        with tempfile.TemporaryFile() as output:
            status = subprocess.run(
                command,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                check=False,
                **self._as,
            ).returncode
            output.seek(0)
            assert status == 0, output.read().decode()


def schema_of(url: str) -> str:
    return url.rpartition("schema=")[2]
