"""Makes ledger files: complete under their name, or not at all."""

import contextlib
import os
import re
import secrets
from pathlib import Path

from keras_dp.errors import LedgerWriteError
from keras_dp.ledger import schema

# Another process that creates the same ledger may remove what this one is
# about to publish. One of them succeeds, and the others find the ledger.
_ATTEMPTS = 100


def create(path: Path, header: str) -> None:
    """Creates an empty ledger file, unless another process does so first.

    It appears under its name complete, or not at all.

    Args:
        path: Its name.
        header: The text of its header.

    Raises:
        LedgerWriteError: The file cannot be created.
    """
    with contextlib.closing(schema.new_database(header)) as connection:
        publish(path, connection.serialize())


def publish(path: Path, content: bytes) -> None:
    """Gives a ledger file its name, unless another file has it.

    Raises:
        LedgerWriteError: The file cannot be created.
    """
    try:
        _refuse_remains(path)
        for _ in range(_ATTEMPTS):
            if path.exists():
                break
            _publish(content, path)
        _sync(path.parent)
    except OSError as error:
        raise LedgerWriteError(
            "`path` must be the name of a file that can be created. Received: "
            f"path={str(path)!r} ({error.strerror}). Check its folder, the "
            "permissions, the disk and the length of the name."
        ) from error


def remove_leftovers(path: Path) -> None:
    """Removes what processes left that died while they created the ledger."""
    leftover = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{16}\.new")
    for entry in os.scandir(path.parent):
        if leftover.fullmatch(entry.name):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)


def _publish(content: bytes, path: Path) -> None:
    """Writes a complete file, and gives it the name if that is free."""
    remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # Never replaces an existing file.
    except FileExistsError:
        pass
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _refuse_remains(path: Path) -> None:
    """Refuses the place of a ledger of which only a part was removed.

    SQLite would add to the new ledger what lies there. It ignores empty files,
    and a journal that begins with zero, because it was not complete.
    """
    for suffix, ignored in (("-journal", b"\0"), ("-wal", b"")):
        beside = Path(f"{path}{suffix}")
        # In this order: another process may create the ledger meanwhile.
        if _first_byte(beside) not in (b"", ignored) and not path.exists():
            raise LedgerWriteError(
                f"The ledger {str(path)!r} cannot be created: {str(beside)!r} "
                "belongs to another one, which was removed. Restore that "
                f"ledger, or remove its {suffix} file."
            )


def _first_byte(path: Path) -> bytes:
    if not path.is_file():
        return b""
    with path.open("rb") as file:
        return file.read(1)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
