"""What a ledger costs: its commits, its rounds, and its size.

    python benchmarks/ledger.py commits [--at FOLDER or URL]
    python benchmarks/ledger.py rounds [--at ...]
    python benchmarks/ledger.py size [--at ...] [--kinds 100000]
    python benchmarks/ledger.py accountants [--at ...] [--kinds 100000]
    python benchmarks/ledger.py commands [--at ...] [--kinds 100000]
    python benchmarks/ledger.py runs [--kinds 100000]

`commits` are the milliseconds of a durable one. Adaptive queries reserve one
round at a time, so they wait for one commit a round; other training waits for
one commit a second. `rounds` are the microseconds by which recording delays a
step of 5 ms, with and without an account that pays. `size` opens a ledger of
many kinds of rounds, which verifies it, appends to it, and lists its rounds and
runs; `accountants` then bounds epsilon, each in a process of its own, and
`commands` runs those of `keras-dp`, likewise. `runs` reports on as many runs,
in memory, of five kinds of rounds.

The disk decides: give a folder on the disk that will hold the ledger, or the
URL of a server, without a schema.
"""

import argparse
import contextlib
import multiprocessing
import os
import resource
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from keras_dp.ledger import (
    FullDataset,
    GaussianSum,
    Header,
    PoissonSampling,
    PrivacyLedger,
    Round,
)
from keras_dp.ledger.places.place import place_of
from keras_dp.ledger.rows import log
from keras_dp.ledger.rows.codec import text_from_round

COMMITS = 300
STEPS, STEP_SECONDS = 2000, 5e-3
# What takes longer than this was a commit.
COMMIT_SECONDS = 1e-4
ROUNDS_OF_A_KIND, KINDS_OF_A_COMMIT = 100, 500
QUERIES = (GaussianSum("gradients", 1.0, 4.0),)
KINDS_OF_RUNS = 5
AT_DELTA = ("--delta", "1e-6")
ACCOUNTANTS = ("Fourier", "RDP")


