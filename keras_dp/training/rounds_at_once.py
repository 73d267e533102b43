"""How many rounds `fit` runs between two calls of its callbacks."""

import math
import time
from typing import Any

import keras
import tensorflow as tf

from keras_dp._nests import Nest
from keras_dp.sampling import Sampler

# Between two callbacks; `fit` shows its progress so often.
_SECONDS = 0.5
# A round takes this many times the forward pass of its batch, or less.
_FORWARD_PASSES = 3.0
# A first call that takes longer is not repeated. It prepares operations, too.
_LONG = 0.2
# Nobody knows how long a model takes that is not built.
_UNKNOWN = 8
_OF_BATCHES = (
    "on_train_batch_begin",
    "on_train_batch_end",
    "on_batch_begin",
    "on_batch_end",
)


def rounds_at_once(model: keras.Model, sampler: Sampler, rounds: int) -> int:
    """Returns a number of rounds that take about half a second.

    It divides an epoch into equal parts. The time follows from a forward pass
    on zeros, so that it tells nothing of the records.

    Args:
        model: The user's model.
        sampler: Whose records are in memory.
        rounds: The number of rounds of an epoch.
    """
    if not model.built:
        return min(_UNKNOWN, rounds)
    structure = sampler.record_structure
    x, _, _ = keras.utils.unpack_x_y_sample_weight(structure)
    zeros = keras.tree.map_structure(
        lambda spec: tf.zeros(
            [sampler.physical_batch_size, *spec.shape], spec.dtype
        ),
        x,
    )
    try:
        seconds = _seconds(model, zeros)
        if seconds < _LONG:
            seconds = min(seconds, _seconds(model, zeros))
    except Exception:  # noqa: BLE001 - the first batch shows what is wrong.
        return 1
    most = max(1, int(_SECONDS / (_FORWARD_PASSES * seconds)))
    return math.ceil(rounds / math.ceil(rounds / most))


def _seconds(model: keras.Model, inputs: Nest) -> float:
    start = time.perf_counter()
    model(inputs, training=False)
    return time.perf_counter() - start


def acts_on_batches(callbacks: Any) -> str:
    """Returns the name of a callback that must see each round, "" for none.

    Callbacks of Keras count rounds where several run at once.

    Args:
        callbacks: The argument `callbacks` of `fit`.
    """
    for each in keras.tree.flatten(callbacks):
        for name in _OF_BATCHES:
            method = getattr(each, name, None)
            module = getattr(method, "__module__", None)
            is_known = isinstance(module, str) and module.startswith(
                ("keras.", "keras_dp.")
            )
            if method is not None and not is_known:
                return type(each).__name__
    return ""
