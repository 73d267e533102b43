"""Adds callbacks of private training to those that `fit` is given."""

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_dp import _check
from keras_dp._override import override
from keras_dp.keras_internals import averages_of, print_line
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.answer_sizes import Sizes
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.training.callbacks.epsilon_progress import EpsilonProgress
from keras_dp.training.callbacks.signal_progress import SignalProgress
from keras_dp.training.loop import TrainingLoop

# Rounds are timed for so long, and at least two calls. A training that ends
# sooner than this needs no line.
_TIMED_SECONDS, _SHORT_SECONDS = 1.0, 10.0


def fit_callbacks(
    loop: TrainingLoop, sizes: Callable[[], Sizes | None]
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of `fit`, with what a private training adds.

    First comes a callback that acts at each epoch, then `SignalProgress`,
    `TimeAhead` and `EpsilonProgress`, so that the others find their numbers in
    the logs. They find averaged weights in the model, if the optimizer
    averages. On workers other than the chief, no epsilon is shown.
    """
    training = loop.training
    given = training.fit.get("callbacks") or []
    if isinstance(given, keras.callbacks.CallbackList):
        raise TypeError(
            "`callbacks` must be a list of callbacks, to which fit adds its "
            "own. Received: a CallbackList. Pass callbacks.callbacks."
        )
    more = given if isinstance(given, (list, tuple)) else [given]
    for each in more:
        if isinstance(each, type) or not hasattr(each, "set_model"):
            raise TypeError(
                "`callbacks` must hold callbacks, and no classes or functions. "
                f"Received: {_check.shown(each)}. Pass such as "
                "keras.callbacks.EarlyStopping(...), or a LambdaCallback."
            )
    epochs: Any = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: loop.begin_epoch(
            epoch, epochs.params["steps"]
        ),
        on_epoch_end=lambda epoch, logs: loop.end_epoch(logs or {}),
    )
    own: list[keras.callbacks.Callback] = [
        epochs,
        SignalProgress(sizes),
        TimeAhead(),
    ]
    if isinstance(training.ledger, PrivacyLedger):
        own.append(
            EpsilonProgress(
                training.ledger, training.delta, lambda: loop.rounds_left
            )
        )
    own.append(AveragedWeights(training.optimizer))
    # `AveragedWeights` stands in its place, and does not round the weights.
    swaps = keras.callbacks.SwapEMAWeights
    return [*own, *(x for x in more if not isinstance(x, swaps))]


class AveragedWeights(keras.callbacks.Callback):
    """Puts averaged weights into the model while it is evaluated or saved.

    Where the private optimizer averages (`use_ema`), the model has the averages
    at the end of `fit`. With this callback it also has them during validation
    and at the end of each epoch, when other callbacks save it. Then training
    goes on with the weights that are not averaged.
    `keras.callbacks.SwapEMAWeights`, in whose place it stands, leaves weights
    that are not averaged in the model if training ends before its last epoch.
    """

    def __init__(self, optimizer: DPOptimizer) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._latest: list[np.ndarray] | None = None

    @override
    def on_test_begin(self, logs: Any = None) -> None:
        self._put_averages()

    @override
    def on_test_end(self, logs: Any = None) -> None:
        self._put_latest()

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._put_averages()

    @override
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._put_latest()

    def _put_averages(self) -> None:
        if self._latest is None:
            pairs = averages_of(self._optimizer)
            self._latest = [weight.numpy() for weight, _ in pairs]
        self._optimizer.put_averages()

    def _put_latest(self) -> None:
        if self._latest is None:
            return
        for (weight, _), latest in zip(
            averages_of(self._optimizer), self._latest, strict=True
        ):
            weight.assign(latest)
        self._latest = None


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
