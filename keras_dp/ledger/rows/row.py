"""The rows of a ledger, and the rounds that they add up to.

A row is about rounds, or it is a statement (see `statements.py`). There are
three kinds of rows about rounds:

* `record`: a round ran `count` times;
* `reserve`: a round is about to run, at most `count` times. All of these count
  as if they had run, until the row is settled;
* `settle`: only `count` of the rounds in the reservation in row `target` ran.
"""

from typing import NamedTuple

LARGEST_COUNT = 2**63 - 1

KINDS_OF_ROUNDS = frozenset({"record", "reserve", "settle"})


class Row(NamedTuple):
    """One row of the log.

    Attributes:
        seq: The number of the row, from 1.
        kind: `record`, `reserve`, `settle`, or the kind of a statement.
        run: The number of the row that started the run to which this row
            belongs; `None` if it belongs to no run, or starts one.
        body: A round or a statement, as canonical JSON.
        count: The number of rounds; 0 in a statement.
        target: The number of the reservation that a `settle` row settles;
            `None` in every other row.
        charge: The cost of each round to an account; see `Charge`.
        time: When the row was written, in whole seconds since 1970 (UTC).
        hash: The hash over the fields above and the hash of the row before.
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
    """A round as text, how often it counts, and how much of that is reserved.

    `unsettled` of the `count` rounds are reserved and not settled.
    """

    body: str
    count: int  # type: ignore[assignment]  # Hides tuple.count, unneeded.
    unsettled: int
    run: int | None
    charge: str | None


def counted(all_rows: list[Row]) -> list[CountedBody]:
    """Returns the rounds that the rows add up to, in the order of the rows."""
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
                CountedBody(row.body, count, unsettled, row.run, row.charge)
            )
    return amounts
