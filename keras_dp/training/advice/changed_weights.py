"""Warns of weights that something else than a release has changed.

The weights between two rounds are those that the release left. Others come from
a file, or from a training that no ledger covers: of a model around the private
one, of another model of the same layers, or of a tape of one's own.
"""

import keras
import tensorflow as tf

from keras_dp.training.advice.said import Said

_INTEGERS = {2: tf.int16, 4: tf.int32, 8: tf.int64}


class ReleasedWeights:
    """Remembers the weights of a model after a release, as a few numbers."""

    def __init__(self, model: keras.Model) -> None:
        """Remembers nothing yet.

        Args:
            model: The user's model.
        """
        self._model = model
        self._seen: list[int] | None = None

    def note(self) -> None:
        """Remembers the weights as they are."""
        self._seen = _numbers_of(self._model)

    def forget(self) -> None:
        """Takes other weights for granted, such as those of a file."""
        self._seen = None

    def check(self, said: Said) -> None:
        """Warns if the weights are no longer those that were noted."""
        if self._seen not in (None, _numbers_of(self._model)):
            said.warn(
                "The weights of model %r were changed since the last round by "
                "something else than a release: by a training outside of its "
                "PrivateModel, or by weights that were set. If private data "
                "decided them, no ledger covers that.",
                self._model.name,
            )
            self.note()


def _numbers_of(model: keras.Model) -> list[int]:
    """Returns the sum of the bits of each weight, as an integer."""
    return [
        int(tf.reduce_sum(tf.cast(_as_integers(weight), tf.int64)))
        for weight in model.weights
        if tf.as_dtype(weight.dtype) != tf.string
    ]


def _as_integers(weight: keras.Variable) -> tf.Tensor:
    value = tf.convert_to_tensor(weight)
    if not value.dtype.is_floating:
        return value
    return tf.bitcast(value, _INTEGERS[value.dtype.size])
