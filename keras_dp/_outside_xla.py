"""Whether it is certain that XLA does not compile what is traced now.

TensorFlow does not tell a function that is traced who compiles it. XLA lacks
some operations, and cannot call Python.
"""

import contextlib
import contextvars
from collections.abc import Iterator

_is_certain: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "outside_xla", default=False
)


@contextlib.contextmanager
def outside_xla(certainly: bool) -> Iterator[None]:
    """Says whether it is certain that XLA does not compile what is inside."""
    token = _is_certain.set(certainly)
    try:
        yield
    finally:
        _is_certain.reset(token)


def is_certain() -> bool:
    """Whether it is certain here."""
    return _is_certain.get()
