"""Files of the model inside a private one, which hold nothing of this package.

`private.save` writes the private model around it, with the state of its query.
A file from here can be loaded where this package is not installed.
"""

import os
import zipfile
from typing import IO, Any

import h5py
import keras
import numpy as np

from keras_dp._override import override

_MARK = "is_private"


class SaveModel(keras.callbacks.ModelCheckpoint):
    """Saves the user's own model while its private model trains.

    It takes the arguments of `keras.callbacks.ModelCheckpoint`. That callback
    would save the private model. With `save_best_only` the choice of a model is
    not private if it follows a metric that was computed on private data without
    noise. A model that is loaded again **trains without privacy** unless it is
    put into a `PrivateModel`.

    >>> callback = SaveModel("model-{epoch}.keras")
    """

    @override
    def set_model(self, model: Any) -> None:
        """Takes the model inside of a private model, or else `model` itself."""
        super().set_model(getattr(model, "model", model))


def holds_plain_weights(filepath: Any) -> bool:
    """Whether a file has the weights of a model that is not private.

    Args:
        filepath: Path of a `.weights.h5` or `.keras` file. Others are taken to
            be of a private model.

    Raises:
        ValueError: It is the index of weights in several files.
    """
    path = os.fspath(filepath)
    if path.endswith(".weights.json"):
        raise ValueError(
            "`filepath` must be one file: a private model does not load "
            f"weights in several. Received: filepath={path!r}. Save them "
            "without max_shard_size."
        )
    if path.endswith(".keras"):
        with (
            zipfile.ZipFile(path) as archive,
            archive.open("model.weights.h5") as file,
        ):
            return not _has_mark(file)
    return path.endswith(".weights.h5") and not _has_mark(path)


def mark_as_private(store: Any) -> None:
    """Says in the file of a private model that it is one.

    Args:
        store: From `save_own_variables`; it takes arrays only.
    """
    store[_MARK] = np.ones([])


def _has_mark(file: str | IO[bytes]) -> bool:
    with h5py.File(file) as weights:
        return f"vars/{_MARK}" in weights
