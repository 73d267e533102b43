"""Passes of a model over one batch, each of them from the same state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.checks.rows import has_rows, rows_differ
from keras_dp.gradients.engine import GradientEngine, HookedPass
from keras_dp.keras_internals import layers_of

LossesOf = Callable[[Any], tf.Tensor]
State = list[tuple[keras.Variable, tf.Tensor]]

# Relative to the norm of an example's gradient. Rounding in float32 stays below
# 1e-5, also in ghost norms, which square the condition. A wrong rule is off by
# the order of 1.
_TOLERANCE = 1e-3
# The reference itself is computed in half precision there.
_TOLERANCE_HALF = 5e-2


class Trial(NamedTuple):
    """A model with a batch to try it on.

    Attributes:
        engine: The engine of the model.
        inputs: Leaves `[batch, ...]`.
        losses_of: Maps the model's outputs to losses `[batch]`.
        batch: Number of examples.
        state: The variables that are not trained, with the values that every
            pass starts from. They hold the states of seeds.
    """

    engine: GradientEngine
    inputs: Any
    losses_of: LossesOf
    batch: int
    state: State

    def restore(self) -> None:
        """Sets the state back, so that random numbers are drawn again."""
        restore(self.state)

    def outputs(self, inputs: Any, *, training: bool = True) -> Any:
        """Returns the outputs of the model, called from the state."""
        self.restore()
        return self.engine.call(inputs, training=training)

    def hooked_pass(
        self,
        inputs: Any,
        losses_of: LossesOf | None = None,
        *,
        training: bool = True,
    ) -> HookedPass:
        """Runs the model from the state, and back to the hooks."""
        self.restore()
        return self.engine.hooked_pass(
            inputs, losses_of or self.losses_of, self.batch, training=training
        )

    def differ(
        self,
        one: Any,
        two: Any,
        kept: np.ndarray,
        rows: np.ndarray | None = None,
    ) -> bool:
        """Whether two nests differ in a row.

        Args:
            one: Values of the first pass; see `rows_differ`.
            two: Values of the second pass, a nest of as many leaves.
            kept: Which rows of `two` are compared, `[batch]`.
            rows: Which row of `one` each row of `two` was; the same by default.
        """

        def leaves_differ(one: Any, two: Any) -> bool:
            if rows is not None and has_rows(one, self.batch):
                one = tf.gather(one, rows)
            return rows_differ(one, two, kept, self.tolerance)

        pairs = zip(*map(keras.tree.flatten, (one, two)), strict=True)
        return any(leaves_differ(*pair) for pair in pairs)

    @property
    def tolerance(self) -> float:
        """How far two results may be apart, relative to their size."""
        half = any(
            layer.compute_dtype in {"float16", "bfloat16"}
            for layer in layers_of(self.engine.model)
        )
        return _TOLERANCE_HALF if half else _TOLERANCE


def state_of(model: keras.Model) -> State:
    """Returns all variables that are not trained, with their values."""
    return [
        (variable, tf.identity(variable.value))
        for variable in model.variables
        if not variable.trainable
    ]


def restore(state: State) -> None:
    """Sets variables to their values."""
    for variable, value in state:
        variable.assign(value)
