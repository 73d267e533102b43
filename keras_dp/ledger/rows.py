"""The rows of a ledger, and what they amount to.

A row is one of

* `record`: a round happened `count` times;
* `reserve`: a round is about to happen up to `count` times, and counts as if
  it had;
* `settle`: of the reservation in row `target`, `count` rounds did happen.
"""

from typing import NamedTuple

LARGEST_COUNT = 2**63 - 1


class Row(NamedTuple):
    """One row of the log, its body in words."""

    seq: int
    kind: str
    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.
    target: int | None
    hash: str


class CountedBody(NamedTuple):
    """A round, how often it counts, and how many of these are unsettled."""

    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.
    unsettled: int


def counted(all_rows: list[Row]) -> list[CountedBody]:
    """Returns what the rows amount to, each where it was recorded."""
    used = {row.target: row.count for row in all_rows if row.kind == "settle"}
    amounts = []
    for row in all_rows:
        if row.kind == "record":
            amounts.append(CountedBody(row.body, row.count, 0))
        elif row.kind == "reserve":
            count = used.get(row.seq, row.count)
            unsettled = 0 if row.seq in used else count
            amounts.append(CountedBody(row.body, count, unsettled))
    return [amount for amount in amounts if amount.count]
