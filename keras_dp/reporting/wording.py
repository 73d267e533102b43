"""Writes numbers, times and names in words, and counts kinds of rounds."""

import decimal
import time
from collections.abc import Callable, Iterable, Iterator

from keras_dp.ledger import (
    ProvenGaussianSum,
    Round,
    RunRecord,
    Selection,
)

# Binary fractions of decimal numbers are a little larger, or a little smaller.
_TOLERANCE = decimal.Decimal("1e-12")


def on_one_line(text: str) -> str:
    """Returns a text with its control characters escaped.

    So no name can forge a line of a report, or move the cursor of a terminal.
    """
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(number: int, noun: str) -> str:
    """Returns a number with a noun, which gets an `s` unless the number is 1.

    >>> counted(1, "round"), counted(1200, "round")
    ('1 round', '1,200 rounds')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def percent(share: float) -> str:
    """Returns a probability in percent, rounded up.

    It has one decimal. A probability near 0 or 1 has two significant digits of
    its distance to 0 or 1. A relative excess of 1e-12 is not rounded up.
    Outside of [0, 1], the nearer end counts.

    >>> percent(0.58312), percent(3.21e-7), percent(0.99991), percent(0.0)
    ('58.4 %', '0.000033 %', '99.991 %', '0 %')
    >>> percent(0.01), percent(0.5 + 1e-16)
    ('1 %', '50 %')
    """
    exact = decimal.Decimal(min(max(share, 0.0), 1.0)) * 100
    missing = min(exact, 100 - exact)
    if not missing:
        return f"{exact.normalize():f} %"
    digits = decimal.Decimal(1).scaleb(min(-1, missing.adjusted() - 1))
    rounded = (exact * (1 - _TOLERANCE)).quantize(
        digits, rounding=decimal.ROUND_CEILING
    )
    return f"{rounded.normalize():f} %"


def at_most(bound: float, digits: int = 6) -> str:
    """Returns an upper bound > 0 with few digits, rounded up.

    A relative excess of 1e-12 is not rounded up, as in `percent`.

    >>> at_most(0.1), at_most(2.0000001), at_most(1.04e-6, 2), at_most(3e-5)
    ('0.1', '2.00001', '1.1e-06', '3e-05')
    """
    exact = decimal.Decimal(bound) * (1 - _TOLERANCE)
    last = decimal.Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    rounded = exact.quantize(last, rounding=decimal.ROUND_CEILING)
    return f"{float(rounded):.{digits}g}"


def moment(seconds: int) -> str:
    """Returns the date and the time of some seconds since 1970, in UTC.

    >>> moment(1_700_000_000), moment(10**18)
    ('2023-11-14 22:13', 'a time of no calendar,')
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # A forged row.
        return "a time of no calendar,"


def with_trials(
    rounds: Iterable[tuple[Round, int]],
) -> Iterator[tuple[Round, int]]:
    """Yields rounds, with those of each plan of a trial for a search."""
    for each, count in rounds:
        (query, *_) = each.queries
        if isinstance(query, Selection):
            for trial, times in with_trials(query.all_rounds):
                yield trial, count * times
        else:
            yield each, count


def count_of(
    rounds: Iterable[tuple[Round, int]], holds: Callable[[Round], bool]
) -> int:
    """Returns the number of rounds for which a condition holds."""
    return sum(count for each, count in rounds if holds(each))


def rounds_of_whole_units(rounds: Iterable[tuple[Round, int]]) -> int:
    """Returns the number of rounds that drew units with all their rows."""
    return count_of(
        with_trials(rounds), lambda each: each.sampling.draws_whole_units
    )


def proven_rounds(rounds: Iterable[tuple[Round, int]]) -> int:
    """Returns the number of rounds whose bounds hold in floating point.

    A search counts as one round, which is proven if all of its trials are.
    """

    def proven(each: Round) -> bool:
        return all(
            isinstance(query, ProvenGaussianSum)
            or (
                isinstance(query, Selection)
                and all(proven(trial) for trial, _ in query.all_rounds)
            )
            for query in each.queries
        )

    return count_of(rounds, proven)


def finite_precision(rounds: int, proven: int) -> str:
    """Returns a sentence on what floating point does to the guarantee.

    The bounds of `proven` of the rounds hold in floating point.

    Source: theorem 4 of `docs/finite_precision.md`, for the number that each
    round adds to delta if it answers with at most 2^40 coordinates.

    >>> finite_precision(1000, 1000)
    'Finite precision: floating-point rounding is included by proof; it adds...
    >>> finite_precision(1, 0)
    'Finite precision: assumed for 1 round, that float rounding is small.'
    """
    if proven == rounds:
        return (
            "Finite precision: floating-point rounding is included by proof; "
            "it adds (1 + exp(epsilon)) 2^-57 to delta for each round."
        )
    which = counted(rounds - proven, "round")
    if proven:
        which += f" of {rounds:,}"
    return (
        f"Finite precision: assumed for {which}, that float rounding is small."
    )


def libraries_of(runs: Iterable[RunRecord]) -> str:
    """Returns the other libraries in which rounds of some runs ran."""
    found = {
        run.start.library for run in runs if run.start is not None and len(run)
    }
    return ", ".join(sorted(found - {""}))


def not_checked(rounds: str, libraries: str) -> str:
    """Returns what nobody checked of rounds that ran in other libraries."""
    return (
        f"{rounds} ran in {libraries}. The ledger holds what it "
        "was set to do. That it drew samples, clipped and added noise so was "
        "declared, and not checked. Epsilon takes its noise for exact: the low "
        "bits of answers in floating point can tell more."
    )
