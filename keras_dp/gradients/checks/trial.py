"""Runs passes of a model over one batch, each from the same state."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.capture.repeated_draws import moved_draws
from keras_dp.gradients.engine import GradientEngine, PerExampleGradients
from keras_dp.gradients.operations import LOOPS
from keras_dp.gradients.records.reductions import all_finite
from keras_dp.gradients.unsupported.variable_writes import (
    without_variable_writes,
)
from keras_dp.keras_internals import (
    keeping_variable_scope,
    layers_of,
    mask_of,
    seed_generators_of,
    set_mask,
)

LossesOf = Callable[[Any], tf.Tensor]
# Each loss of the examples, `[batch]`, and that loss of the batch, scalar.
Splits = list[tuple[tf.Tensor, tf.Tensor]]
SplitsOf = Callable[[Any], Splits]
# Maps inputs, and the example of each row, to gradients of the rows, and to the
# operations that computed them.
GradientsOf = Callable[
    [Any, tf.Tensor], tuple[PerExampleGradients, list[tf.Operation]]
]
State = list[tuple[keras.Variable, tf.Tensor]]

# The largest difference, relative to the norm of a gradient. Rounding in
# float32 stays below 1e-5, also in ghost norms. A wrong rule is off by about 1.
_TOLERANCE = 1e-3
# In half precision, the reference itself is rounded by this order.
_TOLERANCE_HALF = 5e-2


class TrialPass(NamedTuple):
    """The losses and gradients that the engine gives for a batch.

    Examples are in the order of the batch, wherever their rows were.

    Attributes:
        losses: `[batch]`.
        squares: The squared norms of the gradients, `[variables, batch]`.
        sums: The weighted sum of the gradients, one tensor for each variable.
    """

    losses: tf.Tensor
    squares: tf.Tensor
    sums: list[tf.Tensor]

    @property
    def finite(self) -> np.ndarray:
        """Whether loss and gradient of each example are finite, `[batch]`."""
        squares = np.isfinite(self.squares).all(axis=0)
        return np.isfinite(self.losses) & squares


class Trial:
    """A model with a batch to try it on.

    Passes are traced once for each way to call the model, so that their tensors
    are freed as early as those of a step are.

    Attributes:
        rows: The examples whose norms are compared.
        weights: Random weights of the examples, `[batch]`. Those of `rows` are
            larger, so that they are compared as closely as if they were alone.
        has_loops: Whether a traced pass showed that the model runs loops.
    """

    def __init__(
        self,
        engine: GradientEngine,
        inputs: Any,
        losses_of: LossesOf,
        batch: int,
        *,
        splits_of: SplitsOf = lambda _: [],
        gradients_of: GradientsOf | None = None,
        examples: int = 2,
        eagerly: bool = False,
    ) -> None:
        self.engine, self.inputs = engine, inputs
        self.losses_of, self.splits_of = losses_of, splits_of
        self._gradients_of = gradients_of
        self.batch = batch
        # The variables that are not trained hold the states of seeds.
        self.state = state_of(engine.model)
        self.rows = _from_the_ends(batch)[:examples]
        normal = np.random.Generator(np.random.Philox(0)).standard_normal
        self.weights = normal(batch).astype(np.float32)
        self.weights[self.rows] *= batch**0.5
        self.has_loops = False
        self._eagerly = eagerly
        self._has_half = any(
            layer.compute_dtype in {"float16", "bfloat16"}
            for layer in layers_of(engine.model)
        )
        # Without generators of seeds, numbers that differ between rows follow
        # from the number of the row.
        self._may_draw = bool(seed_generators_of(engine.model))
        self._passes: dict[bool, Callable[..., TrialPass]] = {}

    def restore(self) -> None:
        """Sets the state back, so that random numbers are drawn again."""
        restore(self.state)

    def forget(self) -> None:
        """Frees what was traced, whose functions refer to the trial."""
        self._passes.clear()

    def outputs(self, inputs: Any, *, training: bool = True) -> Any:
        """Returns the outputs of the model, called from the state."""
        self.restore()
        return self.engine.call(inputs, training=training)

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function traced, unless all is run eagerly."""
        if self._eagerly:
            return function
        traces: list[Callable[..., Any]] = []

        def run(*arguments: Any) -> Any:
            # All calls have the same shapes. TensorFlow would warn of functions
            # that are traced once for each model.
            if not traces:
                traces.append(self.engine.trace(function, *arguments))
            with as_written():
                return traces[0](*arguments)

        return run

    def run(
        self,
        inputs: Any,
        weights: np.ndarray,
        rows: np.ndarray | None = None,
        *,
        training: bool = True,
        restores: bool = True,
    ) -> TrialPass:
        """Runs the model, and back to the hooks.

        `weights` are those of the examples in the sum, `[batch]`. `rows` has
        the example of each row of the inputs. By default, each is in its own
        row. The random numbers of layers move along. A pass that does not
        restore goes on from the state of the one before.
        """
        if restores:
            self.restore()
        order = np.arange(self.batch) if rows is None else rows
        if training not in self._passes:

            def run(
                inputs: Any, order: tf.Tensor, weights: tf.Tensor
            ) -> TrialPass:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(keeping_variable_scope())
                    if self._may_draw:
                        stack.enter_context(moved_draws(order))
                    if training:
                        stack.enter_context(
                            without_variable_writes(self.engine.model)
                        )
                    return self._pass(inputs, order, weights, training=training)

            self._passes[training] = self.traced(run)
        return self._passes[training](
            inputs, tf.constant(order), tf.constant(weights[order])
        )

    def _pass(
        self,
        inputs: Any,
        order: tf.Tensor,
        weights: tf.Tensor,
        *,
        training: bool,
    ) -> TrialPass:
        back = tf.math.invert_permutation(order)
        if training and self._gradients_of is not None:
            found, operations = self._gradients_of(inputs, order)
            records = found.records
            losses = tf.gather(found.losses, back)
        else:
            ran = self.engine.hooked_pass(
                inputs,
                lambda outputs: self.losses_of(rows_of(outputs, back)),
                self.batch,
                training=training,
                public=[order],
            )
            losses = ran.losses
            operations = _operations()
            kept = [each for call in ran.calls for each in call.outputs]
            self._has_half = self._has_half or _in_half(kept)
            # XLA would take longer to compile a pass than the few runs take.
            records = self.engine.records(
                ran.calls, self.batch, jit_compile=False
            )
        computed = [each for one in operations for each in one.outputs]
        self._has_half = self._has_half or _in_half(computed)
        self.has_loops = self.has_loops or any(
            each.type in LOOPS for each in operations
        )
        with self.engine.computing(), all_finite():
            squares = [each.squared_norms() for each in records]
            sums = [each.weighted_sum(weights) for each in records]
        norms = tf.stack([tf.cast(each, tf.float64) for each in squares])
        norms = tf.gather(norms, back, axis=1)
        return TrialPass(losses, norms, sums)

    @property
    def tolerance(self) -> float:
        """How far two results may be apart, relative to their size."""
        return _TOLERANCE_HALF if self._has_half else _TOLERANCE


