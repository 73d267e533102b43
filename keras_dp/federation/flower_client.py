"""The training of one user, in a `ClientApp` of Flower."""

from typing import Any

import keras
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from keras_dp import _check
from keras_dp.sampling import random_words
from keras_dp.training import LocalTraining


class FlowerClient:
    """Trains on the records of one user, as `LocalTraining` says, by Keras.

    It answers a `FlowerStrategy` with the weights after the user's training,
    and nothing else. Nothing is clipped or noised here: the server does, and
    sees the weights of each user. Any other client that answers with the list
    of weights serves as well.

    Attributes:
        model: Compiled by the client. Its weights are those of the last answer.
        local: How it trains. The last step of an epoch takes what is left.

    >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    >>> client = FlowerClient(model, "mse", LocalTraining(0.1, batch_size=2))
    >>> client.local.batch_size
    2
    """

    def __init__(
        self, model: keras.Model, loss: Any, local: LocalTraining
    ) -> None:
        """Compiles the model.

        Args:
            model: It has the architecture of the server's.
            loss: As in `keras.Model.compile`.
            local: How the user trains.
        """
        _check.kind(LocalTraining, local=local)
        self.model, self.local = model, local
        model.compile(keras.optimizers.SGD(local.learning_rate), loss)

    def train(
        self, message: Message, x: Any, y: Any, sample_weight: Any = None
    ) -> Message:
        """Returns the answer to a message of the server.

        Args:
            message: Holds the weights to start from.
            x: Inputs of the user's records, leaves `[records, ...]`, records
                >= 1. They are taken in random order.
            y: Targets.
            sample_weight: Weights, or `None`.
        """
        arrays = message.content.array_records["arrays"]
        self.model.set_weights(arrays.to_numpy_ndarrays())
        count = len(keras.tree.flatten(x)[0])
        order = np.argsort(random_words.from_operating_system(count))
        x, y, sample_weight = keras.tree.map_structure(
            lambda leaf: None if leaf is None else np.asarray(leaf)[order],
            (x, y, sample_weight),
        )
        self.model.fit(
            x,
            y,
            sample_weight=sample_weight,
            batch_size=self.local.batch_size or count,
            epochs=self.local.epochs,
            shuffle=False,
            verbose=0,
        )
        weights = ArrayRecord(self.model.get_weights())
        return Message(RecordDict({"arrays": weights}), reply_to=message)
