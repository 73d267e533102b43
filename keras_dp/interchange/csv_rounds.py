"""Writes the rounds of a ledger as a table for spreadsheets."""

import csv
import dataclasses
from typing import Any, TextIO

from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.ledger import GaussianSum, Round

COLUMNS = (
    "first_round",
    "count",
    "sampling",
    "sampling_probability",
    "sample_size",
    "population_size",
    "epoch_id",
    "drawn_by_library",
    "seeded",
    "queries",
    "l2_norm_bound",
    "noise_stddev",
    "events",
    "unit",
    "rows_per_unit",
)
# Columns with other names than the fields of sampling events.
_COLUMN_OF = {
    "probability": "sampling_probability",
    "batch_size": "sample_size",
}
# A spreadsheet takes a text that begins with one of these for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_csv(ledger: LedgerLike, file: TextIO) -> None:
    """Writes the rounds of a ledger as CSV, with one line for each pair.

    A pair is a round and its count. A ledger counts equal rounds in a row
    together. The first line names the columns. `first_round` counts from 1, and
    `count` rounds follow one another from there. `sample_size` is the largest
    size if samples are truncated. `unit` and `rows_per_unit` repeat in every
    line what the ledger's header declares: the privacy unit, and the largest
    number of records that one unit has. `events` has all releases of a round in
    full.

    A cell is empty if a sampling has no such number. `l2_norm_bound` and
    `noise_stddev` are empty unless a round is one Gaussian sum. `unit` and
    `rows_per_unit` are empty if `ledger` has no header. Text that a spreadsheet
    would take for a formula begins with an apostrophe.

    Args:
        ledger: An object with `rounds`, such as a `PrivacyLedger`, or pairs
            (Round, count).
        file: A text file, opened with `newline=""`.

    Raises:
        TypeError: `ledger` is something else.

    >>> import sys
    >>> from keras_dp.ledger import PoissonSampling
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 1.0, 4.0),))
    >>> write_csv([(step, 10_000)], sys.stdout)
    first_round,count,sampling,sampling_probability,...
    1,10000,PoissonSampling,0.01,,,,False,False,all,1.0,4.0,...
    """
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    header = getattr(ledger, "header", None)
    common = {}
    if header is not None:
        common = {"unit": header.unit, "rows_per_unit": header.rows_per_unit}
    first = 1
    for each, count in counted_rounds(ledger):
        own = {"first_round": first, "count": count, **_cells(each)}
        cells = {**common, **own}
        writer.writerow([_safe(cells.get(name, "")) for name in COLUMNS])
        first += count


def _cells(each: Round) -> dict[str, Any]:
    """Returns the cells of a round by column, without the empty ones."""
    sampling: Any = each.sampling
    cells = {
        "sampling": type(sampling).__name__,
        "drawn_by_library": sampling.drawn_by_library,
        "seeded": each.seeded,
        "queries": "; ".join(query.name for query in each.queries),
        "events": "; ".join(map(repr, each.queries)),
        **{
            _COLUMN_OF.get(field.name, field.name): getattr(
                sampling, field.name
            )
            for field in dataclasses.fields(sampling)
        },
    }
    if len(each.queries) == 1 and isinstance(each.queries[0], GaussianSum):
        cells["l2_norm_bound"] = each.queries[0].l2_norm_bound
        cells["noise_stddev"] = each.queries[0].noise_stddev
    return cells


def _safe(cell: Any) -> Any:
    is_formula = isinstance(cell, str) and cell.startswith(_FORMULA)
    return f"'{cell}" if is_formula else cell
