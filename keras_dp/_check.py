"""Validators of arguments, so that every message has one form."""

import contextlib
import difflib
import inspect
import math
import numbers
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

# A scheme and a slash, or a user with a password, or a password by its name.
_LIKE_URL = re.compile(
    r"\s*[a-z][a-z0-9+.-]+:/|.*[^/\\]:[^/\\]*@|.*password\s*=", re.I | re.S
)
_NESTS = (list, tuple, set, dict)
# A name is another one that was meant if it shares this part of its words, or
# so many more of its letters.
_LEAST_LIKENESS, _UNLIKE = 0.42, 0.25
# The most characters of a text, and entries of a list, that a message shows.
_LONGEST_SHOWN, _MOST_SHOWN = 200, 8


def looks_like_url(value: object) -> bool:
    """Returns whether a text or a path may be meant as a URL.

    Such a text may hold a password, and is no good name for a file.
    """
    if isinstance(value, bytes | str | os.PathLike):
        return _LIKE_URL.match(os.fsdecode(value)) is not None
    return False


def shown(value: object) -> str:
    """Returns a value as messages show it: a short line, no password, no data.

    Arrays, tensors and tables are shown as kind, shape and dtype, and long
    lists as their length.

    >>> shown(10), len(shown("x" * 10**6)) < 250
    ('10', True)
    >>> shown("mysql://me:secret@host/clinic")
    'what may be a URL, which is not shown: it may hold a password'
    >>> import numpy
    >>> shown((numpy.zeros([3, 2]), "text"))
    "tuple of (ndarray of shape (3, 2) and dtype float64, 'text')"
    """
    if looks_like_url(value):
        return "what may be a URL, which is not shown: it may hold a password"
    kind = type(value).__name__
    if _is_data(value):
        of = f"shape {getattr(value, 'shape', None)}"
        dtype = getattr(value, "dtype", None)
        return f"{kind} of {of}" + (f" and dtype {dtype}" if dtype else "")
    try:
        if isinstance(value, _NESTS):
            if len(value) > _MOST_SHOWN:
                return f"{kind} of {len(value):,} entries"
            entries = value.values() if isinstance(value, dict) else value
            if any(
                _is_data(each) or isinstance(each, _NESTS) for each in entries
            ):
                return shortened(
                    f"{kind} of ({', '.join(map(shown, entries))})"
                )
        return shortened(repr(value).replace("\n", " "))
    except (RecursionError, ValueError):  # Numbers have a longest text, too.
        return f"a {kind} that is too large to show"


