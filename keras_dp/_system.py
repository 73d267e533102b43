"""The differences between operating systems: lasting files, and processes.

* Linux: `fsync` of a file and of its folder put both on the disk. The number of
  a process and its start, in `/proc`, say whether it runs.
* macOS: `fsync` leaves the data to the drive, and `F_FULLFSYNC` does not. The
  start of a process is not known, so that another one may have its number.
* Windows: folders cannot be synced; NTFS keeps a log of names. A file gets its
  name by `rename`, which replaces none there; elsewhere by a hard link. Whether
  another process runs is not asked.

The rest of the package asks no system for its name.
"""

import contextlib
import os
import sys
from pathlib import Path

# `os.kill` ends a process here, or sends it Ctrl-C.
IS_WINDOWS = sys.platform == "win32"
# A commit of SQLite ends when its journal is deleted or cut to nothing. Where
# the folder cannot be synced for sure, a deleted journal could come back when
# the power fails, and would undo the commit. One that was cut is synced itself.
JOURNAL_MODE = "delete" if sys.platform == "linux" else "truncate"


def sync(descriptor: int) -> None:
    """Returns when what was written to a file or a folder is on the disk."""
    if sys.platform != "win32":
        import fcntl

        full = getattr(fcntl, "F_FULLFSYNC", None)
        if full is not None:
            # Not every file system has it, such as a share of another machine.
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, full)
                return
    os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Returns when the names of the files in a folder are on the disk."""
    if IS_WINDOWS:
        return  # It opens no folders.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def publish(temporary: Path, path: Path) -> None:
    """Gives a file a second name, or moves it there, if that name is free.

    Raises:
        FileExistsError: There is a file of this name. It was not touched.
    """
    if IS_WINDOWS:
        os.rename(temporary, path)
    else:
        os.link(temporary, path)


def is_process(number: int) -> bool | None:
    """Returns whether a process of this number runs; `None` if unknown."""
    if IS_WINDOWS:
        return None
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It runs, as another user's.
    return True
