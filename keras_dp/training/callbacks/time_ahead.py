"""A Keras callback that says how long a training will take."""

import time
from typing import Any

import keras

from keras_dp._override import override
from keras_dp.keras_internals import print_line

# Rounds are timed for so long, and at least two calls. A training that ends
# sooner than this needs no line.
_TIMED_SECONDS, _SHORT_SECONDS = 1.0, 10.0


class TimeAhead(keras.callbacks.Callback):
    """Prints, after its first rounds, how long a training will take.

    The first rounds to be called are compiled, and are not timed. Evaluation
    is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._start: tuple[float, int] | None = None
        self._rounds = self._before = 0
        self._is_over = False

    @override
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._before = self._rounds

    @override
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._rounds = self._before + batch + 1
        if self._is_over or not self.params.get("verbose"):
            return
        now = time.perf_counter()
        if self._start is None:
            self._start = now, self._rounds
            return
        started, first = self._start
        if now - started < _TIMED_SECONDS or self._rounds < first + 2:
            return
        self._is_over = True
        epochs, rounds = self.params["epochs"], self.params["steps"]
        if rounds is None:
            return
        each = (now - started) / (self._rounds - first)
        seconds = each * epochs * rounds
        if seconds >= _SHORT_SECONDS:
            print_line(
                f"\nThe {epochs:,} epochs take about {_shown(seconds)}, "
                f"{_shown(each * rounds)} each, and `epochs` sets their number."
            )


def _shown(seconds: float) -> str:
    """Returns a duration, rounded for a person.

    >>> _shown(0.31), _shown(48.2), _shown(800), _shown(9000)
    ('0.3 s', '48 s', '13 min', '2.5 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
