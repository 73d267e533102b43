"""Adds callbacks of private training to those that `fit` is given."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from keras_dp._override import override
from keras_dp.keras_internals import averages_of
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.answer_sizes import Sizes
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.training.callbacks.epsilon_progress import EpsilonProgress
from keras_dp.training.callbacks.signal_progress import SignalProgress
from keras_dp.training.callbacks.time_ahead import TimeAhead
from keras_dp.training.loop import TrainingLoop


def fit_callbacks(
    loop: TrainingLoop, sizes: Callable[[], Sizes | None]
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of `fit`, with what a private training adds.

    First comes a callback that acts at each epoch, then `SignalProgress`,
    `TimeAhead` and `EpsilonProgress`, so that the others find their numbers in
    the logs. They find averaged weights in the model, if the optimizer
    averages.

    Args:
        loop: The rounds of the training. On workers other than the chief, no
            epsilon is shown.
        sizes: Returns how large answers and their noise were so far, `None` if
            it is not known.

    Raises:
        TypeError: `callbacks` is a `CallbackList`.
    """
    training = loop.training
    own: list[keras.callbacks.Callback] = [
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: loop.begin_epoch(epoch),
            on_epoch_end=lambda epoch, logs: loop.end_epoch(logs or {}),
        ),
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
    given = _listed(training.fit.get("callbacks"))
    return [*own, *(x for x in given if not isinstance(x, swaps))]


def _listed(given: Any) -> list[keras.callbacks.Callback]:
    if isinstance(given, keras.callbacks.CallbackList):
        raise TypeError(
            "`callbacks` must be a list of callbacks, to which fit adds its "
            "own. Received: a CallbackList. Pass callbacks.callbacks."
        )
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


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
