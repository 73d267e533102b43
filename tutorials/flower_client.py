"""The client app of `flower.py`, which each node runs."""

import functools

import keras
import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from keras_dp.experimental.federation import FlowerClient, LocalTraining

RECORDS_PER_USER = 16
TRUTH = np.array([[1.0], [-2.0], [0.5]], "float32")
LOCAL = LocalTraining(0.05, epochs=2, batch_size=4)

app = ClientApp()


def records(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the records of one user."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(RECORDS_PER_USER, 3)).astype("float32")
    noise = generator.normal(0, 0.1, (RECORDS_PER_USER, 1)).astype("float32")
    return x, x @ TRUTH + noise


def make_model() -> keras.Model:
    """Returns the model, new."""
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])


@functools.cache
def client() -> FlowerClient:
    """Returns the client of this process, compiled once."""
    return FlowerClient(make_model(), "mse", LOCAL)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains on the records of the node that was asked."""
    user = int(context.node_config["partition-id"])
    return client().train(message, *records(user))
