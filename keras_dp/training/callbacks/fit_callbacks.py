"""Adds callbacks of private training to those that `fit` is given."""

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from keras_dp._override import override
from keras_dp.keras_internals import averages_of
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.answer_sizes import Sizes
from keras_dp.optimizers.dp_optimizer import DPOptimizer, LedgerOfChief
from keras_dp.training.callbacks.epsilon_progress import EpsilonProgress
from keras_dp.training.callbacks.signal_progress import SignalProgress
from keras_dp.training.callbacks.time_ahead import TimeAhead


def fit_callbacks(
    given: Any,
    begin: Callable[[int], None],
    end: Callable[[Mapping[str, Any]], None],
    ledger: PrivacyLedger | LedgerOfChief,
    delta: float,
    rounds_left: Callable[[], int | None],
    optimizer: DPOptimizer,
    sizes: Callable[[], Sizes | None],
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of `fit`, with what a private training adds.

    First comes a callback that acts at each epoch, then `SignalProgress`,
    `TimeAhead` and `EpsilonProgress`, so that the others find their numbers in
    the logs. They find averaged weights in the model, if the optimizer
    averages.

    Args:
        given: The argument `callbacks` of `fit`.
        begin: Is called at the beginning of each epoch, with its number.
        end: Is called with the logs at the end of each epoch, before callbacks
            of the user.
        ledger: The ledger that will record the training. Without a
            `PrivacyLedger`, as on workers other than the chief, no epsilon is
            shown.
        delta: The delta of the shown epsilon, in (0, 1).
        rounds_left: Returns how many more rounds the target and the account
            leave room for, `None` if neither limits the training.
        optimizer: The private optimizer.
        sizes: Returns how large answers and their noise were so far, `None` if
            it is not known.

    Raises:
        TypeError: `given` is a `CallbackList`.
    """
    own: list[keras.callbacks.Callback] = [
        keras.callbacks.LambdaCallback(
            on_epoch_begin=lambda epoch, logs: begin(epoch),
            on_epoch_end=lambda epoch, logs: end(logs or {}),
        ),
        SignalProgress(sizes),
        TimeAhead(),
    ]
    if isinstance(ledger, PrivacyLedger):
        own.append(EpsilonProgress(ledger, delta, rounds_left))
    own.append(AveragedWeights(optimizer))
    # `AveragedWeights` stands in its place, and does not round the weights.
    swaps = keras.callbacks.SwapEMAWeights
    return [*own, *(x for x in _listed(given) if not isinstance(x, swaps))]


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
