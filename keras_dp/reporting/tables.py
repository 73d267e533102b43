"""Writes runs, accounts, seals, audits and rounds as lines of text."""

from collections.abc import Iterator, Sequence

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.auditing.verdicts import Judgement
from keras_dp.ledger import CountedRound, RunRecord, SealRecord
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
_BAR = 20
_NAME = 30


def run_lines(costs: Sequence[RunCost]) -> Iterator[str]:
    """Yields the titles, lines for each run, and explanations of states."""
    yield (
        f"{'#':>5}  {'run':<{_NAME}}  {'state':<8} {'rounds':>13} "
        f"{'alone':>8} {'so far':>8}"
    )
    for cost in costs:
        run = cost.run
        rounds = f"{len(run):,}"
        if cost.planned is not None and cost.planned != len(run):
            rounds += f" of {cost.planned:,}"
        yield (
            f"{run.number:>5}  {shortened(cost.name, _NAME):<{_NAME}}  "
            f"{cost.state:<8} {rounds:>13} {shown_epsilon(cost.epsilon):>8} "
            f"{shown_epsilon(cost.total_epsilon):>8}"
        )
        if run.start is not None:
            yield from wrapped(author_of(run), " " * 7, " " * 9)
    for phrase in states_in_words(costs):
        yield from wrapped(f"({phrase})", "  ")


def author_of(run: RunRecord) -> str:
    """Returns the purpose, author, time and description of a run."""
    if run.start is None:
        return ""
    start, author = run.start, run.start.author
    text = (
        f"{start.purpose} by {on_one_line(author.user) or 'somebody'}@"
        f"{on_one_line(author.host)}, {moment(run.started)} UTC, "
        f"{on_one_line(author.program)}"
    )
    if start.account is not None:
        text += f", account {on_one_line(start.account)}"
    if start.description:
        text += f": {on_one_line(start.description)}"
    return text


def account_lines(states: Sequence[AccountState]) -> Iterator[str]:
    """Yields the promise of each account, and a bar of the spent part."""
    for state in states:
        budget = state.budget
        text = (
            f"{on_one_line(state.name)}: {budget.kind}, epsilon <= "
            f"{budget.epsilon:g} at delta = {budget.delta:g}, "
            f"{budget.neighbours.replace('_', ' ')}"
        )
        if state.record.account.parent is not None:
            text += f", a share of {on_one_line(state.record.account.parent)}"
        yield from wrapped(text, "  ", "      ")
        filled = round(_BAR * min(1.0, state.share))
        bar = "#" * filled + "." * (_BAR - filled)
        yield from wrapped(
            f"[{bar}] {state.spent}",
            "    ",
            "      ",
        )


def seal_lines(seals: Sequence[SealRecord]) -> Iterator[str]:
    """Yields a line or two for each seal."""
    for seal in seals:
        note = f": {on_one_line(seal.note)}" if seal.note else ""
        yield from wrapped(
            f"row {seal.number}, {moment(seal.time)} UTC, hash "
            f"{seal.hash[:16]}...{note}",
            "  ",
            "      ",
        )


def audit_lines(audits: Sequence[Judgement]) -> Iterator[str]:
    """Yields lines for each audit, with its assumptions."""
    for audit in audits:
        verdict = audit.record.verdict
        yield from wrapped(
            f"{on_one_line(audit.sentence)} ({on_one_line(verdict.statistic)})",
            "  ",
            "      ",
        )
        for assumption in verdict.assumptions:
            yield from wrapped(
                f"if {on_one_line(assumption)}", "      - ", "        "
            )


def round_lines(rounds: Sequence[CountedRound]) -> Iterator[str]:
    """Yields lines for each kind of round, with its releases.

    If there are many kinds, it yields the first ones and the last one.
    """
    shown = tuple(rounds)
    if len(shown) > _MOST_ROUNDS:
        shown = (*shown[: _MOST_ROUNDS - 1], shown[-1])
    for index, (round_, count) in enumerate(shown):
        if len(shown) < len(rounds) and index == len(shown) - 1:
            left_out = rounds[len(shown) - 1 : -1]
            rest = counted(sum(count for _, count in left_out), "round")
            yield (
                f"  {rest} of {counted(len(left_out), 'other kind')}, which "
                "--json shows"
            )
        yield f"  {count:,} x {sampled(round_.sampling)}"
        for query in round_.queries:
            yield from wrapped(described(query), " " * 6, " " * 10)
