"""Computes how the training of each user changes the weights."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp import _check
from keras_dp.gradients import (
    GradientEngine,
    example_losses,
    without_variable_writes,
)
from keras_dp.gradients.capture.mapped_examples import map_examples
from keras_dp.gradients.records.records import (
    GradientRecords,
    MaterializedRecords,
)
from keras_dp.keras_internals import (
    keeping_variable_scope,
    layers_of,
    seed_generators_of,
)


@dataclasses.dataclass(frozen=True, slots=True)
class LocalTraining:
    """How each user trains, by plain gradient descent.

    Attributes:
        learning_rate: > 0.
        epochs: How often each of the user's records is used, >= 1.
        batch_size: Records of a step, which must divide the sampler's
            `records_per_user`; all of them by default.

    >>> LocalTraining(0.1, epochs=2, batch_size=8).steps(records_per_user=32)
    8
    """

    learning_rate: float
    epochs: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        _check.finite_positive(learning_rate=self.learning_rate)
        _check.integer_at_least(1, epochs=self.epochs)
        if self.batch_size is not None:
            _check.integer_at_least(1, batch_size=self.batch_size)

    def steps(self, records_per_user: int) -> int:
        """Returns how many steps a user takes.

        Args:
            records_per_user: As in `UserBatches`.

        Raises:
            ValueError: `batch_size` does not divide it.
        """
        size = self.batch_size or records_per_user
        if records_per_user % size:
            raise ValueError(
                "`batch_size` of the local training must divide "
                f"records_per_user={records_per_user!r}. Received: "
                f"batch_size={size!r}. Pass a divisor, or None for all records."
            )
        return self.epochs * (records_per_user // size)

    def updates(
        self, engine: GradientEngine, compiled_loss: Any, loss_scale: float
    ) -> "LocalUpdates":
        """Returns the updates of users of a model; see `LocalUpdates`."""
        return LocalUpdates(engine, compiled_loss, self, loss_scale)


class LocalUpdates:
    """Computes what each user's training takes from the weights.

    All users start from the present weights. In each step the weights of a
    user move against the mean gradient of the step's records of that user;
    rows of padding have no part in it.

    Guarantee: the update of a user is a function of the weights, of that user's
    records and of the seeds of layers. Users are mapped one by one, each with
    weights of its own, so that no layer can make them interact.
    """

    def __init__(
        self,
        engine: GradientEngine,
        compiled_loss: Any,
        local: LocalTraining,
        loss_scale: float,
    ) -> None:
        """Computes nothing.

        Args:
            engine: The one of the model.
            compiled_loss: The loss that `keras.Model.compile` made, built.
            local: How users train.
            loss_scale: Power of two that losses are multiplied by while they
                are differentiated.
        """
        self._engine, self._loss = engine, compiled_loss
        self._local, self._loss_scale = local, loss_scale
        self._seeds = [
            generator.state for generator in seed_generators_of(engine.model)
        ]
        # The gradient of a loop cannot be vectorized.
        loops = any(
            isinstance(layer, keras.layers.RNN)
            for layer in layers_of(engine.model)
        )
        self._map: Callable[..., Any] = _in_turn if loops else _together

    def records(
        self, data: tuple[Any, Any, Any], mask: tf.Tensor, rows: int
    ) -> list[GradientRecords]:
        """Returns the weights before less those after, one record a user.

        Args:
            data: Inputs, targets and sample weights, leaves `[batch, ...]`.
            mask: Shape `[batch]`, false for padding.
            rows: Consecutive rows of a user.
        """
        steps = self._local.steps(rows)
        size = self._local.batch_size or rows
        leaves = keras.tree.flatten(data)
        parts = [
            _in_steps(leaf, rows, size)
            for leaf in [mask, *leaves]
            if leaf is not None
        ]
        users = mask.shape[0] // rows

        def filled(rows: list[tf.Tensor]) -> Any:
            """Puts None back where the data has it, which no map takes."""
            there = iter(rows)
            found = [None if leaf is None else next(there) for leaf in leaves]
            return keras.tree.pack_sequence_as(data, found)

        before = [
            tf.repeat(tf.convert_to_tensor(variable.value)[None], users, axis=0)
            for variable in self._engine.variables
        ]

        def step(number: tf.Tensor, weights: list[tf.Tensor]) -> Any:
            now = [part[number % (rows // size)] for part in parts]

            def of_user(user: Any) -> list[tf.Tensor]:
                own, (present, *given) = user
                return self._moved(own, filled(given), present, number)

            moved = self._map(of_user, (weights, now))
            return number + 1, [
                tf.ensure_shape(after, weight.shape)
                for after, weight in zip(moved, weights, strict=True)
            ]

        with (
            keeping_variable_scope(),
            without_variable_writes(self._engine.model),
        ):
            _, after = tf.while_loop(
                lambda number, _: number < steps,
                step,
                [tf.constant(0), before],
                maximum_iterations=steps,
            )
        return [
            MaterializedRecords(old - new)
            for old, new in zip(before, after, strict=True)
        ]

    def _moved(
        self,
        weights: list[tf.Tensor],
        data: tuple[Any, Any, Any],
        present: tf.Tensor,
        number: tf.Tensor,
    ) -> list[tf.Tensor]:
        """Returns the weights of one user after one step."""
        x, y, sample_weight = data
        size = present.shape[0]
        values = list(zip(self._engine.variables, weights, strict=True))
        # Each step draws anew: the second word of a state is a counter.
        values += [
            (state, state.value + tf.cast([0, number], state.value.dtype))
            for state in self._seeds
        ]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            with keras.StatelessScope(state_mapping=values):
                outputs = self._engine.call(x)
                losses = example_losses(
                    self._loss, y, outputs, sample_weight, size
                ).total
            kept = tf.where(present, losses, tf.zeros_like(losses))
            count = tf.reduce_sum(tf.cast(present, losses.dtype))
            mean = tf.math.divide_no_nan(tf.reduce_sum(kept), count)
            scaled = mean * tf.cast(self._loss_scale, mean.dtype)
        gradients = tape.gradient(
            scaled,
            weights,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        rate = self._local.learning_rate / self._loss_scale
        return [
            weight
            - tf.cast(rate, weight.dtype) * tf.convert_to_tensor(gradient)
            for weight, gradient in zip(weights, gradients, strict=True)
        ]


def _in_steps(leaf: tf.Tensor, rows: int, size: int) -> tf.Tensor:
    """Returns `[steps of an epoch, users, size, ...]` of `[batch, ...]`."""
    shape = [-1, rows // size, size, *leaf.shape[1:]]
    return tf.experimental.numpy.swapaxes(tf.reshape(leaf, shape), 0, 1)


def _together(function: Callable[..., Any], users: Any) -> Any:
    return map_examples(function, users)


def _in_turn(function: Callable[..., Any], users: Any) -> Any:
    weights, _ = users
    return tf.map_fn(
        function,
        users,
        fn_output_signature=[
            tf.TensorSpec(weight.shape[1:], weight.dtype) for weight in weights
        ],
    )
