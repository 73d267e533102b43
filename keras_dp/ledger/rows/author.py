"""Who writes into a ledger: the user, the machine, the process, the program.

The ledger keeps these for ever, so that people know whom to ask. They are no
proof: a process can write any name.
"""

import contextlib
import dataclasses
import functools
import getpass
import hashlib
import os
import platform
import socket
import sys
from pathlib import Path

from keras_dp import _check, _system

# Whose versions decide what was released, if they are loaded.
_LIBRARIES = (
    "jax",
    "jax_privacy",
    "keras",
    "keras_dp",
    "numpy",
    "opacus",
    "scipy",
    "tensorflow",
    "torch",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Author:
    """The process that started a run.

    Attributes:
        user: The name of the user who ran the process.
        host: The name of the machine.
        machine: A short hash, different for every machine and for every start
            of a machine.
        process: The number of the process on this machine.
        process_start: When the process started, in clock ticks since the start
            of the machine; empty if the system does not tell.
        program: The name of the file that was run.
        program_hash: SHA-256 hash of this file; empty if it cannot be read.
        versions: Pairs of a loaded library and its version.
    """

    user: str
    host: str
    machine: str
    process: int
    process_start: str
    program: str
    program_hash: str
    versions: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        _check.kind(int, process=self.process)
        for field in dataclasses.fields(self):
            if field.name not in ("process", "versions"):
                _check.kind(str, **{field.name: getattr(self, field.name)})
        for name, version in self.versions:
            _check.kind(str, versions=name)
            _check.kind(str, versions=version)

    def is_this_process(self) -> bool:
        """Returns whether it is the process that asks."""
        return (self.machine, self.process, self.process_start) == (
            _machine(),
            os.getpid(),
            _start_of(os.getpid()),
        )

    def is_running(self) -> bool | None:
        """Returns whether the process still runs.

        Returns:
            `None` for a process of a machine with another name, because this
            machine cannot know, and on Windows for any other process. `False`
            for a process of a machine with the same name that was started anew
            since, or of another container with this name.
        """
        if self.machine != _machine():
            # A machine with this name was started anew, or is another one.
            return None if self.host != socket.gethostname() else False
        if self.process == os.getpid():
            return self.process_start == _start_of(self.process)
        if not (found := _system.is_process(self.process)):
            return found
        return self.process_start == _start_of(self.process)


def this_process() -> Author:
    """Returns the process that calls this function."""
    program = sys.argv[0] if sys.argv and sys.argv[0] else "python"
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return Author(
        user=_user(),
        host=socket.gethostname(),
        machine=_machine(),
        process=os.getpid(),
        process_start=_start_of(os.getpid()),
        program=os.path.basename(program),
        program_hash=_hash_of(program),
        versions=tuple(sorted(versions.items())),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # A number without a name.
        return str(os.getuid()) if hasattr(os, "getuid") else ""


@functools.cache
def _machine() -> str:
    """Returns a short hash of this machine's name and of its last start."""
    found = [socket.gethostname()]
    with contextlib.suppress(OSError):  # Only Linux has both.
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text())
        found.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


def _start_of(process: int) -> str:
    """Returns when a process started, empty if the system does not tell.

    The number of an ended process is given to a new one. The number and the
    start together name one process.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return ""
    # The name, in parentheses, may hold anything; field 22 is the start.
    fields = text[text.rindex(")") + 2 :].split()
    return "" if fields[0] in "ZX" else fields[19]


def _hash_of(program: str) -> str:
    try:
        return hashlib.sha256(Path(program).read_bytes()).hexdigest()
    except OSError:
        return ""