def main() -> None:
    """Prints the table of one part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=list(_PARTS))
    parser.add_argument("--at", help="a folder, or the URL of a server")
    parser.add_argument("--kinds", type=int, default=100_000)
    options = parser.parse_args()
    with _new_address(options.at) as address:
        _PARTS[options.part](address, options.kinds)


@contextlib.contextmanager
def _new_address(place: str | None) -> Iterator[str]:
    if place is not None and "://" in place:
        yield f"{place}?schema=benchmark_{secrets.token_hex(4)}"
    else:
        with tempfile.TemporaryDirectory(dir=place) as folder:
            yield str(Path(folder, "run.ledger"))


def _commits(address: str, kinds: int) -> None:
    """Times small commits, whatever the number of `kinds`."""
    print("| commit | median ms | 95 % below, ms |")
    print("| --- | --- | --- |")
    with PrivacyLedger.open(address, dataset="d") as ledger:
        _row("a record", _repeat_records(ledger))
        _row("a block settled, the next reserved", _renew_equal(ledger))
        _row("the same, its event changed", _renew_changed(ledger))


def _row(name: str, seconds: list[float]) -> None:
    milliseconds = sorted(1e3 * each for each in seconds)
    most = milliseconds[int(0.95 * len(milliseconds))]
    median = statistics.median(milliseconds)
    print(f"| {name} | {median:.2f} | {most:.2f} |")


def _repeat_records(ledger: PrivacyLedger) -> list[float]:
    return [
        _seconds(lambda: ledger.record(FullDataset(), QUERIES))
        for _ in range(COMMITS)
    ]


def _renew_equal(ledger: PrivacyLedger) -> list[float]:
    return _renew(ledger, lambda step: Round(FullDataset(), QUERIES))


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
    run = ledger.start_run("a")
    run.cover(round_of(0))
    seconds = []
    for step in range(1, COMMITS + 1):
        start = time.perf_counter()
        run.cover(round_of(step), most=1)
        seconds.append(time.perf_counter() - start)
    run.settle()
    return seconds


def _rounds(address: str, kinds: int) -> None:
    """Records steps that wait, in a ledger that holds `kinds` of others."""
    from keras_dp.budgets import RenyiFilter, open_account

    _alone(_fill, address, kinds)
    print("| rounds | microseconds a round | of a commit, ms | commits |")
    print("| --- | --- | --- | --- |")
    with PrivacyLedger.open(address) as ledger:
        _record_steps("free", ledger)
        open_account(ledger, "all", RenyiFilter(1e6, 1e-6))
        _record_steps("paid by an account", ledger)


def _record_steps(name: str, ledger: PrivacyLedger) -> None:
    from keras_dp.spending.run import new_run

    planned = Round(PoissonSampling(0.001), QUERIES)
    run = new_run(ledger, most=STEPS)
    seconds = []
    for _ in range(STEPS):
        took = _seconds(lambda: run.cover(planned))
        time.sleep(STEP_SECONDS)
        seconds.append(took + _seconds(lambda: run.released(lambda: QUERIES)))
    seconds.append(_seconds(run.finish))
    commits = [each for each in seconds if each > COMMIT_SECONDS]
    print(
        f"| {name} | {1e6 * sum(seconds) / STEPS:.0f} "
        f"| {1e3 * statistics.median(commits):.1f} | {len(commits)} |"
    )


def _size(address: str, kinds: int) -> None:
    """Opens, appends to and lists a large ledger; the peak is of all so far."""
    _alone(_fill, address, kinds)
    print("| step | seconds | of CPU time | peak MB |")
    print("| --- | --- | --- | --- |")
    ledger = _timed("open", lambda: PrivacyLedger.open(address))
    run = _timed("start a run", lambda: ledger.start_run("more"))
    _timed("append", lambda: run.record(FullDataset(), QUERIES))
    _timed("its rounds", lambda: ledger.rounds)
    _timed("its runs", lambda: ledger.runs)
    _timed("accounts, seals, number", lambda: _look(ledger))
    ledger.close()


def _accountants(address: str, kinds: int) -> None:
    _alone(_fill, address, kinds)
    print("| accountant | seconds | of CPU time | peak MB |")
    print("| --- | --- | --- | --- |", flush=True)
    for name in ACCOUNTANTS:
        _alone(_bound, address, name)


def _bound(address: str, name: str) -> None:
    from keras_dp import accountants

    with PrivacyLedger.open(address, mode="r") as ledger:
        accountant = getattr(accountants, name)()
        _timed(name, lambda: accountant.epsilon(ledger, delta=1e-6))


def _commands(address: str, kinds: int) -> None:
    _alone(_fill, address, kinds)
    print("| keras-dp ... | seconds | of CPU time | peak MB |")
    print("| --- | --- | --- | --- |", flush=True)
    for name, *options in (
        ("budget",),
        ("runs", *AT_DELTA),
        ("report", *AT_DELTA),
        ("report", "--all", *AT_DELTA),
        ("report", "--format", "json", *AT_DELTA),
        ("report", "--format", "html", *AT_DELTA),
        ("explain", *AT_DELTA),
    ):
        _alone(_command, [name, address, *options])


def _command(arguments: list[str]) -> None:
    """Times a command, with its imports but for those of the ledger."""
    start, start_cpu = time.perf_counter(), time.process_time()
    from keras_dp.reporting import cli

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        cli.main(arguments)
    seconds = time.perf_counter() - start
    cpu = time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    name = " ".join(each for each in arguments if "/" not in each)
    print(f"| {name} | {seconds:.1f} | {cpu:.1f} | {peak:.0f} |", flush=True)


def _runs(address: str, kinds: int) -> None:
    from keras_dp.reporting import make_report, render

    ledger = PrivacyLedger.in_memory(dataset="d")
    for number in range(kinds):
        query = GaussianSum("gradients", 1.0, 4.0 + number % KINDS_OF_RUNS)
        with ledger.start_run(f"trial {number}") as run:
            run.record(PoissonSampling(0.01), (query,), ROUNDS_OF_A_KIND)
    print("| of the runs | seconds | of CPU time | peak MB |")
    print("| --- | --- | --- | --- |", flush=True)
    _timed("a list", lambda: ledger.runs)
    report = _timed("a report", lambda: make_report(ledger, delta=1e-6))
    _timed("its text", report.__str__)
    _timed("its JSON", lambda: render(report, "json"))


def _alone(act: Callable[..., None], *arguments: object) -> None:
    """Runs a function in a process of its own, whose memory is measured."""
    process = multiprocessing.get_context("spawn").Process(
        target=act, args=arguments
    )
    process.start()
    process.join()
    if process.exitcode:
        sys.exit(process.exitcode)


def _look(ledger: PrivacyLedger) -> None:
    _ = ledger.accounts, ledger.seals, len(ledger)


def _fill(address: str, kinds: int) -> None:
    """Makes a ledger of `kinds` of rounds, many in a transaction."""
    place = place_of(address)
    place.create(Header("d").as_text())
    handle = place.open(writable=True)
    ledger = PrivacyLedger(handle)
    run = ledger.start_run("many")
    for start in range(0, kinds, KINDS_OF_A_COMMIT):
        with handle.transaction() as database:
            for kind in range(start, min(kinds, start + KINDS_OF_A_COMMIT)):
                query = GaussianSum("gradients", 1.0, 4.0 + 1e-5 * kind)
                body = text_from_round(Round(PoissonSampling(0.001), (query,)))
                rounds = log.Rounds(body, run.number)
                log.append_record(database, rounds, ROUNDS_OF_A_KIND)
    ledger.close()


def _timed(name: str, act: Callable[[], Any]) -> Any:
    start, start_cpu = time.perf_counter(), time.process_time()
    result = act()
    seconds = time.perf_counter() - start
    cpu = time.process_time() - start_cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"| {name} | {seconds:.2f} | {cpu:.2f} | {peak:.0f} |", flush=True)
    return result


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


_PARTS = {
    "commits": _commits,
    "rounds": _rounds,
    "size": _size,
    "accountants": _accountants,
    "commands": _commands,
    "runs": _runs,
}


if __name__ == "__main__":
    main()