def _operations() -> list[tf.Operation]:
    if tf.executing_eagerly():
        return []
    operations: list[tf.Operation] = (
        tf.compat.v1.get_default_graph().get_operations()
    )
    return operations


def _in_half(tensors: Iterable[tf.Tensor]) -> bool:
    """Whether a layer casts to half precision itself, as far as can be seen."""
    return any(each.dtype in {tf.float16, tf.bfloat16} for each in tensors)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Runs graphs as they were traced.

    Rewriting them takes longer than the few runs of a check. TensorFlow 2.21
    also fails to rewrite some graphs that compute with the number of a row.
    """
    options = tf.config.optimizer
    off = "disable_meta_optimizer"
    before = options.get_experimental_options().get(off, False)
    options.set_experimental_options({off: True})
    try:
        yield
    finally:
        options.set_experimental_options({off: before})


def _from_the_ends(batch: int) -> np.ndarray:
    """Returns the examples, from the ends of the batch to its middle."""
    rows = np.arange(batch)
    return np.argsort(np.minimum(rows, batch - 1 - rows), kind="stable")


def rows_of(nest: Any, rows: Any) -> Any:
    """Returns the rows of all tensors, with those of their Keras masks."""

    def gathered(leaf: Any) -> Any:
        taken = tf.gather(leaf, rows)
        mask = mask_of(leaf)
        if mask is not None:
            set_mask(taken, tf.gather(mask, rows))
        return taken

    return keras.tree.map_structure(gathered, nest)


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
