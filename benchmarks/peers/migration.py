"""Runs the peers' code of the migration pages, each in its own environment.

python benchmarks/peers/migration.py
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import environments

PAGES = Path(__file__).resolve().parents[2] / "docs" / "migrate"
PEERS = ("opacus", "tf_privacy", "jax_privacy")
# Ours are marked `python`.
_BLOCKS = re.compile(r"^```py\n(.*?)^```", re.DOTALL | re.MULTILINE)


def peer_code(page: str) -> str:
    """Returns the blocks of a peer's code, in the order of the page."""
    return "\n\n".join(_BLOCKS.findall(page))


def main() -> None:
    """Prints what each page's code printed, and how long it took."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--peer", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--folder", type=Path, default=environments.CACHE)
    parser.add_argument("--pip-option", action="append", default=[])
    options = parser.parse_args()
    failed = []
    for peer in options.peer:
        code = peer_code((PAGES / f"{peer}.md").read_text("utf-8"))
        python = environments.python(peer, options.folder, options.pip_option)
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            ran = subprocess.run(
                [python, "-c", code],
                cwd=folder,
                capture_output=True,
                text=True,
                check=False,
            )
        seconds = time.perf_counter() - start
        print(f"{peer}: {seconds:.0f} s\n{ran.stdout}", flush=True)
        if ran.returncode:
            print(ran.stderr[-2_000:], flush=True)
            failed.append(peer)
    if failed:
        sys.exit(f"The code of these pages does not run: {', '.join(failed)}")


if __name__ == "__main__":
    main()
