"""Adds callbacks of private training to those that `fit` is given."""

import dis
from collections.abc import Callable
from typing import Any

import keras
from absl import logging

from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.answer_sizes import Sizes
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.ledger_of_chief import LedgerOfChief
from keras_dp.training.advice.averaged_weights import AveragedWeights
from keras_dp.training.advice.epsilon_progress import EpsilonProgress
from keras_dp.training.advice.signal_progress import SignalProgress


def fit_callbacks(
    given: Any,
    begin: Callable[[int], None],
    end: Callable[[], None],
    ledger: PrivacyLedger | LedgerOfChief,
    delta: float,
    rounds_left: Callable[[], int | None],
    optimizer: DPOptimizer,
    sizes: Callable[[], Sizes | None],
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks of `fit`, with what a private training adds.

    First comes a callback that acts at each epoch, then `SignalProgress` and
    `EpsilonProgress`, so that the others find their numbers in the logs. They
    find averaged weights in the model, if the optimizer averages.

    Args:
        given: The argument `callbacks` of `fit`.
        begin: Is called at the beginning of each epoch, with its number.
        end: Is called at the end of each epoch, before callbacks of the user.
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
            on_epoch_end=lambda epoch, logs: end(),
        ),
        SignalProgress(sizes),
    ]
    if isinstance(ledger, PrivacyLedger):
        own.append(EpsilonProgress(ledger, delta, rounds_left))
    own.append(AveragedWeights(optimizer))
    # `AveragedWeights` stands in its place, and does not round the weights.
    swaps = keras.callbacks.SwapEMAWeights
    return [*own, *(x for x in _listed(given) if not isinstance(x, swaps))]


def warn_of_decisions(given: Any) -> None:
    """Warns of each callback that acts on a training metric without noise.

    Args:
        given: The argument `callbacks` of `fit`, in a training without private
            metrics.
    """
    for callback in _listed(given):
        found = _acts_on(callback)
        if found is not None:
            logging.warning(
                "%s acts on %s, computed on the training data without noise: "
                "the privacy guarantee does not cover what it decides. Release "
                "the metric by compile(..., private_metrics=...), or use one "
                "of public validation data, such as 'val_%s'.",
                type(callback).__name__,
                "metrics" if found == _OWN else repr(found),
                "loss" if found == _OWN else found,
            )


# Names in the code of a callback that changes how a training goes on, or that
# keeps one of its models.
_DEEDS = frozenset(
    (
        *("stop_training", "learning_rate", "assign", "set_weights"),
        *("load_weights", "get_weights", "save", "save_weights"),
    )
)
_METHODS = ("on_batch_end", "on_train_batch_end", "on_epoch_end")
# Numbers in the logs that tell nothing of single records.
_PUBLIC = ("val_", "epsilon", "rounds_left", "signal_to_noise")
_OWN = ""


def _acts_on(callback: keras.callbacks.Callback) -> str | None:
    """Returns the metric that a callback acts on.

    It is `_OWN` for code of the user that acts on the logs it is given, and
    `None` where nothing of the training data is seen to decide.
    """
    if isinstance(callback, keras.callbacks.TerminateOnNaN):
        return "loss"
    monitored = getattr(callback, "monitor", None)
    if isinstance(monitored, str):
        is_public = monitored.startswith(("val_", "epsilon"))
        acts = getattr(callback, "save_best_only", True)
        return monitored if acts and not is_public else None
    methods = [getattr(callback, name) for name in _METHODS]
    return _OWN if any(map(_decides, methods)) else None


def _decides(method: Any) -> bool:
    """Whether code of the user reads a training metric in its logs, and acts.

    The methods that it calls are looked at, too. Code that reads no metric by
    name may read any.
    """
    code = getattr(method, "__code__", None)
    if code is None or method.__module__.partition(".")[0] == "keras":
        return False
    logs = code.co_varnames[: code.co_argcount][-1:]
    codes = _codes_of(code, type(getattr(method, "__self__", None)))
    words = {
        each
        for one in codes
        for each in (*one.co_names, *one.co_consts)
        if isinstance(each, str)
    }
    raises = any(
        each.opname == "RAISE_VARARGS"
        for one in codes
        for each in dis.get_instructions(one)
    )
    reads = any(
        each.opname.startswith("LOAD") and name in str(each.argval)
        for each in dis.get_instructions(code)
        for name in logs
    )
    keys = {
        each
        for one in codes
        for each in one.co_consts
        if isinstance(each, str) and each.isidentifier() and each not in _DEEDS
    }
    public = bool(keys) and all(each.startswith(_PUBLIC) for each in keys)
    return reads and not public and (raises or not _DEEDS.isdisjoint(words))


def _codes_of(code: Any, kind: type) -> list[Any]:
    """Returns a code, and those of functions inside and of methods it names."""
    found, left = [], [code]
    while left:
        each = left.pop()
        if each in found:
            continue
        found.append(each)
        left += [x for x in each.co_consts if hasattr(x, "co_code")]
        for name in each.co_names:
            called = getattr(getattr(kind, name, None), "__code__", None)
            if called is not None and "/keras/" not in called.co_filename:
                left.append(called)
    return found


def _listed(given: Any) -> list[keras.callbacks.Callback]:
    if isinstance(given, keras.callbacks.CallbackList):
        raise TypeError(
            "`callbacks` must be a list of callbacks, to which fit adds its "
            "own. Received: a CallbackList. Pass callbacks.callbacks."
        )
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]
