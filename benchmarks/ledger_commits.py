"""What covering a round costs: milliseconds per durable commit of a ledger.

    python benchmarks/ledger_commits.py --folder .

Adaptive queries reserve one round at a time, so they wait for one commit a
round; other training waits for one commit a second. The disk decides: give a
folder on the disk that will hold the ledger.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round

COMMITS = 300


def main() -> None:
    """Prints one row per kind of commit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", default=None, help="where to write")
    folder = parser.parse_args().folder
    print("| commit | median ms | 95 % below, ms |")
    print("| --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place, "run.ledger")
        with PrivacyLedger.open(path, dataset="d") as ledger:
            _row("a record", _repeat_records(ledger))
            _row("a block settled, the next reserved", _renew_equal(ledger))
            _row("the same, its event changed", _renew_changed(ledger))


def _row(name: str, seconds: list[float]) -> None:
    milliseconds = sorted(1e3 * each for each in seconds)
    most = milliseconds[int(0.95 * len(milliseconds))]
    median = statistics.median(milliseconds)
    print(f"| {name} | {median:.2f} | {most:.2f} |")


def _repeat_records(ledger: PrivacyLedger) -> list[float]:
    queries = [GaussianSum("gradients", 1.0, 4.0)]
    return [
        _seconds(lambda: ledger.record(FullDataset(), queries))
        for _ in range(COMMITS)
    ]


def _renew_equal(ledger: PrivacyLedger) -> list[float]:
    queries = (GaussianSum("gradients", 1.0, 4.0),)
    return _renew(ledger, lambda step: Round(FullDataset(), queries))


def _renew_changed(ledger: PrivacyLedger) -> list[float]:
    return _renew(
        ledger,
        lambda step: Round(
            FullDataset(), (GaussianSum("gradients", 1.0 + step, 4.0),)
        ),
    )


def _renew(
    ledger: PrivacyLedger, round_of: Callable[[int], Round]
) -> list[float]:
    block = ledger.reserve(FullDataset(), round_of(0).queries)
    seconds = []
    for step in range(1, COMMITS + 1):
        start = time.perf_counter()
        block = block.renew(used=1, count=1, round_=round_of(step))
        seconds.append(time.perf_counter() - start)
    block.settle(used=1)
    return seconds


def _seconds(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
