"""The parts of a training step, which are fixed once the model is built."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Protocol

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp.gradients import GradientEngine
from keras_dp.gradients.records.records import GradientRecords
from keras_dp.keras_internals import layers_of
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.metrics.example_metrics import ExampleMetrics
from keras_dp.training.metrics.side_queries import SideQueries

# The gradient of a cross-entropy with respect to a logit is at most 1. With
# this scale it can grow by a factor of 2^6 on its way back before float16
# overflows, and it can shrink by 2^10 more before it underflows.
_LOSS_SCALE = 2.0**10
_LARGEST_LOSS_SCALE = 2.0**15  # The largest power of two in float16.


def resolved_loss_scale(given: float | None, model: keras.Model) -> float:
    """Returns the loss scale.

    If none is given, it is 1024 if a layer computes in float16, else 1.
    """
    if given is None:
        layers = layers_of(model)
        half = any(layer.compute_dtype == "float16" for layer in layers)
        return _LOSS_SCALE if half else 1.0
    _check.finite_positive(loss_scale=given)
    if math.frexp(given)[0] != 0.5 or not 1 <= given <= _LARGEST_LOSS_SCALE:
        raise ValueError(
            "`loss_scale` must be a power of two from 1 to "
            f"{_LARGEST_LOSS_SCALE:g}, so that float32 divides by it without "
            f"rounding. Received: loss_scale={given!r}. Pass 1024, or leave it "
            "out."
        )
    return float(given)


class UserUpdates(Protocol):
    """Computes how users change the weights, where these are the records."""

    def records(
        self, data: tuple[Any, Any, Any], mask: tf.Tensor, rows: int
    ) -> list[GradientRecords]:
        """Returns the change by each user, as records of gradients."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of a training step.

    Attributes:
        round: The round that answers: that of the optimizer, or another one
            with the same queries.
        loss: The loss as `keras.Model.compile` prepared it, built. Keras gives
            its class no public name.
        metrics: Keras's metrics, which are not private.
        jit_compile: Whether XLA compiles the step, except for Keras's metrics.
        xla_is_chosen: Whether nobody asked for XLA. Where it lacks an
            operation, the step goes on without it.
        loss_scale: The power of two that losses are multiplied by while they
            are differentiated.
        self_check_examples: The number of examples whose norms the self-check
            compares. 0 turns the whole self-check off.
        user_updates: Makes `UserUpdates` of the engine, the loss and its scale,
            where the records are updates of users; `None` where they are
            gradients.
    """

    model: keras.Model
    optimizer: DPOptimizer
    round: PrivateRound
    loss: Any
    metrics: ExampleMetrics
    side_queries: SideQueries
    jit_compile: bool
    xla_is_chosen: bool
    run_eagerly: bool
    loss_scale: float
    self_check_examples: int
    replicas: Replicas
    user_updates: Callable[[GradientEngine, Any, float], UserUpdates] | None = (
        None
    )
