"""The parts of a training step, which are fixed once the model is built."""

import dataclasses
from typing import Any

import keras

from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import PrivateRound
from keras_dp.training.devices.replicas import Replicas
from keras_dp.training.metrics.example_metrics import ExampleMetrics
from keras_dp.training.metrics.side_queries import SideQueries
from keras_dp.training.step.local_updates import LocalTraining


@dataclasses.dataclass(frozen=True, slots=True)
class StepOptions:
    """How a step is run.

    Attributes:
        jit_compile: Whether XLA compiles the step, except for Keras's metrics.
        run_eagerly: Whether steps run without being traced.
        loss_scale: The power of two that losses are multiplied by while they
            are differentiated.
        self_check_examples: The number of examples whose norms the self-check
            compares. 0 turns the whole self-check off.
        replicas: The devices that share a physical batch.
    """

    jit_compile: bool
    run_eagerly: bool
    loss_scale: float
    self_check_examples: int
    replicas: Replicas


@dataclasses.dataclass(frozen=True, slots=True)
class StepParts:
    """The parts of a training step.

    Attributes:
        model: The user's model, built.
        optimizer: The optimizer, built for the model and the side queries.
        round: The round that answers: that of the optimizer, or another one
            with the same queries.
        loss: The loss as `keras.Model.compile` prepared it, built. Keras gives
            its class no public name.
        metrics: Keras's metrics, which are not private.
        side_queries: The queries beside the query of the gradients.
        options: The options of the step.
        local: The training of each user, if records are the users' updates;
            `None` if records are gradients.
    """

    model: keras.Model
    optimizer: DPOptimizer
    round: PrivateRound
    loss: Any
    metrics: ExampleMetrics
    side_queries: SideQueries
    options: StepOptions
    local: LocalTraining | None = None
