"""What privacy costs in each example: lines, accuracy and time.

Runs `plain.py` and `private.py` of each example, each in a process of its own,
and prints the table of `README.md`.

    python examples/compare.py [NAME ...]
"""

import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent
NAMES = [
    "imbalanced",
    "wide_and_deep",
    "vision",
    "text",
    "autoencoder",
    "time_series",
    "transformer",
    "recommender",
    "vae",
    "lora",
    "transfer_learning",
    "wide_resnet",
]
# Layers are adapted, and metrics computed, under the epsilon of the training.
IN_ONE_LEDGER = ["wide_and_deep", "text"]
HEAD = """\
| Example | Changed lines | epsilon | Without privacy | With | Seconds |
| --- | --- | --- | --- | --- | --- |"""


class Finished(NamedTuple):
    """A script that ran."""

    quantity: str  # "accuracy", "auc" or "error".
    value: str
    epsilon: str | None  # None without privacy.
    seconds: float


def programs(name: str) -> tuple[str, str]:
    """Returns the texts of `plain.py` and `private.py`."""
    folder = ROOT / name
    return (folder / "plain.py").read_text("utf-8"), (
        folder / "private.py"
    ).read_text("utf-8")


def changed_lines(plain: str, private: str) -> int:
    """Returns how many lines were added or replaced, or else removed.

    Empty lines do not count.
    """
    changes = [
        line
        for line in difflib.ndiff(plain.splitlines(), private.splitlines())
        if line[2:]
    ]
    return max(
        sum(line.startswith(mark) for line in changes) for mark in ("+ ", "- ")
    )


def run(path: Path) -> Finished:
    """Runs a script in a temporary folder, which holds its ledger too.

    Raises:
        subprocess.CalledProcessError: The script failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        text = subprocess.run(
            [sys.executable, str(path)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "TMPDIR": folder},
        ).stdout
        seconds = time.perf_counter() - start
    quantity, value = text.split("\n")[-2].split()
    claim = re.search(r"epsilon <= (\S+) at delta", text)
    return Finished(quantity, value, claim and claim[1], seconds)


def row(name: str) -> str:
    """Returns the row of an example, which is run for it."""
    plain = run(ROOT / name / "plain.py")
    private = run(ROOT / name / "private.py")
    return (
        f"| [{name}]({name}/private.py) "
        f"| {changed_lines(*programs(name))} "
        f"| {private.epsilon} | {plain.quantity} {plain.value} "
        f"| {private.value} | {plain.seconds:.0f}, {private.seconds:.0f} |"
    )


def main() -> None:
    """Prints the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=NAMES)
    options = parser.parse_args()
    print(HEAD)
    for name in options.names:
        print(row(name), flush=True)


if __name__ == "__main__":
    main()
