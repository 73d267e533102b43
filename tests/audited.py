"""Small trainings that are audited, and their parts to be changed."""

from typing import Any

import keras
import numpy as np

import keras_dp
from keras_dp import GaussianAverageQuery, PoissonBatches, PrivateLoss

NUMBERS = np.random.default_rng(0)
X = NUMBERS.normal(size=[200, 3]).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5]]) + 1).astype("float32")


def samples(**options: Any) -> PoissonBatches:
    """Returns Poisson samples of the regression."""
    return PoissonBatches((X, Y), sampling_probability=0.1, **options)


def dense() -> keras.Model:
    """Returns a model of two layers."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((3,)),
            layers.Dense(4, activation="tanh", name="hidden"),
            layers.Dense(1, name="head"),
        ]
    )


def average(clip: float = 1.0, **options: Any) -> GaussianAverageQuery:
    """Returns the query of most trainings here."""
    options = {"noise_multiplier": 1.0, "denominator": 20, **options}
    return GaussianAverageQuery(clip, **options)


def training(
    model: keras.Model | None = None,
    query: Any = None,
    *,
    loss: Any = "mse",
    optimizer: Any = None,
    unit: str = "example",
    private_optimizer: Any = keras_dp.DPOptimizer,
    self_check_examples: int | None = None,
    **options: Any,
) -> keras_dp.PrivateModel:
    """Returns a compiled private model with a ledger in memory."""
    arguments = {}
    if self_check_examples is not None:
        arguments["self_check_examples"] = self_check_examples
    built = keras_dp.PrivateModel(model or dense(), **arguments)
    options.setdefault("private_metrics", {"loss": PrivateLoss(average(9.0))})
    groups = options.pop("groups", None)
    built.compile(
        private_optimizer(
            optimizer or keras.optimizers.Adam(0.1),
            query=query or average(),
            groups=groups,
            ledger=keras_dp.PrivacyLedger.in_memory(dataset="d", unit=unit),
        ),
        loss,
        **options,
    )
    return built
