"""Warns of trainings of a model that the ledger does not hold.

A ledger holds its own rounds. The weights between two of them are those that
the release left. Others come from a file, from another ledger, or from a
training that no ledger covers: of the model itself, of a model around it, of
another model of the same layers, or of a tape of one's own.
"""

import functools
import math
import weakref
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_dp._devices import has_accelerator
from keras_dp.ledger import PrivacyLedger
from keras_dp.optimizers.dp_optimizer import LedgerOfChief
from keras_dp.training.advice.condition import Said

_INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}
# The names of the ledgers that each model was trained with, by data set.
_ledgers_of: weakref.WeakKeyDictionary[keras.Model, dict[str, set[str]]] = (
    weakref.WeakKeyDictionary()
)


class ReleasedWeights:
    """Remembers the weights of a model after a release, as a few numbers.

    To look at the weights of a small model takes as long as a part of a round.
    So they are noted after the last round of each block and epoch, and checked
    before the next. A change between two other rounds is not seen, nor is one
    that keeps the sum of the bits of each weight.

    Attributes:
        are_watched: Whether only releases may change them.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model, self.are_watched = model, True
        self._seen: list[int] | None = None

    def note(self) -> None:
        """Remembers the weights as they are."""
        if self.are_watched:
            self._seen = _numbers_of(self._model)

    def note_if_unknown(self) -> None:
        """Remembers the weights, unless some were noted and not forgotten."""
        if self._seen is None:
            self.note()

    def forget(self) -> None:
        """Takes other weights for granted, such as those of a file."""
        self._seen = None

    def check(self, said: Said) -> None:
        """Warns if the weights are no longer those that were noted."""
        if self._seen not in (None, _numbers_of(self._model)):
            said.warn(
                "The weights of model {!r} were changed since the last round "
                "by something else than a release: by a training outside of "
                "its PrivateModel, or by weights that were set. If private "
                "data decided them, no ledger covers that.",
                self._model.name,
            )
            self.note()


def warn_of_plain_training(model: keras.Model) -> None:
    """Makes a model warn when it is trained beside its private model.

    Attributes of the instance hide its `fit` and `train_on_batch`. Each logs
    one warning and goes on. A model that is loaded from a file does not have
    them.
    """

    def warning(method: Callable[..., Any]) -> Callable[..., Any]:
        said = Said()

        @functools.wraps(method)
        def warns(*args: Any, **options: Any) -> Any:
            said.warn(
                "Model {!r} is held by a PrivateModel, and is now trained "
                "without privacy: no ledger covers this training, and the "
                "weights tell of its data. Call fit of its PrivateModel, "
                "unless this data is public.",
                model.name,
            )
            return method(*args, **options)

        return warns

    for name in ("fit", "train_on_batch"):
        if name not in vars(model):
            vars(model)[name] = warning(getattr(model, name))


def is_known(model: keras.Model) -> bool:
    """Whether this process trained a model with a ledger."""
    return model in _ledgers_of


def warn_of_other_ledgers(
    model: keras.Model, ledger: PrivacyLedger | LedgerOfChief
) -> None:
    """Warns if a model was trained on the same data set with another ledger.

    It knows the trainings of this process. Several private models may hold the
    model.
    """
    if not isinstance(ledger, PrivacyLedger):
        return
    name = ledger.name or f"in memory, {id(ledger)}"
    seen = _ledgers_of.setdefault(model, {})
    names = seen.setdefault(ledger.header.dataset, set())
    if names and name not in names:
        logging.warning(
            "Model %r was trained on data set %r with another ledger before. "
            "Its weights cost what both ledgers hold together: the report of "
            "one of them is too low.",
            model.name,
            ledger.header.dataset,
        )
    names.add(name)


def _numbers_of(model: keras.Model) -> list[int]:
    """Returns the sum of the bits of each weight, as an integer."""
    return [
        _number_of(tf.convert_to_tensor(weight))
        for weight in model.weights
        if tf.as_dtype(weight.dtype) != tf.string
    ]


def _number_of(value: tf.Tensor) -> int:
    if has_accelerator():
        if value.dtype.is_floating:
            value = tf.bitcast(value, _INTEGERS[value.dtype.size])
        return int(tf.reduce_sum(tf.cast(value, tf.int64)))
    # Nothing is copied, and few calls serve a small weight.
    array = np.ascontiguousarray(value.numpy())
    size = math.gcd(array.nbytes, 8)
    return int(array.reshape(-1).view(f"i{size}").sum(dtype=np.int64))
