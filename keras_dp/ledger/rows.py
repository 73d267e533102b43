"""The rows of a ledger, and what they amount to.

A row tells of rounds, and is one of

* `record`: a round happened `count` times;
* `reserve`: a round is about to happen up to `count` times, and counts as if
  it had;
* `settle`: of the reservation in row `target`, `count` rounds did happen;

or it is a statement, whose kinds `ledger.statements` has.
"""

from typing import NamedTuple

LARGEST_COUNT = 2**63 - 1

KINDS_OF_ROUNDS = frozenset({"record", "reserve", "settle"})


class Row(NamedTuple):
    """One row of the log, its body in words.

    Attributes:
        seq: Its number, from 1.
        kind: One of those above, or of a statement.
        run: The row that started the run to which it belongs, if any.
        body: Canonical JSON: a round or a statement.
        count: Number of rounds; 0 in a statement.
        target: The reservation that a `settle` row settles.
        charge: The cost of each round to an account; see `ledger.charges`.
        time: When it was written, in whole seconds since 1970 (UTC).
        hash: The hash of all this and of the row before.
    """

    seq: int
    kind: str
    run: int | None
    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.
    target: int | None
    charge: str | None
    time: int
    hash: str


class CountedBody(NamedTuple):
    """A round, how often it counts, and how many of these are unsettled."""

    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.
    unsettled: int
    run: int | None
    charge: str | None
    time: int


def counted(all_rows: list[Row]) -> list[CountedBody]:
    """Returns what the rows amount to, each where it was recorded."""
    used = {row.target: row.count for row in all_rows if row.kind == "settle"}
    amounts = []
    for row in all_rows:
        count, unsettled = row.count, 0
        if row.kind == "reserve":
            count = used.get(row.seq, row.count)
            unsettled = 0 if row.seq in used else count
        elif row.kind != "record":
            continue
        if count:
            amounts.append(
                CountedBody(
                    row.body, count, unsettled, row.run, row.charge, row.time
                )
            )
    return amounts
