"""A small search, for the tests of this folder."""

import keras
import numpy as np

from keras_dp.ledger import PrivacyLedger, TruncatedNegativeBinomial
from keras_dp.tuning import Choice, LogUniform, PrivateSearch

LAW = TruncatedNegativeBinomial(shape=1, mean=3)
SPACE = {"learning_rate": LogUniform(0.1, 10.0), "units": Choice([2, 4])}


def data(count=200, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, 4)).astype("float32")
    return x, (x[:, :1] > 0).astype("float32")


def build(settings):
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(settings.get("units", 2), activation="tanh"),
            keras.layers.Dropout(0.1),
            keras.layers.Dense(1),
        ]
    )
    model.compile("sgd", loss=keras.losses.BinaryCrossentropy(from_logits=True))
    return model


def public_accuracy(model):
    x, y = data(seed=1)
    return float(np.mean((model.predict(x, verbose=0) > 0) == (y > 0.5)))


def search_of(score=public_accuracy, **changes):
    arguments = {
        "build": build,
        "space": SPACE,
        "data": data(),
        "law": LAW,
        "target_epsilon": 3.0,
        "epochs": 1,
        "batch_size": 50,
        "delta": 1e-3,
        "ledger": PrivacyLedger.in_memory(dataset="doc"),
        "verbose": False,
        **changes,
    }
    return PrivateSearch(score=score, **arguments)
