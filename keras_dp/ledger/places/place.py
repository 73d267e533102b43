"""The places where ledgers are stored: files, and servers by their URL."""

import os
from pathlib import Path
from typing import Protocol

from keras_dp import _check
from keras_dp.errors import LedgerError
from keras_dp.ledger.places import storage
from keras_dp.ledger.places.file_handle import FileHandle
from keras_dp.ledger.places.handle import Handle

_SCHEMES = ("postgresql://", "postgres://")


class Place(Protocol):
    """A place where a ledger is, or can be created: a file, or a schema.

    Attributes:
        name: The path or URL, without a password, for messages.
        short_name: The name of the file without its folder and suffix, or the
            name of the schema.
    """

    name: str
    short_name: str

    def exists(self) -> bool:
        """Returns whether there is something at this place.

        Raises:
            LedgerError: The place cannot be looked up.
        """

    def create(self, header: str) -> None:
        """Creates a complete ledger, unless there is something at this place.

        Raises:
            LedgerWriteError: The ledger cannot be created.
        """

    def open(self, *, writable: bool) -> Handle:
        """Returns a handle of the ledger, after a check of its tables.

        Raises:
            FileNotFoundError: There is nothing at this place.
            LedgerError: There is something else than a ledger, or the ledger
                cannot be opened for reading or writing.
        """


class FilePlace:
    """A file; see `Place`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Takes the path of a file.

        Raises:
            LedgerError: No file can have this path, or it looks like a URL.
        """
        if _check.looks_like_url(path):
            raise LedgerError(
                "`path` must be the name of a file, or a URL that begins with "
                f"{_SCHEMES[0]!r}. Received: {_check.shown(path)}. Write the "
                "URL in this form, or give the file another name."
            )
        self._path = storage.absolute(path)
        self.name = str(self._path)
        self.short_name = Path(os.fspath(path)).stem

    def exists(self) -> bool:
        """See `Place.exists`."""
        return storage.exists(self._path)

    def create(self, header: str) -> None:
        """See `Place.create`."""
        storage.create(self._path, header)

    def open(self, *, writable: bool) -> Handle:
        """See `Place.open`."""
        connect = (
            storage.connect_writing if writable else storage.connect_reading
        )
        connection = connect(self._path)
        return FileHandle(connection, self._path, writable=writable)


def place_of(path: str | os.PathLike[str]) -> Place:
    """Returns the place that a path or a URL names.

    Raises:
        LedgerError: No file can have this path; or `path` is a URL of another
            kind, or names no schema; or psycopg is not installed.
    """
    if not isinstance(path, str) or not path.startswith(_SCHEMES):
        return FilePlace(path)
    try:
        from keras_dp.ledger.places.postgres import Schema
    except ImportError as error:
        raise LedgerError(
            "`path` must be a file, because psycopg 3 is not installed. "
            f"Received: the URL of a server ({error}). To use a server, "
            "install keras_dp[postgres]."
        ) from error
    return Schema(path)
