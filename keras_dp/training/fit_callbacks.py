"""The callbacks of `fit`: those of the user, between two of its own."""

from collections.abc import Callable
from typing import Any

import keras
from absl import logging
from typing_extensions import override

from keras_dp.ledger import PrivacyLedger
from keras_dp.training.epsilon_progress import EpsilonProgress

Act = Callable[[], None]


class _AtEpochs(keras.callbacks.Callback):
    """Acts before the callbacks of the user look at the ledger or save."""

    def __init__(self, begin: Callable[[int], None], end: Act) -> None:
        super().__init__()
        self._begin, self._end = begin, end

    @override
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._begin(epoch)

    @override
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end()


def fit_callbacks(
    given: Any,
    begin: Callable[[int], None],
    end: Act,
    ledger: Any,
    delta: float,
    rounds_left: Callable[[], int | None],
) -> Any:
    """Returns the callbacks of `fit`, with what a private training adds.

    First comes one that acts at each epoch, then an `EpsilonProgress` unless
    there is one, so that the others find epsilon in the logs.

    Args:
        given: As `fit` was given them.
        begin: Called when an epoch begins, with its number.
        end: Called when an epoch ends; settles the ledger.
        ledger: Where the training will be recorded. Workers that have none
            show no epsilon.
        delta: At which epsilon is shown unless a callback says otherwise.
        rounds_left: Says how many rounds the target and account leave room
            for, if one of them limits the training.
    """
    callbacks = _listed(given)
    own: list[Any] = [_AtEpochs(begin, end)]
    if isinstance(ledger, PrivacyLedger):
        shown = [x for x in callbacks if isinstance(x, EpsilonProgress)]
        if not shown:
            shown = [EpsilonProgress()]
            own += shown
        for each in shown:
            each.attach(ledger, delta, rounds_left)
    if isinstance(given, keras.callbacks.CallbackList):
        for each in own:  # The list is of Keras, with the model set.
            each.set_model(given.model)
            each.set_params(given.params)
        given.callbacks[:0] = own
        return given
    return [*own, *callbacks]


def warn_of_decisions(given: Any) -> None:
    """Names the callbacks that act on metrics without noise.

    Args:
        given: As `fit` was given them, in a training without private metrics.
    """
    for callback in _listed(given):
        monitored = getattr(callback, "monitor", None)
        acts = getattr(callback, "save_best_only", True)
        if (
            acts
            and isinstance(monitored, str)
            and not monitored.startswith(("val_", "epsilon"))
        ):
            logging.warning(
                "%s acts on %r, which is computed on the training data without "
                "noise: the privacy guarantee does not cover what it decides. "
                "Release the metric by compile(..., private_metrics=...), or "
                "monitor one of public validation data, such as 'val_%s'.",
                type(callback).__name__,
                monitored,
                monitored,
            )


def _listed(given: Any) -> list[Any]:
    if isinstance(given, keras.callbacks.CallbackList):
        return list(given.callbacks)
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]
