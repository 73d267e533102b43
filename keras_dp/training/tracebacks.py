"""Shows a mistake of the user with the user's own lines and the message."""

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
# Errors of other classes can be faults of the libraries: they keep all frames.
_MISTAKES: tuple[type[Exception], ...] = (
    TypeError,
    ValueError,
    *(
        each
        for each in vars(errors).values()
        if isinstance(each, type) and issubclass(each, Exception)
    ),
)
_LIBRARIES = tuple(
    f"{Path(str(module.__file__)).parent}{os.sep}"
    for module in (errors, keras, tf)
)


def concise(function: _Callable) -> _Callable:
    """Returns a function whose errors show frames of the user alone.

    The frame of the function itself stays. It leaves out frames of `keras_dp`,
    Keras and TensorFlow if the error is a `TypeError`, a `ValueError` or of
    `keras_dp.errors`. After `keras.config.disable_traceback_filtering()` it
    leaves out none.

    Args:
        function: A public function of the package, such as `fit`.
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
