"""Runs passes of a model over one batch, each from the same state."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.gradients.checks.moved_draws import moved_draws
from keras_dp.gradients.checks.rows import digest, digests_differ
from keras_dp.gradients.engine import GradientEngine, HookedPass
from keras_dp.gradients.records.records import ZeroRecords, all_finite
from keras_dp.gradients.unsupported.variable_writes import (
    without_variable_writes,
)
from keras_dp.keras_internals import (
    keeping_variable_scope,
    layers_of,
    mask_of,
    seed_generators_of,
    set_mask,
    trace_of,
)

LossesOf = Callable[[Any], tf.Tensor]
# Each loss of the examples, `[batch]`, and that loss of the batch, scalar.
Splits = list[tuple[tf.Tensor, tf.Tensor]]
SplitsOf = Callable[[Any], Splits]
State = list[tuple[keras.Variable, tf.Tensor]]
Digests = list[tf.Tensor | None]

# The largest difference, relative to the norm of a gradient. Rounding in
# float32 stays below 1e-5, also in ghost norms. A wrong rule is off by about 1.
_TOLERANCE = 1e-3
# In half precision, the reference itself is rounded by this order.
_TOLERANCE_HALF = 5e-2


class Gradients(NamedTuple):
    """The sum and the norms of the gradients of a batch, from the engine.

    Attributes:
        sums: The weighted sum over examples, one tensor for each variable.
        squares: The squared norms, `[variables, batch]`.
        losses: The losses, `[batch]`.
    """

    sums: list[tf.Tensor]
    squares: tf.Tensor
    losses: tf.Tensor


class DigestedPass(NamedTuple):
    """Digests of one pass, which are compared with those of another.

    Attributes:
        inputs: Digests of the arguments of each call of a hooked layer.
        cotangents: Digests of the cotangents of each call, empty where it has
            sums.
        sums: Digests of the weighted sums of gradients of each call of a layer
            that is called in a way of its own, one list for each row of
            `Trial.weights`. Its cotangents are not arranged by rows.
        outputs: Digests of the outputs of the model.
        losses: Loss of each example, `[batch]`.
        gradients: Sum and norms of the batch, if the model was called as in
            training; else empty. Each such pass has them: a second trace would
            take longer.
        splits: From `Trial.splits_of`; empty where gradients are.
    """

    inputs: list[Digests]
    cotangents: list[Digests]
    sums: list[list[Digests]]
    outputs: Digests
    losses: tf.Tensor
    gradients: Gradients
    splits: Splits


class Trial:
    """A model with a batch to try it on.

    Passes are traced once for each way to call the model, so that their
    tensors are freed as early as those of a step are.

    Attributes:
        engine: The engine of the model.
        inputs: Leaves `[batch, ...]`.
        losses_of: Maps the model's outputs to losses `[batch]`.
        splits_of: Maps the model's outputs to losses of examples and batches.
        batch: Number of examples.
        parts: The part of the batch that each example is in, `[batch]`. No two
            neighbours are in one part.
        weights: Random weights of the examples of each part, and then of all,
            `[parts + 1, batch]`; other examples have 0.
        rows: The examples whose norms are compared: one of each part, in the
            order of the parts, and then others.
        own_weights: The weights of the sum of all gradients, `[batch]`. Those
            of `rows` are larger, so that they are compared as closely as if
            they were alone.
        paths: The path of the layer of each call, once a pass was run.
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
        examples: int = 2,
        eagerly: bool = False,
    ) -> None:
        """Remembers the state of the model.

        Args:
            engine: The engine.
            inputs: The batch.
            losses_of: The losses.
            batch: The number of examples, at least 2.
            splits_of: See the attributes.
            examples: How many norms are compared, at least one of each part.
            eagerly: Whether nothing is traced.
        """
        self.engine, self.inputs = engine, inputs
        self.losses_of, self.splits_of = losses_of, splits_of
        self.batch = batch
        # The variables that are not trained hold the states of seeds.
        self.state = state_of(engine.model)
        self.parts = _parts(batch)
        normal = np.random.Generator(np.random.Philox(0)).standard_normal
        self.weights = normal(batch).astype(np.float32) * np.stack(
            [
                *(self.parts == part for part in range(max(self.parts) + 1)),
                np.ones(batch, bool),
            ]
        )
        self.rows = _rows_in_turn(self.parts)[
            : max(examples, max(self.parts) + 1)
        ]
        self.own_weights = self.weights[-1].copy()
        self.own_weights[self.rows] *= batch**0.5
        self.paths: list[str] = []
        self.has_loops = False
        self._eagerly = eagerly
        self._has_half = any(
            layer.compute_dtype in {"float16", "bfloat16"}
            for layer in layers_of(engine.model)
        )
        # Without generators of seeds, numbers that differ between rows follow
        # from the number of the row.
        self._may_draw = bool(seed_generators_of(engine.model))
        self._functions: dict[bool, Callable[..., DigestedPass]] = {}

    def restore(self) -> None:
        """Sets the state back, so that random numbers are drawn again."""
        restore(self.state)

    def forget(self) -> None:
        """Frees what was traced, whose functions refer to the trial."""
        self._functions.clear()

    def outputs(self, inputs: Any, *, training: bool = True) -> Any:
        """Returns the outputs of the model, called from the state."""
        self.restore()
        return self.engine.call(inputs, training=training)

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the function traced, unless all is run eagerly."""
        if self._eagerly:
            return function
        graph = tf.function(function, autograph=False)
        traces: list[Callable[..., Any]] = []

        def run(*arguments: Any) -> Any:
            # All calls have the same shapes. TensorFlow would warn of functions
            # that are traced once for each model.
            if not traces:
                hooks = self.engine.hooks
                trace = trace_of(graph, *arguments)
                if self.engine.hooks is not hooks:
                    # It has the pass that showed which hooks there must be.
                    again = tf.function(function, autograph=False)
                    trace = trace_of(again, *arguments)
                traces.append(trace)
            with _as_written():
                return traces[0](*arguments)

        return run

    def run(
        self,
        inputs: Any,
        rows: np.ndarray | None = None,
        *,
        alone: int | None = None,
        training: bool = True,
        restores: bool = True,
    ) -> DigestedPass:
        """Runs the model, and back to the hooks.

        Args:
            inputs: Leaves `[batch, ...]`.
            rows: The row of the batch for each row of the inputs. By default,
                it is the same row. The random numbers of layers move along. The
                losses are in the order of the batch.
            alone: The example whose gradient is the sum of all. By default, all
                have their `own_weights`.
            training: Whether the model is called as in training.
            restores: Whether the pass starts from the state.
        """
        if restores:
            self.restore()
        order = np.arange(self.batch) if rows is None else rows
        own = self.own_weights if alone is None else self.only(alone)
        if training not in self._functions:

            def digested(
                inputs: Any,
                order: tf.Tensor,
                weights: tf.Tensor,
                own: tf.Tensor,
            ) -> DigestedPass:
                with contextlib.ExitStack() as stack:
                    stack.enter_context(keeping_variable_scope())
                    if self._may_draw:
                        stack.enter_context(moved_draws(order))
                    if training:
                        stack.enter_context(
                            without_variable_writes(self.engine.model)
                        )
                    return self._digested(
                        inputs,
                        tf.math.invert_permutation(order),
                        weights,
                        own,
                        training=training,
                        public=[order],
                    )

            self._functions[training] = self.traced(digested)
        return self._functions[training](
            inputs,
            tf.constant(order),
            tf.constant(self.weights[:, order]),
            tf.constant(own[order]),
        )

    def only(self, row: int) -> np.ndarray:
        """Returns the weights of one example alone, `[batch]`."""
        return np.eye(self.batch, dtype=np.float32)[row]

    def _digested(
        self,
        inputs: Any,
        back: tf.Tensor,
        weights: tf.Tensor,
        own: tf.Tensor,
        *,
        training: bool,
        public: Sequence[tf.Tensor],
    ) -> DigestedPass:
        """Returns the pass.

        Args:
            inputs: As in `run`.
            back: The row of the inputs of each row of the batch.
            weights: As `weights`, for the rows of the inputs.
            own: The weights of the sum of all gradients, for these rows.
            training: As in `run`. Then the pass also has what belongs to a
                step: gradients, and losses of the batch.
            public: Tensors that hold no data.
        """

        def losses_of(outputs: Any) -> tf.Tensor:
            return self.losses_of(_gathered(outputs, back))

        ran = self.engine.hooked_pass(
            inputs, losses_of, self.batch, training=training, public=public
        )
        self.paths = [call.hook.layer.path for call in ran.calls]
        self._has_half = self._has_half or _computes_in_half(ran)
        self.has_loops = self.has_loops or _has_loops()
        cotangents, sums = [], []
        for place, call in enumerate(ran.calls):
            is_apart = call.hook.observe is not None
            cotangents.append(
                [] if is_apart else self.digests(ran.cotangents[place])
            )
            sums.append(self._sums(ran, place, weights) if is_apart else [])
        gradients = Gradients([], tf.zeros([0, self.batch]), ran.losses)
        splits: Splits = []
        if training:
            gradients = self.gradients(ran, own)
            # Last, because these losses take as much memory as the outputs,
            # which are large if there is a vocabulary.
            with tf.control_dependencies([gradients.squares, *gradients.sums]):
                splits = self.splits_of(_gathered(ran.outputs, back))
        known: dict[int, Digests] = {}
        return DigestedPass(
            [
                self._digests_once((call.args, call.kwargs), known)
                for call in ran.calls
            ],
            cotangents,
            sums,
            self.digests(ran.outputs),
            ran.losses,
            gradients,
            splits,
        )

    def _digests_once(self, nest: Any, known: dict[int, Digests]) -> Digests:
        """Returns the digests of a nest, those of each leaf made once.

        Args:
            nest: The arguments of a layer; several layers may share some.
            known: Digests by the ids of leaves, to which new ones are added.
        """
        leaves = keras.tree.flatten(nest)
        for leaf in leaves:
            if id(leaf) not in known:
                known[id(leaf)] = self.digests(leaf)
        return [each for leaf in leaves for each in known[id(leaf)]]

    def gradients(
        self, ran: HookedPass, weights: tf.Tensor, *, careful: bool = False
    ) -> Gradients:
        """Returns the gradients that follow from a pass.

        Args:
            ran: The pass.
            weights: Weights of the examples in the sum, `[batch]`.
            careful: Whether examples may be not finite.
        """
        # XLA would take longer to compile a pass than the few runs take.
        records = self.engine.records(
            ran.calls, ran.cotangents, self.batch, jit_compile=False
        )
        with self.engine.computing():
            squares = [record.squared_norms() for record in records]
            with all_finite(certainly=not careful):
                sums = [record.weighted_sum(weights) for record in records]
        return Gradients(
            sums,
            tf.stack([tf.cast(square, tf.float64) for square in squares]),
            ran.losses,
        )

    def _sums(
        self, ran: HookedPass, place: int, weights: tf.Tensor
    ) -> list[Digests]:
        found = self.engine.records(
            [ran.calls[place]],
            [ran.cotangents[place]],
            self.batch,
            jit_compile=False,
        )
        records = [each for each in found if not isinstance(each, ZeroRecords)]
        return [
            # The new axis shows `digest` that a sum has no rows of examples.
            self.digests([r.weighted_sum(own)[tf.newaxis] for r in records])
            for own in tf.unstack(weights)
        ]

    def digests(self, nest: Any) -> Digests:
        """Returns the digest of each leaf of a nest."""
        return [digest(leaf, self.batch) for leaf in keras.tree.flatten(nest)]

    def differ(
        self,
        one: Digests,
        two: Digests,
        kept: np.ndarray,
        rows: np.ndarray | None = None,
        tolerance: float | None = None,
    ) -> bool:
        """Whether two lists of digests differ in a row.

        Args:
            one: Digests of the first pass.
            two: Digests of the second pass, as many.
            kept: Which rows of `two` are compared, `[batch]`.
            rows: The row of `one` for each row of `two`. By default, it is the
                same row.
            tolerance: By default, the tolerance of the trial.
        """
        limit = self.tolerance if tolerance is None else tolerance

        def leaves_differ(one: tf.Tensor | None, two: tf.Tensor | None) -> bool:
            if one is None or two is None:
                return False
            if one.shape != two.shape:
                return True
            if rows is not None and len(one) == self.batch:
                one = tf.gather(one, rows)
            return digests_differ(one, two, kept, limit)

        return any(leaves_differ(*pair) for pair in zip(one, two, strict=True))

    @property
    def tolerance(self) -> float:
        """How far two results may be apart, relative to their size."""
        return _TOLERANCE_HALF if self._has_half else _TOLERANCE


def _computes_in_half(ran: HookedPass) -> bool:
    """Whether a layer casts to half precision itself, as far as can be seen."""
    tensors = [tensor for call in ran.calls for tensor in call.outputs]
    if not tf.executing_eagerly():
        graph = tf.compat.v1.get_default_graph()
        operations = graph.get_operations()
        tensors = [tensor for each in operations for tensor in each.outputs]
    return any(t.dtype in {tf.float16, tf.bfloat16} for t in tensors)


def _has_loops() -> bool:
    """Whether the present graph has loops."""
    if tf.executing_eagerly():
        return False
    operations = tf.compat.v1.get_default_graph().get_operations()
    return any(each.type in {"While", "StatelessWhile"} for each in operations)


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
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


def _parts(batch: int) -> np.ndarray:
    """Returns the part of each example: random, but not its neighbour's."""
    if batch == 2:
        return np.arange(2)
    steps = np.random.SeedSequence(0).generate_state(batch) % 2 + 1
    steps[:3] = 1  # No part is empty.
    return np.cumsum(steps) % 3


def _rows_in_turn(parts: np.ndarray) -> np.ndarray:
    """Returns the examples, of each part in turn, from the ends to the middle.

    Args:
        parts: The part of each example, `[batch]`.
    """
    last = len(parts) - 1
    inwards = np.minimum(np.arange(len(parts)), last - np.arange(len(parts)))
    inwards = np.argsort(inwards, kind="stable")
    before = [
        np.count_nonzero(parts[inwards[:place]] == parts[row])
        for place, row in enumerate(inwards)
    ]
    return inwards[np.lexsort((parts[inwards], np.array(before)))]


def _gathered(outputs: Any, rows: tf.Tensor) -> Any:
    """Returns the rows of all outputs, with those of their Keras masks."""

    def gathered(leaf: Any) -> Any:
        taken = tf.gather(leaf, rows)
        mask = mask_of(leaf)
        if mask is not None:
            set_mask(taken, tf.gather(mask, rows))
        return taken

    return keras.tree.map_structure(gathered, outputs)


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
