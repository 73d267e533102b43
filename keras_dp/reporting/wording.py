"""Writes numbers, times and names in words, for documents."""

import decimal
import textwrap
import time

# The width of a terminal, in characters.
WIDTH = 79

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

    Args:
        share: The probability. Outside of [0, 1], the nearer end counts.

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
    """Returns the date and the time, in UTC.

    Args:
        seconds: The seconds since 1970 (UTC).

    >>> moment(1_700_000_000), moment(10**18)
    ('2023-11-14 22:13', 'a time of no calendar,')
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # A forged row.
        return "a time of no calendar,"


def shortened(text: str, width: int) -> str:
    """Returns a text on one line of at most `width` characters.

    >>> shortened("a name that is long", 12)
    'a nam...long'
    """
    text = on_one_line(text)
    if len(text) <= width:
        return text
    end = (width - 3) // 2
    return f"{text[: width - 3 - end]}...{text[len(text) - end :]}"


def wrapped(text: str, first: str = "", later: str = "    ") -> list[str]:
    """Returns a sentence as lines that fit a terminal.

    Args:
        text: The sentence.
        first: The beginning of the first line.
        later: The beginning of the other lines.
    """
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_on_hyphens=False,
    )
