"""Warns of what a tuner costs that shows all of its trials."""

import weakref
from collections.abc import Iterable
from typing import Any

from absl import logging

from keras_dp.accountants.claim import shown_epsilon
from keras_dp.accountants.replay import Replay
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    PrivacyLedger,
    Round,
    Selection,
    TruncatedNegativeBinomial,
)
from keras_dp.optimizers.ledger_of_chief import LedgerOfChief

_warned: weakref.WeakSet[Any] = weakref.WeakSet()


def warn_of_tuner(
    callbacks: Any,
    ledger: PrivacyLedger | LedgerOfChief,
    row: int | None,
    delta: float,
) -> None:
    """Warns once of a tuner of KerasTuner that ran the training.

    KerasTuner hands each `fit` a callback that knows its tuner.

    Args:
        callbacks: The argument `callbacks` of `fit`.
        ledger: The ledger of the training, which is over.
        row: The row in which its run began; `None` without one.
        delta: The delta of the shown epsilons, in (0, 1).
    """
    tuner = _tuner_of(callbacks)
    if tuner is None or tuner in _warned:
        return
    _warned.add(tuner)
    trials = getattr(tuner.oracle, "max_trials", None)
    if not isinstance(ledger, PrivacyLedger) or not trials or trials < 2:
        return
    one = next(
        (run.plan or run.rounds for run in ledger.runs if run.row == row), ()
    )
    if not one:
        return
    law = TruncatedNegativeBinomial(shape=1, mean=trials)

    def epsilon(rounds: Iterable[tuple[Round, int]]) -> str:
        try:
            replay = Replay(rounds, header=ledger.header)
            return shown_epsilon(replay.claim(delta=delta).epsilon)
        except UnsupportedEventError:
            return "no bound"

    logging.warning(
        "A tuner of KerasTuner trains private models, and shows all %d trials: "
        "they cost epsilon %s together at delta = %.3g, one alone %s. "
        "keras_dp.tuning.PrivateSearch, or PrivateTuner in place of the tuner, "
        "keeps the number of trials secret: %d on average cost %s.",
        trials,
        epsilon([(each, count * trials) for each, count in one]),
        delta,
        epsilon(one),
        trials,
        epsilon([(Selection((tuple(one),), law).round, 1)]),
    )


def _tuner_of(callbacks: Any) -> Any:
    """Returns the tuner of KerasTuner that gave callbacks, or `None`."""
    given = callbacks if isinstance(callbacks, list | tuple) else [callbacks]
    for each in given:
        if type(each).__module__.partition(".")[0] == "keras_tuner":
            tuner = getattr(each, "tuner", None)
            if tuner is not None:
                return tuner
    return None
