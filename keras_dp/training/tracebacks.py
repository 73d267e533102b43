"""Mistakes of users are shown by the user's own lines, and the message."""

import functools
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import keras
import tensorflow as tf

from keras_dp import errors

_Callable = TypeVar("_Callable", bound=Callable[..., Any])
# Other errors are nobody's mistake but ours: they keep all frames.
_MISTAKES: tuple[type[Exception], ...] = (
    TypeError,
    ValueError,
    *(each for each in vars(errors).values() if isinstance(each, type)),
)
_LIBRARIES = tuple(
    f"{Path(str(module.__file__)).parent}{os.sep}"
    for module in (errors, keras, tf)
)


def concise(function: _Callable) -> _Callable:
    """Returns the function with tracebacks of the user's frames alone.

    `keras.config.disable_traceback_filtering()` shows all of them, as it does
    for Keras's own.

    Args:
        function: An entry of the package, such as `fit`.
    """

    @functools.wraps(function)
    def entered(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except _MISTAKES as error:
            if not keras.config.is_traceback_filtering_enabled():
                raise
            raise error.with_traceback(_of_user(error.__traceback__)) from (
                error.__cause__
            )

    return entered  # type: ignore[return-value]


def _of_user(frames: TracebackType | None) -> TracebackType | None:
    """Returns a traceback without the frames of the libraries."""
    kept: TracebackType | None = None
    for frame, line in reversed([*traceback.walk_tb(frames)]):
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            kept = TracebackType(kept, frame, frame.f_lasti, line)
    return kept
