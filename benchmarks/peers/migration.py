"""Runs the peers' code of our pages, each peer in its own environment.

    python benchmarks/peers/migration.py
    python benchmarks/peers/migration.py --peer opacus --output

It says of each block whether it runs, and whether it prints the numbers that
its comments state. The tests ask the same of our blocks.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import environments

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
PEERS = ("opacus", "tf_privacy", "jax_privacy")


def answers(python: str, blocks: list[str]) -> list[dict[str, Any]]:
    """Returns what became of each block, in one process of an interpreter.

    Args:
        python: The interpreter.
        blocks: They run in turn, in an empty folder. Nothing of this
            repository can be imported there.
    """
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [python, "-I", str(FOLDER / "run_blocks.py")],
            input=json.dumps(blocks),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    found = [json.loads(line) for line in ran.stdout.splitlines()]
    reason = f"ended with status {ran.returncode}: {ran.stderr[-2_000:]}"
    missing = len(blocks) - len(found)
    died = {"seconds": 0.0, "output": "", "error": reason}
    return found + [died] * missing


def main() -> None:
    """Prints what became of each block, and fails if one is not as it says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--folder", type=Path, default=environments.CACHE)
    parser.add_argument("--pip-option", action="append", default=[])
    parser.add_argument("--output", action="store_true", help="print it, too")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests import documents

    failed = False
    for peer in options.peer:
        page = ROOT / "docs" / "migrate" / f"{peer}.md"
        blocks = documents.PEER.findall(page.read_text("utf-8"))
        python = environments.python(peer, options.folder, options.pip_option)
        found = answers(python, blocks)
        pairs = zip(blocks, found, strict=True)
        for number, (block, answer) in enumerate(pairs, 1):
            unprinted = documents.unprinted(block, answer["output"])
            if answer["error"]:
                verdict = f"fails\n{answer['error']}"
            elif unprinted:
                verdict = f"does not print {', '.join(unprinted)}"
            else:
                numbers = ", ".join(documents.stated(block)) or "no numbers"
                verdict = f"runs in {answer['seconds']:.0f} s, states {numbers}"
            failed |= bool(answer["error"] or unprinted)
            print(f"{peer}, block {number}: {verdict}", flush=True)
            if options.output:
                print(answer["output"], flush=True)
    if failed:
        sys.exit("Blocks fail, or print other numbers than they state.")


if __name__ == "__main__":
    main()
