"""The results as a Markdown table and as JSON."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from peers.comparison import (
    KERAS,
    OURS,
    Result,
    Way,
    best_peer,
    ratios,
)

HEADER = (
    "| workload | training | mode | ms per step | over Keras "
    "| ours over it | peak MB | over Keras |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def _of(results: Sequence[Result], way: Way) -> Result | None:
    for result in results:
        if result.way == way and not result.error:
            return result
    return None


def _ratio(values: Sequence[float]) -> str:
    middle = f"{statistics.median(values):.2f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):.2f}-{max(values):.2f})"


def rows(workload: str, results: Sequence[Result]) -> list[str]:
    """Returns one row of the table per way to train."""
    keras, ours = _of(results, KERAS), _of(results, OURS)
    best = best_peer(results)
    made = []
    for result in results:
        name = f"**{result.way.name}**" if result is best else result.way.name
        start = f"| {workload} | {name} | {result.mode} |"
        if result.error:
            made.append(f"{start} {result.error} | | | | |")
            continue
        over_keras = memory = over_it = ""
        if keras is not None:
            over_keras = _ratio([statistics.median(ratios(result, keras))])
            peak = result.alone.peak_megabytes / keras.alone.peak_megabytes
            memory = f"{peak:.2f}"
        if ours is not None and result.way.private and result.way != OURS:
            over_it = _ratio(ratios(ours, result))
        alone = "" if result.turns else ", alone"
        made.append(
            f"{start} {result.milliseconds:.3g}{alone} | {over_keras} "
            f"| {over_it} | {result.alone.peak_megabytes:.0f} | {memory} |"
        )
    return made


def notes(workload: str, results: Sequence[Result]) -> list[str]:
    """Returns one line per way with modes that were not the fastest."""
    return [
        f"* {workload}, {result.way.name}: "
        + ", ".join(f"{mode}: {text}" for mode, text in result.others.items())
        for result in results
        if result.others
    ]


def as_json(workload: str, results: Sequence[Result]) -> dict[str, Any]:
    """Returns everything that was measured, for `json.dump`."""
    return {
        "workload": workload,
        "results": [dataclasses.asdict(result) for result in results],
    }
