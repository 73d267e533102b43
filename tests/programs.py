"""Programs that tests start, and wait for."""

import os
import subprocess
import sys
from typing import Any

from tests.imports import ROOT


def run(*command: object, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Returns how a program ended, and what it printed.

    Args:
        *command: The program and its arguments.
        **options: Of `subprocess.run`, in place of those of all programs.
    """
    given = {
        "capture_output": True,
        "text": True,
        "cwd": ROOT,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
    }
    return subprocess.run(
        [*map(str, command)], check=False, **{**given, **options}
    )


def python(*arguments: object, **options: Any) -> Any:
    """Runs Python; see `run`."""
    return run(sys.executable, *arguments, **options)
