"""Makes ledger files, which appear under their name complete or not at all."""

import contextlib
import os
import re
import secrets
from pathlib import Path

from keras_dp import _system
from keras_dp.errors import LedgerWriteError
from keras_dp.ledger.places import schema

# Another process that creates the same ledger may remove what this one is
# about to publish. One of them succeeds, and the others find the ledger.
_ATTEMPTS = 100


def create(path: Path, header: str) -> None:
    """Creates a ledger file without rows, if there is none.

    Another process may create it first; this is no error.

    Raises:
        LedgerWriteError: The file cannot be created.
    """
    with contextlib.closing(schema.new_database(header)) as connection:
        content = connection.serialize()
    try:
        _refuse_remains(path)
        for _ in range(_ATTEMPTS):
            if path.exists():
                break
            _publish(content, path)
        _system.sync_folder(path.parent)
    except OSError as error:
        raise LedgerWriteError(
            "`path` must be the name of a file that can be created. Received: "
            f"path={str(path)!r} ({error.strerror}). Check its folder, the "
            "permissions, the disk and the length of the name."
        ) from error


def remove_leftovers(path: Path) -> None:
    """Removes the temporary files of processes that died in `create`."""
    leftover = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.new")
    for entry in os.scandir(path.parent):
        if leftover.fullmatch(entry.name):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def _publish(content: bytes, path: Path) -> None:
    """Writes a temporary file, and links it to the name if that is free."""
    remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            _system.sync(file.fileno())
        _system.publish(temporary, path)
    except FileExistsError:
        pass
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _refuse_remains(path: Path) -> None:
    """Refuses a path where an older ledger left its journal.

    SQLite would take the content of the journal for a part of the new ledger.
    It ignores an empty file, and a journal that begins with a zero byte, which
    was never complete.
    """
    for suffix, ignored in (("-journal", b"\0"), ("-wal", b"")):
        beside = Path(f"{path}{suffix}")
        # In this order: another process may create the ledger meanwhile.
        if _first_byte(beside) not in (b"", ignored) and not path.exists():
            raise LedgerWriteError(
                f"The ledger {str(path)!r} cannot be created: {str(beside)!r} "
                "belongs to an older ledger of this name, which was removed. "
                f"Restore the older ledger, or remove its {suffix} file."
            )


def _first_byte(path: Path) -> bytes:
    if not path.is_file():
        return b""
    try:
        with path.open("rb") as file:
            return file.read(1)
    except FileNotFoundError:  # Another process just removed it.
        return b""
