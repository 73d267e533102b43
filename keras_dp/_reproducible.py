"""Chosen seeds repeat noise only where a test asks for it.

A seed that is chosen by a caller is chosen again sooner or later: a script runs
twice, or two trainings copy one line. The same noise on two sums cancels in
their difference, which bares what a record adds to it; no ledger that holds
one of the runs can see this. Therefore a chosen seed does nothing by default:
keys come from the operating system. Inside `reproducible()` a chosen seed alone
determines the key, for data that is not private.
"""

import contextlib
import contextvars
from collections.abc import Iterator

_is_on: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "reproducible", default=False
)


@contextlib.contextmanager
def reproducible() -> Iterator[None]:
    """Makes chosen seeds draw the same noise each time, for tests.

    Two runs with one seed then have the same noise: together they are not
    private, whatever their ledgers say. Rounds with a chosen seed are marked
    `seeded` in the ledger. An optimizer that is built inside, or a sampler that
    is made inside, keeps its seed afterwards.

    >>> with reproducible():
    ...     is_on()
    True
    """
    token = _is_on.set(True)
    try:
        yield
    finally:
        _is_on.reset(token)


def is_on() -> bool:
    """Returns whether the caller is inside of `reproducible()`."""
    return _is_on.get()
