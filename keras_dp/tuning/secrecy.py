"""Keeps a process from telling how many trials it runs, and how they ended.

Trials would tell their number by the lines and warnings that they write to the
screen and to log files, by names that count upwards such as `dense_37`, by
generators of random numbers that have moved on, and by models and threads that
are still there. How a trial ended would tell of a record that makes it fail.
"""

import contextlib
import gc
import logging
import os
import random
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from keras_dp.keras_internals import (
    counting_names_from,
    counting_traces_anew,
    global_seed,
)

Result = TypeVar("Result")

# The files of the process that libraries in C++ write to.
_DESCRIPTORS = (1, 2)


class _Stream:
    """Stands for a stream: drops text while it is silent, and then passes it.

    A handler of logs that a trial makes keeps the stream that it finds.
    """

    def __init__(self, stream: Any) -> None:
        self._stream, self.is_silent = stream, True

    def write(self, text: str) -> int:
        """Returns the length of the text, as a stream does."""
        if self.is_silent:
            return len(text)
        return int(self._stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Drops what is printed, logged or warned of, by Python and by C++.

    All threads of the process are silenced.
    """
    disabled = logging.root.manager.disable
    with (
        contextlib.ExitStack() as stack,
        open(os.devnull, "w") as nothing,
    ):
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(logging.disable, disabled)
        logging.disable(sys.maxsize)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        for descriptor in _DESCRIPTORS:
            with contextlib.suppress(OSError):  # One that is closed.
                kept = os.dup(descriptor)
                stack.callback(os.close, kept)
                stack.callback(os.dup2, kept, descriptor)
                os.dup2(nothing.fileno(), descriptor)
        for redirect, stream in (
            (contextlib.redirect_stdout, sys.stdout),
            (contextlib.redirect_stderr, sys.stderr),
        ):
            if stream is not None:
                silent = _Stream(stream)
                stack.callback(setattr, silent, "is_silent", False)
                stack.enter_context(redirect(silent))
        yield


def withheld(function: Callable[[], Result], error: Exception) -> Result:
    """Returns what a function returns, or raises one error for all others.

    Guarantee: `error` has no cause and no context, and its traceback does not
    reach into the function. What nobody can reach any more is freed: models,
    and the threads of their data, refer to themselves and would stay.

    Args:
        function: Its errors may tell of the data.
        error: A new one, which tells of nothing.

    Raises:
        KeyboardInterrupt: Somebody stopped the process.
    """
    raised: BaseException | None = None
    try:
        result = function()
    except KeyboardInterrupt:
        raised = KeyboardInterrupt()
    except BaseException:  # noqa: BLE001 - such as the end of the process.
        raised = error
    gc.collect()
    if raised is not None:
        # Outside of `except`, where it would keep the first error.
        raise raised
    return result


@contextlib.contextmanager
def like_the_first(names: Mapping[str, int]) -> Iterator[None]:
    """Runs a trial as if it were the first of the process, and leaves no trace.

    Names of layers count upwards from `names`, and the traces of functions
    from 0. The generators of Python, NumPy, Keras and TensorFlow begin at
    random, also where the program chose a seed: trials must be independent, and
    a seed would tell which one is the best. Afterwards all of them are as
    before, but for the one of TensorFlow, which begins anew with its seed.

    Args:
        names: From `keras_internals.name_counts`.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    tensorflow = global_seed()
    try:
        with counting_names_from(names), counting_traces_anew():
            random.seed(secrets.randbits(256))
            np.random.seed(secrets.randbits(32))  # noqa: NPY002
            tf.random.set_seed(secrets.randbits(62))  # noqa: TID251
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        tf.random.set_seed(tensorflow)  # noqa: TID251