def shortened(text: str, most: int = _LONGEST_SHOWN) -> str:
    """Returns a text, or the two ends of one with more than `most` characters.

    >>> shortened("abcdefgh", 4)
    'ab ... gh (8 characters)'
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... {text[-half:]} ({len(text):,} characters)"


def _is_data(value: object) -> bool:
    """Returns whether a value has a shape, as arrays and tables have."""
    if isinstance(value, type):
        return False
    shape = getattr(value, "shape", None)
    return shape is not None and str(shape) != "()"


def _error(
    kind: type[Exception], name: str, value: object, rule: str, remedy: str = ""
) -> Exception:
    """Returns the error for an argument that breaks a rule."""
    received = f"Received: {name}={shown(value)}."
    return kind(f"`{name}` must {rule}. {received}{remedy}")


def finite_non_negative(**named: float) -> None:
    """Raises unless every value is a number in `[0, inf)`."""
    for name, value in named.items():
        _number(name, value)
        if not 0 <= value < math.inf:  # Also false for NaN.
            raise _error(ValueError, name, value, "be finite and >= 0")


def finite_positive(**named: float) -> None:
    """Raises unless every value is a number in `(0, inf)`."""
    for name, value in named.items():
        _number(name, value)
        if not 0 < value < math.inf:  # Also false for NaN.
            raise _error(ValueError, name, value, "be finite and > 0")


def probability(**named: float) -> None:
    """Raises unless every value is a number in `(0, 1]`."""
    share("(0, 1]", "", **named)


def share(interval: str, remedy: str = "", **named: float) -> None:
    """Raises unless every value is a number in an interval from 0 to 1.

    >>> share("(0, 1)", " Choose one below 1e-4.", delta=1)
    Traceback (most recent call last):
    ValueError: `delta` must be in (0, 1). Received: delta=1. Choose ...
    """
    for name, value in named.items():
        _number(name, value)
        is_end = value in (0, 1) and (
            interval.startswith("(") if value == 0 else interval.endswith(")")
        )
        if not 0 <= value <= 1 or is_end:  # Also refuses NaN.
            raise _error(ValueError, name, value, f"be in {interval}", remedy)


def within(
    low: float, high: float, /, *, or_zero: bool = False, **named: float
) -> None:
    """Raises unless every value is a number in `[low, high]`, or 0 if allowed.

    >>> within(1, 9, or_zero=True, scale=0.5)
    Traceback (most recent call last):
    ValueError: `scale` must be 0, or in [1, 9]. Received: scale=0.5.
    """
    for name, value in named.items():
        _number(name, value)
        # NaN is neither.
        if not low <= value <= high and not (or_zero and value == 0):
            rule = f"be {'0, or ' * or_zero}in [{low:g}, {high:g}]"
            raise _error(ValueError, name, value, rule)


def integer_at_least(minimum: int, remedy: str = "", /, **named: int) -> None:
    """Raises unless every value is an integer >= `minimum` that fits int64."""
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, numbers.Integral):
            raise _error(TypeError, name, value, "be an integer", remedy)
        if not minimum <= value < 2**63:
            raise _error(
                ValueError,
                name,
                value,
                f"be an integer >= {minimum} that fits 64 bits",
                remedy,
            )


def non_empty_text(**named: str) -> None:
    """Raises unless every value is a string with a visible character."""
    for name, value in named.items():
        if not isinstance(value, str):
            raise _error(TypeError, name, value, "be a string")
        if not value.strip():
            raise _error(ValueError, name, value, "not be empty")


def one_of(allowed: Collection[str], **named: str) -> None:
    """Refuses a text that is not one of those allowed."""
    for name, value in named.items():
        if not isinstance(value, str) or value not in allowed:
            raise _error(
                ValueError, name, value, f"be one of {sorted(allowed)!r}"
            )


def boolean(**named: bool) -> None:
    """Raises unless every value is `True` or `False`."""
    for name, value in named.items():
        if not isinstance(value, bool):
            raise _error(TypeError, name, value, "be True or False")


def verbosity(verbose: Any) -> None:
    """Raises unless `verbose` is one of what Keras knows."""
    if verbose not in ("auto", 0, 1, 2):
        raise _error(ValueError, "verbose", verbose, 'be "auto", 0, 1 or 2')


def kind(expected: type[Any], **named: Any) -> None:
    """Raises unless every value is an instance of `expected`."""
    for name, value in named.items():
        if not isinstance(value, expected):
            raise _error(TypeError, name, value, f"be a {expected.__name__}")


def no_subclass(made: type[Any], remedy: str) -> None:
    """Raises for a class that is made outside of the package."""
    if not made.__module__.startswith("keras_dp."):
        raise TypeError(
            f"{made.__base__.__name__} must not have a subclass. "  # type: ignore[union-attr]
            f"Received: class {made.__name__}. {remedy}"
        )


def arguments_of(
    *functions: Callable[..., Any],
    given: Mapping[str, Any],
    elsewhere: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> None:
    """Raises unless every name is that of an argument of a function.

    The error names the first function, and the nearest name: one that the
    functions have, or one of `elsewhere`, with its remedy.
    """
    known = {name: "" for each in functions for name in _names_of(each)}
    remedies = dict(known)
    for remedy, function in elsewhere.items():
        for name in _names_of(function):
            remedies.setdefault(name, f" {remedy}")
    for name, value in given.items():
        if name in known:
            continue
        close = name if name in remedies else _nearest(name, remedies)
        remedy = remedies.get(close, "")
        if close not in ("", name):
            remedy = f" Did you mean `{close}`?{remedy}"
        rule = f"be an argument of {functions[0].__name__}"
        raise _error(TypeError, name, value, rule, remedy)


def _names_of(function: Callable[..., Any]) -> list[str]:
    """Returns the arguments that can be given by name."""
    found = inspect.signature(function).parameters
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return [name for name, each in found.items() if each.kind not in several]


def _nearest(name: str, known: Iterable[str]) -> str:
    """Returns the name that was meant; empty if none is like it.

    >>> _nearest("target_delta", ["target_epsilon", "delta"])
    'delta'
    >>> _nearest("epoch", ["epochs"]), _nearest("xyz", ["epochs"])
    ('epochs', '')
    >>> _nearest("clip", ["loss", "l2_norm_clip"])
    'l2_norm_clip'
    >>> _nearest("lr", ["loss", "learning_rate"])
    'learning_rate'
    >>> _nearest("eps", ["epochs", "target_epsilon"])
    'target_epsilon'
    >>> _nearest("val_data", ["data", "validation_data"])
    'validation_data'
    """
    words = set(name.split("_"))

    def likeness(other: str) -> float:
        others = set(other.split("_"))
        if name == "".join(word[0] for word in other.split("_")):
            return 1.0
        begun = sum(
            word in others
            or (len(word) > 2 and any(each.startswith(word) for each in others))
            for word in words
        )
        shared = begun / (len(words) + len(others) - begun)
        if words <= others:  # A part of a name stands for all of it.
            shared = max(shared, 0.5)
        letters = difflib.SequenceMatcher(None, name, other).ratio()
        return max(shared, letters - _UNLIKE)

    best = max(known, key=likeness, default="")
    return best if best and likeness(best) > _LEAST_LIKENESS else ""


@contextlib.contextmanager
def needing(package: str, purpose: str, extra: str = "") -> Iterator[None]:
    """Names the extra of a package that is imported inside, and is not there.

    >>> with needing("a_package", "for signatures", "signing"):
    ...     import a_package
    Traceback (most recent call last):
    ImportError: a_package must be installed for signatures: pip install ...
    """
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"{package} must be installed {purpose}: "
            f'pip install "keras_dp[{extra or package}]"'
        ) from error


def number(**named: float) -> None:
    """Raises unless every value is a number in the range of floats."""
    for name, value in named.items():
        _number(name, value)


def _number(name: str, value: float) -> None:
    if type(value) is float:  # Sparing the question of an abstract class.
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _error(TypeError, name, value, "be a number")
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        raise _error(ValueError, name, value, "be in the range of floats")
