"""Environments of their own, for what the tests' environment does not have.

An environment sees what is installed in the tests' environment, and adds what a
file of requirements names. It is made once, and kept.
"""

import hashlib
import os
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests import programs
from tests.imports import ROOT

CACHE = Path.home() / ".cache" / "keras_dp" / "tests"
# Holds the hash of what was installed in full.
MARK = "installed.sha256"


def python(name: str) -> str:
    """Returns the interpreter of an environment.

    The test is skipped if pip cannot install it, as without a network.

    Args:
        name: Of a file in `requirements`, without its ending.
    """
    file = ROOT / "requirements" / f"{name}.txt"
    base = sysconfig.get_paths()["purelib"]
    wanted = hashlib.sha256(file.read_bytes() + base.encode()).hexdigest()
    path = CACHE / f"{name}-{sys.version_info[0]}.{sys.version_info[1]}"
    mark, interpreter = path / MARK, path / "bin" / "python"
    if not (mark.exists() and mark.read_text() == wanted):
        venv.create(path, with_pip=True, clear=True)
        own = sysconfig.get_path(
            "purelib", "venv", {"base": path, "installed_base": path}
        )
        Path(own, "tests_environment.pth").write_text(f"{base}\n")
        install = ("-m", "pip", "install", "--quiet", "-r", file)
        done = programs.run(interpreter, *install, env=os.environ)
        if done.returncode:
            pytest.skip(f"pip cannot install {file.name}: {done.stderr}")
        mark.write_text(wanted)
    return str(interpreter)


def run(name: str, program: str, folder: Path) -> str:
    """Runs a program in an environment, and returns what it prints."""
    done = programs.run(python(name), "-c", program, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
