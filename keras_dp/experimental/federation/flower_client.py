"""Trains on the records of one user, in a `ClientApp` of Flower."""

from typing import Any

import keras
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict

from keras_dp import _check
from keras_dp.experimental.federation.local_updates import LocalTraining
from keras_dp.sampling import random_words


class FlowerClient:
    """Trains on the records of one user by gradient descent, in Keras.

    The client answers a `FlowerStrategy` with the weights after the user's
    training, and with nothing else. It does not clip or add noise. The server
    does both, and sees the weights of each user. The server accepts any other
    client that answers with the weights in the same order.

    Attributes:
        model: The model, which the client compiles. After an answer, it has the
            weights of this answer.
        local: The learning rate, the epochs and the batch size. The last batch
            of an epoch may be smaller.

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
            model: A model with the architecture of the server's model.
            loss: As in `keras.Model.compile`.
            local: The learning rate, the epochs and the batch size.

        Raises:
            TypeError: `local` is not a `LocalTraining`.
        """
        _check.kind(LocalTraining, local=local)
        self.model, self.local = model, local
        model.compile(keras.optimizers.SGD(local.learning_rate), loss)

    def train(
        self, message: Message, x: Any, y: Any, sample_weight: Any = None
    ) -> Message:
        """Trains from the server's weights, and returns the answer.

        Args:
            message: The server's message, which holds the weights to start
                from.
            x: The inputs of the user's records, leaves `[records, ...]`, with
                at least one record. The client puts records into a random
                order, which is the same in all epochs.
            y: The targets, leaves `[records, ...]`.
            sample_weight: The weights of records, shape `[records]`; `None` for
                equal ones.
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
