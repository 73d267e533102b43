"""`keras-dp diff`: what one ledger holds that another does not."""

import argparse
from collections.abc import Iterator

from keras_dp.ledger import CountedRound, Header, PrivacyLedger, Round
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.difference import Difference, difference
from keras_dp.reporting.wording import (
    counted,
    described,
    on_one_line,
    sampled,
)

HELP = "print what ledger B holds that ledger A does not"
# Adaptive clipping makes every round of a run another kind.
_MOST_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser, "a")
    arguments.add_file(parser, "b")


def answer(options: argparse.Namespace) -> str:
    """Returns whether B continues A, and the rounds that differ by kind."""
    one, first = _read(options.a)
    two, second = _read(options.b)
    found = difference(first, second)
    lines = [
        *_headers(one, two),
        _verdict(found),
        *_listed("B", found.only_in_second),
        *_listed("A", found.only_in_first),
    ]
    return "\n".join(lines)


def _read(path: str) -> tuple[Header, tuple[CountedRound, ...]]:
    with PrivacyLedger.open(path, mode="r") as ledger:
        return ledger.header, ledger.rounds


def _headers(one: Header, two: Header) -> Iterator[str]:
    for name, what in (
        ("dataset", "data set"),
        ("unit", "privacy unit"),
        ("rows_per_unit", "rows of a unit"),
        ("generator", "generator of noise"),
    ):
        a, b = str(getattr(one, name)), str(getattr(two, name))
        if a != b:
            yield (
                f"Different {what}: A has {on_one_line(a)}, "
                f"B has {on_one_line(b)}"
            )


def _verdict(found: Difference) -> str:
    common = counted(found.common, "round")
    more = found.second_total - found.common
    less = found.first_total - found.common
    if not more and not less:
        return f"A and B hold the same {common}."
    if not less:
        return f"B continues A: it begins with its {common}; {more:,} follow."
    if not more:
        return f"A continues B: it begins with its {common}; {less:,} follow."
    if not (found.only_in_first or found.only_in_second):
        return f"B holds the rounds of A in another order, after {common}."
    return (
        f"B does not continue A: both begin with the same {common}; then A "
        f"has {less:,} and B {more:,}."
    )


def _listed(name: str, kinds: tuple[tuple[Round, int], ...]) -> Iterator[str]:
    if not kinds:
        return
    total = sum(count for _, count in kinds)
    yield f"Only in {name}: {counted(total, 'round')}"
    for each, count in kinds[:_MOST_SHOWN]:
        seeded = ", with a chosen seed" if each.seeded else ""
        yield f"  {count:,} x {sampled(each.sampling)}{seeded}"
        for query in each.queries:
            yield f"      {described(query)}"
    if len(kinds) > _MOST_SHOWN:
        left = kinds[_MOST_SHOWN:]
        rounds = sum(count for _, count in left)
        kinds_left = counted(len(left), "other kind")
        yield f"  {counted(rounds, 'round')} of {kinds_left}"
