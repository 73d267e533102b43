"""Plants faults in keras_dp and its peers, and asks each one's own tools.

    python benchmarks/audit_peers.py            # needs the repository's tests

Each fault is planted in the peer's own terms, in a virtual environment of its
own (`peers/environments.py`), and whatever the peer offers to check a training
is run. A cell says which tool found it, or "no".
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from peers import environments

FOLDER = Path(__file__).resolve().parent
PEERS = {
    "Opacus": "opacus",
    "JAX Privacy": "jax_privacy",
    "TF Privacy": "tf_privacy",
}
# As the catalogue in docs/auditing.md calls them.
FAULTS = (
    "noise is halved",
    "a seed is used in every round",
    "the last variable is not clipped",
    "the sum is divided by the number of records",
    "a layer computes over the batch",
    "a loss computes over the batch",
    "the state of a layer follows its inputs",
    "samples have a fixed size",
    "the ledger holds twice the noise",
)


def found_by_peer(name: str, options: Sequence[str]) -> dict[str, str]:
    """Returns what a peer's tools say of each fault, and of none."""
    python = environments.python(name, options=options)
    command = [python, str(FOLDER / "peers" / f"{name}_faults.py")]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, str] = json.loads(answer.stdout.splitlines()[-1])
    return found


def found_by_us() -> dict[str, str]:
    """Returns which questions of `check` find each fault, and none."""
    from keras_dp.auditing import check
    from tests.audited import samples, training
    from tests.planted_faults import FAULTS as PLANTED

    def questions(report: object) -> str:
        return ", ".join(sorted({f.question for f in report.findings})) or "no"

    found = {"none": questions(check(training(), samples()))}
    for fault in FAULTS:
        planted = PLANTED[fault]
        found[fault] = questions(check(planted.train(), planted.source()))
    return found


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", nargs="*", default=list(PEERS))
    parser.add_argument(
        "--pip-option",
        action="append",
        default=[],
        help="for the environments, such as another index",
    )
    chosen = parser.parse_args()
    sys.path.insert(0, str(FOLDER.parent))
    columns = {"`check`": found_by_us()}
    for peer in chosen.peers:
        columns[peer] = found_by_peer(PEERS[peer], chosen.pip_option)
    print("| Fault |", " | ".join(columns), "|")
    print("| --- |" + " --- |" * len(columns))
    for fault in ("none", *FAULTS):
        cells = [column[fault] for column in columns.values()]
        print(f"| {fault} |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()
