"""Connections to ledgers: opened, owned by one process, closed.

Two properties of POSIX locks could let two processes write to a ledger at the
same time, and lose rows. A process that closes any descriptor of a file drops
all its locks on this file. And a forked child believes that it has the locks of
its parent. Two rules prevent this:

* a ledger file is opened through SQLite only, which knows its own locks;
* only the process that opened a connection uses and closes it, and a process
  opens no file that its parent had open when it forked.

The second rule holds for the connection to a server too: a forked child that
closed it would end the session of its parent.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import NamedTuple, Protocol

from keras_dp.errors import LedgerError

# How long one process waits for another one's transaction.
BUSY_SECONDS = 30.0

_Identity = tuple[int, int] | None


class _Owner(NamedTuple):
    process: int
    file: _Identity


class _Connection(Protocol):
    def close(self) -> None: ...

    def __hash__(self) -> int: ...


# It also holds connections inherited through fork, which must never be closed.
_open: dict[_Connection, _Owner] = {}


def connect(path: Path, parameters: str) -> sqlite3.Connection:
    """Returns a connection to a file; give it back to `close`.

    The path must be absolute and without symbolic links. A process opens no
    file that the one it was forked from has open.
    """
    file = identity(path)
    if any(
        owner.process != os.getpid() and owner.file == file
        for owner in list(_open.values())
    ):
        raise LedgerError(
            "`path` must not be open in the process that this one was forked "
            f"from. Received: path={str(path)!r}. Close the ledger before the "
            "fork, or start the process with 'spawn'."
        )
    connection = sqlite3.connect(
        f"{path.as_uri()}?{parameters}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    adopt(connection, file)
    return connection


def adopt(connection: _Connection, file: _Identity = None) -> None:
    """Notes that this process owns a connection, by default to no file."""
    _open[connection] = _Owner(os.getpid(), file)


def close(connection: _Connection) -> None:
    """Closes a connection, unless another process owns it."""
    owner = _open.get(connection)
    if owner is not None and owner.process == os.getpid():
        del _open[connection]
        with contextlib.suppress(sqlite3.Error):
            connection.close()


def identity(path: Path) -> _Identity:
    """Returns the device and inode of a file; `None` if it is not found."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def code_of(error: Exception) -> int:
    """Returns SQLite's code of an error; 0 for an error of Python."""
    return int(getattr(error, "sqlite_errorcode", 0))
