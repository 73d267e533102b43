"""The places where ledgers are stored: files, and servers by their URL."""

import os
from pathlib import Path
from typing import Protocol

from keras_dp.errors import LedgerError
from keras_dp.ledger import creation, storage
from keras_dp.ledger.file_handle import FileHandle
from keras_dp.ledger.handle import Handle

_SCHEMES = ("postgresql://", "postgres://")


class Place(Protocol):
    """A place where one ledger stands, or may be created.

    Attributes:
        name: It in messages, without a password.
        short_name: Its last part, without a suffix.
    """

    name: str
    short_name: str

    def exists(self) -> bool:
        """Returns whether something stands there.

        Raises:
            LedgerError: It cannot be looked up.
        """

    def create(self, header: str) -> None:
        """Creates a ledger, whole or not at all, unless one stands there.

        Args:
            header: The text of its header.

        Raises:
            LedgerWriteError: It cannot be created.
        """

    def open(self, *, writable: bool) -> Handle:
        """Returns a handle of the ledger, whose form was checked.

        Raises:
            FileNotFoundError: There is none.
            LedgerError: It is no ledger, or cannot be opened so.
        """


class FilePlace:
    """A file; see `Place`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Takes the name of a file.

        Raises:
            LedgerError: No file can have this name.
        """
        self._path = storage.absolute(path)
        self.name = str(self._path)
        self.short_name = Path(os.fspath(path)).stem

    def exists(self) -> bool:
        """As `Place.exists`."""
        return storage.exists(self._path)

    def create(self, header: str) -> None:
        """As `Place.create`."""
        creation.create(self._path, header)

    def open(self, *, writable: bool) -> Handle:
        """As `Place.open`."""
        connect = (
            storage.connect_writing if writable else storage.connect_reading
        )
        connection = connect(self._path)
        return FileHandle(connection, self._path, writable=writable)


def place_of(path: str | os.PathLike[str]) -> Place:
    """Returns the place that a path or a URL names.

    Raises:
        LedgerError: No ledger can stand there; or it is the URL of a server,
            and the library that speaks with it is missing.
    """
    if not isinstance(path, str) or not path.startswith(_SCHEMES):
        return FilePlace(path)
    try:
        from keras_dp.ledger.postgres import Schema
    except ImportError as error:
        raise LedgerError(
            "`path` must be a file where psycopg 3 is not installed. Received: "
            f"the URL of a server ({error}). Install keras_dp[postgres]."
        ) from error
    return Schema(path)
