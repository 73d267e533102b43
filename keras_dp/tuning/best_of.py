"""The best of a random number of trials, and no word of the others.

The price of a search rests on what this file does: the number of trials is
drawn before the first one and from the law alone, each trial is run in the
same way as any other, and the one with the highest rank is kept.

Trials would tell their number by the lines and warnings that they write to the
screen and to log files, by names that count upwards such as `dense_37`, by
generators of random numbers that have moved on, and by models and threads that
are still there. How a trial ended would tell of a record that makes it fail.
They run in this process: the functions of a notebook cannot be sent to another
one, and a process with the threads of TensorFlow must not fork.
"""

import contextlib
import dataclasses
import gc
import logging
import math
import os
import random
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import keras
import numpy as np
import tensorflow as tf

from keras_dp.keras_internals import (
    counting_names_from,
    counting_traces_anew,
    global_seed,
)
from keras_dp.ledger import TruncatedNegativeBinomial
from keras_dp.tuning.priors import UniformDraw

Result = TypeVar("Result")

# The files of the process that libraries in C++ write to.
_DESCRIPTORS = (1, 2)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The best trial of a private search, and nothing else of it.

    Attributes:
        model: The trained model, as `build` made it.
        settings: Its settings by name.
        score: Its score, higher is better. That of the best one is finite.
    """

    model: keras.Model
    settings: dict[str, Any]
    score: float


def uniform() -> float:
    """Returns a number in [0, 1) from the generator of the system."""
    return secrets.randbits(53) / 2**53


def best_of(
    law: TruncatedNegativeBinomial,
    trial: Callable[[], Found],
    draw: UniformDraw = uniform,
) -> Found | None:
    """Runs a random number of trials, and returns the best one.

    Guarantee: if all trials are alike and independent, given the data, the
    result is that of the algorithm that a `Selection` prices. Equal scores
    are put in order at random.

    A trial must not know of the others. `draw` is the source of all randomness
    of the search itself. The result is `None` if no score is finite.
    """
    best: tuple[float, float] | None = None
    kept: Found | None = None
    for _ in range(law.trials(draw())):
        found = trial()
        if not math.isfinite(found.score):
            continue
        rank = found.score, draw()
        if best is None or rank > best:
            best, kept = rank, found
    return kept


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

    Guarantee: `error`, which is new and tells of nothing, has no cause and no
    context, and its traceback does not reach into the function. An interrupt
    stays one. What nobody can reach any more is freed: models, and the threads
    of their data, refer to themselves and would stay.
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
