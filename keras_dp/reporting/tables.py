"""Tables of runs, accounts, seals and rounds, for text and pages."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.ledger import (
    CountedRound,
    CyclicPoissonSampling,
    DisjointBatches,
    Round,
    RunRecord,
    Stated,
)
from keras_dp.ledger.rows.statements import Seal
from keras_dp.reporting.account_state import AccountState
from keras_dp.reporting.run_costs import RunCost, states_in_words
from keras_dp.reporting.wording import (
    counted,
    described,
    moment,
    on_one_line,
    sampled,
    shortened,
    wrapped,
)

# With adaptive clipping, every round of a run is of another kind.
_MOST_ROUNDS = 10
_IN_PASSES = CyclicPoissonSampling | DisjointBatches
_BAR = 20
_NAME = 30


class Table(NamedTuple):
    """Rows under titles, with sentences below.

    Attributes:
        titles: The title of each column.
        rows: The text of each cell. Lines of the last cells are divided by
            line breaks; all other characters can be printed.
        short: The number of columns that stand beside each other in a
            terminal. The cells of the others follow, each on its own lines.
        numbers: The indices of columns that are aligned to the right.
        notes: Sentences for below the table.
    """

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    short: int = 1
    numbers: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yields the table as lines that fit a terminal."""
        every = (self.titles, *self.rows)
        widths = [max(map(len, column)) for column in zip(*every, strict=True)]
        for row in every:
            cells = [
                cell.rjust(width)
                if index in self.numbers
                else cell.ljust(width)
                for index, (cell, width) in enumerate(
                    zip(row[: self.short], widths, strict=False)
                )
            ]
            if self.short > 1:
                yield f"  {'  '.join(cells).rstrip()}"
            elif row is not self.titles:
                yield from wrapped(row[0], "  ", "      ")
            if row is not self.titles:
                for cell in row[self.short :]:
                    for line in cell.split("\n"):
                        yield from wrapped(line, " " * 6, " " * 10)
        for note in self.notes:
            yield from wrapped(note, "  ")


def run_table(costs: Sequence[RunCost]) -> Table:
    """Returns the runs with their epsilons, and explanations of states."""
    rows = []
    for cost in costs:
        rounds = f"{len(cost.run):,}"
        if cost.planned is not None and cost.planned != len(cost.run):
            rounds += f" of {cost.planned:,}"
        rows.append(
            (
                str(cost.run.number),
                shortened(cost.name, _NAME),
                cost.state,
                rounds,
                shown_epsilon(cost.epsilon),
                shown_epsilon(cost.total_epsilon),
                author_of(cost.run),
            )
        )
    return Table(
        ("#", "run", "state", "rounds", "alone", "so far", "by"),
        tuple(rows),
        short=6,
        numbers=(0, 3, 4, 5),
        notes=tuple(f"({phrase})" for phrase in states_in_words(costs)),
    )


def author_of(run: RunRecord) -> str:
    """Returns the purpose, author, time and description of a run."""
    if run.start is None:
        return ""
    start, author = run.start, run.start.author
    text = (
        f"{start.purpose} by {author.user or 'somebody'}@{author.host}, "
        f"{moment(run.started)} UTC, {author.program}"
    )
    if start.account is not None:
        text += f", account {start.account}"
    if start.description:
        text += f": {start.description}"
    return on_one_line(text)


def account_table(states: Sequence[AccountState]) -> Table:
    """Returns the promise of each account, and the part that is spent."""
    rows = []
    for state in states:
        budget, parent = state.budget, state.record.account.parent
        promise = (
            f"{state.name}: {budget.kind}, {state.promise}, "
            f"{budget.neighbours.replace('_', ' ')}"
        )
        if parent is not None:
            promise += f", a share of {parent}"
        filled = round(_BAR * min(1.0, state.share))
        bar = "#" * filled + "." * (_BAR - filled)
        rows.append(
            (
                on_one_line(promise),
                f"[{bar}] {state.spent}",
                f"Theorem: {budget.theorem}",
            )
        )
    return Table(("account", "spent", "why it holds"), tuple(rows))


def seal_table(seals: Sequence[Stated[Seal]]) -> Table:
    """Returns the seals."""
    return Table(
        ("row", "when (UTC)", "hash", "note"),
        tuple(
            (
                f"{seal.number:,}",
                moment(seal.time),
                seal.hash,
                on_one_line(seal.statement.note),
            )
            for seal in seals
        ),
        short=2,
        numbers=(0,),
    )


def round_table(rounds: Sequence[CountedRound]) -> Table:
    """Returns the kinds of rounds, with their releases.

    Rounds that differ in their pass alone are of one kind. If there are many
    kinds, it has the first ones and the last one.
    """
    kinds = _by_kind(rounds)
    rows = [
        (
            f"{count:,} x {sampled(round_.sampling)}"
            + f" [in {passes:,} passes]" * (passes > 1),
            "\n".join(described(query) for query in round_.queries),
        )
        for round_, count, passes in (
            (*kinds[: _MOST_ROUNDS - 1], kinds[-1])
            if len(kinds) > _MOST_ROUNDS
            else kinds
        )
    ]
    left_out = kinds[_MOST_ROUNDS - 1 : -1]
    if len(kinds) > _MOST_ROUNDS:
        rest = counted(sum(count for _, count, _ in left_out), "round")
        others = counted(len(left_out), "other kind")
        rows.insert(-1, (f"{rest} of {others}, which --json shows", ""))
    return Table(("sample", "released over it"), tuple(rows))


def _by_kind(rounds: Sequence[CountedRound]) -> list[tuple[Round, int, int]]:
    """Returns kinds of rounds: the first one, its count and its passes.

    Rounds that differ in their pass alone are of one kind if they follow each
    other. Rounds without a pass have none.
    """
    found: list[tuple[Round, int, int]] = []
    passes: set[str] = set()
    for round_, count in rounds:
        before = found[-1] if found else None
        if not isinstance(round_.sampling, _IN_PASSES):
            found.append((round_, count, 0))
        elif before is not None and _pass_left_out(before[0]) == _pass_left_out(
            round_
        ):
            passes.add(round_.sampling.epoch_id)
            found[-1] = before[0], before[1] + count, len(passes)
        else:
            passes = {round_.sampling.epoch_id}
            found.append((round_, count, 1))
    return found


def _pass_left_out(round_: Round) -> Round | None:
    """Returns a round without the number of its pass; `None` without passes."""
    sampling = round_.sampling
    if not isinstance(sampling, _IN_PASSES):
        return None
    name = "any"
    if isinstance(sampling, CyclicPoissonSampling):
        name = f"{sampling.draw_id}-0"
    one = dataclasses.replace(sampling, epoch_id=name)
    return dataclasses.replace(round_, sampling=one)
