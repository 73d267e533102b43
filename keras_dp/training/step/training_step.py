"""Compiles the functions of a model, one for each kind of physical batch."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp._nests import Nest
from keras_dp.errors import MetricsNotCompiledError, PrivateTrainingError
from keras_dp.gradients import trained_normalizations
from keras_dp.keras_internals import (
    learning_rate_of,
    optimizers_in,
    rewritten_once,
    trace_of,
    trainable_variables_of,
)
from keras_dp.ledger.rows.run_writer import LARGEST_BLOCK
from keras_dp.optimizers.answer_sizes import Sizes
from keras_dp.optimizers.dp_optimizer import DPOptimizer
from keras_dp.optimizers.private_round import Event
from keras_dp.sampling.draw import RowsOfRecord
from keras_dp.training.advice.condition import judge
from keras_dp.training.advice.of_models import (
    COMPILED_BY_XLA,
    REPLICATED,
    lacking_operation,
)
from keras_dp.training.data.batches import Block, StepBatch, gathered
from keras_dp.training.metrics.example_metrics import set_masks
from keras_dp.training.step.batch_computation import (
    BatchComputation,
    BatchResult,
)
from keras_dp.training.step.engine_check import EngineCheck
from keras_dp.training.step.sample_release import TracedRelease
from keras_dp.training.step.step_parts import StepParts

# XLA compiles one shape, with room for so many rounds.
_ROUNDS_BY_XLA = 64


class _BatchKind(NamedTuple):
    """Which step a batch takes. Each kind has a compiled one.

    A batch that `is_whole` is a whole sample, which its step releases.
    """

    is_whole: bool
    rows: RowsOfRecord


class TrainingStep:
    """The compiled steps of one private model, made for one `compile`.

    Variables hold the sums of a sample that spans several physical batches. A
    sample in a single batch, the ordinary case, needs none. `check` looks at
    the engine on batches.
    """

    def __init__(self, parts: StepParts) -> None:
        """Finds the layers of the model, or refuses it."""
        self._parts, self._by_xla = parts, parts.jit_compile
        self._computation = BatchComputation(parts)
        self.check = EngineCheck(parts, self._computation)
        self._inner = parts.optimizer.inner
        self._rates = _rates_of(self._inner)
        self._fingerprint = parts.optimizer.round.fingerprint()
        # By kind of batch, nest and shapes; and that of the release.
        self._traces: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self._functions: dict[Any, Any] = {}
        self._compiled_cores: dict[_BatchKind, Any] = {}
        optimizer = parts.optimizer
        parts.side_queries.check_names(optimizer.public_metrics())
        self._ahead: TracedRelease | None = None
        replicas = parts.replicas
        if replicas.are_many:
            parts.round.check_sums(self._computation.templates)
            judge(REPLICATED, optimizer, replicas.strategy)
        else:
            self._ahead = TracedRelease(
                optimizer,
                parts.round,
                self._computation.templates,
                self._computation.engine.variables,
                jit_compile=parts.jit_compile,
            )
            self._computation.release = self._ahead

    def check_unchanged(
        self, model: keras.Model, optimizer: DPOptimizer
    ) -> None:
        """Raises if the step was compiled for something else."""
        parts, engine = self._parts, self._computation.engine
        engine.check_layers()
        trained = _ids(engine.variables)
        if (
            optimizer is not parts.optimizer
            or model is not engine.model
            or engine.is_exchanged
            or optimizer.inner is not self._inner
            or _ids(_rates_of(self._inner)) != _ids(self._rates)
            or _ids(model.trainable_variables) != trained
            or _ids(trainable_variables_of(optimizer)) != trained
            or _ids(trained_normalizations(model))
            != _ids(engine.trained_normalizations)
        ):
            raise PrivateTrainingError(
                "The optimizer, its schedule, the model and what is trainable "
                "must be those that the step was built for. Call compile() "
                "again, with a new optimizer if other variables are trained. "
                "For a loop of your own, make new PrivateGradients."
            )
        if optimizer.round.fingerprint() != self._fingerprint:
            raise PrivateTrainingError(
                "The queries and groups must be those that the step was "
                "compiled with: the ledger would say one thing, and the step "
                "do another. Call compile() again, with a new optimizer, or "
                "make new PrivateGradients."
            )

    def close(self) -> None:
        """Waits for the thread that traces the release."""
        if self._ahead is not None:
            self._ahead.close()

    def prepare(
        self,
        batch: StepBatch,
        rows: RowsOfRecord,
        planned: Event,
        *,
        is_first: bool = True,
    ) -> Callable[[], tuple[Mapping[str, Any], Event | None]]:
        """Traces all that a physical batch runs, and runs nothing.

        An error of the model, its loss or its metrics shows here, before the
        ledger holds a round. The result runs the batch. It returns the metrics
        so far, and the event of the release. A part of a sample has neither:
        `release` follows the last one.
        """
        # Each worker draws its own samples, and one may need more batches than
        # another. So the release, which all take together, stands alone there.
        replicas = self._parts.replicas
        is_whole = is_first and batch.ends_sample and replicas.workers == 1
        kind = _BatchKind(is_whole, rows)
        if not is_whole:
            self._computation.make_sums()
        parts: tuple[Any, ...] = (*batch.data, batch.mask)
        # TensorFlow's own search for the trace takes half of the time that a
        # small step spends outside its computation.
        nest = str(keras.tree.map_structure(lambda leaf: leaf is None, parts))
        key = kind, nest, _shapes(keras.tree.flatten(parts))
        if replicas.are_many:
            parts = replicas.parts(batch)
        arguments = (*parts, planned if is_whole else tf.constant(is_first))
        self._function(kind)
        before = len(self._traces)
        function = self._trace(key, kind, arguments)
        if len(self._traces) > before:
            if not is_whole:
                self._release(planned)
            core = self._compiled_cores.get(kind)
            if core and self._goes_on_without_xla(core, arguments):
                del self._functions[kind], self._traces[key]
                del self._compiled_cores[kind]
                return self.prepare(batch, rows, planned, is_first=is_first)

        def run() -> tuple[Mapping[str, Any], Event | None]:
            if is_first:
                self._parts.round.prepare()
            found: tuple[Mapping[str, Any], Event | None]
            found = function(*arguments)
            return found

        return run

    def prepare_block(
        self, block: Block, rows: RowsOfRecord, planned: Event
    ) -> Callable[[np.ndarray], tuple[Mapping[str, Any], Event]]:
        """Traces what a block of rounds runs, and runs nothing; see `prepare`.

        The result takes the places of the records of rounds, and runs these in
        one call. It returns the metrics after the last round, and the event of
        a round: if any differs from the planned one, the first of these.
        """
        self._traced_block(block, rows, planned)

        def run(places: np.ndarray) -> tuple[Mapping[str, Any], Event]:
            whole = block._replace(places=places)
            function, arguments = self._traced_block(whole, rows, planned)
            found: tuple[Mapping[str, Any], Event] = function(*arguments)
            return found

        return run

    def room_for(self, at_once: int) -> int:
        """Returns the most rounds of a block.

        With XLA it is one number, so that any number of rounds runs the same
        program. To compile takes seconds.
        """
        if self._by_xla:
            return _ROUNDS_BY_XLA
        return min(at_once, LARGEST_BLOCK)

    def _traced_block(
        self, block: Block, rows: RowsOfRecord, planned: Event
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Returns the function for blocks of such samples, and its arguments.

        One trace does for every number of rounds. XLA compiles one shape, in
        which the places of rounds that are not run are left over.
        """
        rounds, batch = block.places.shape
        jit, places = self._by_xla, block.places
        if jit:
            more = [(0, block.room - rounds), (0, 0)]
            places = np.pad(places, more, constant_values=-1)
        leaves = block.records.leaves
        arguments = (
            leaves,
            tf.constant(places),
            tf.constant(rounds, tf.int32),
            planned,
        )
        nest, room = str(block.records.structure), block.room if jit else 0
        key = "block", rows, nest, _shapes(leaves), batch, room
        if key in self._traces:
            return self._traces[key], arguments
        spec = tf.TensorSpec([None, batch], places.dtype)
        specs = (leaves, arguments[1] if jit else spec, *arguments[2:])
        for is_whole in (jit, False):
            function, core = self._block_function(
                block.records.structure, rows, is_whole=is_whole
            )
            try:
                self._traces[key] = rewritten_once(trace_of(function, *specs))
            except MetricsNotCompiledError:
                continue
            self._functions[key] = function
            if jit:
                first = leaves, tf.constant(places[0]), planned
                given = arguments if is_whole else first
                if self._goes_on_without_xla(core, given):
                    del self._functions[key], self._traces[key]
                    return self._traced_block(block, rows, planned)
            break
        return self._traces[key], arguments

    def _block_function(
        self, structure: Nest, rows: RowsOfRecord, *, is_whole: bool
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Returns a function that runs a block, and what XLA compiles of it.

        The function outlives a training. It must not hold records. With
        `is_whole` XLA compiles the whole loop, with the metrics.
        """
        computation = self._computation
        packed = functools.partial(keras.tree.pack_sequence_as, structure)

        def one(leaves: Any, places: Any, planned: Event) -> BatchResult:
            data = packed(gathered(leaves, places))
            return computation.of_sample(data, places >= 0, rows, planned)

        def rounds(leaves: Any, places: Any, count: Any, planned: Event) -> Any:
            def one_more(number: tf.Tensor, held: list[Any]) -> Any:
                at = places[number]
                result = core(leaves, at, planned)
                data = packed(gathered(leaves, at))
                self._measure(data, at >= 0, result, must_compile=is_whole)
                if result.released is None:
                    raise RuntimeError("A whole sample must be released.")
                # The first event that is another one than planned is kept.
                is_planned = tf.reduce_all(
                    [
                        tf.reduce_all(one == other)
                        for one, other in zip(held, of_plan, strict=True)
                    ]
                )
                found = [
                    tf.where(is_planned, new, old)
                    for new, old in zip(
                        keras.tree.flatten(result.released[0]),
                        held,
                        strict=True,
                    )
                ]
                return number + 1, found

            of_plan = keras.tree.flatten(planned)
            _, found = tf.while_loop(
                lambda number, held: number < count,
                one_more,
                (tf.constant(0), of_plan),
                parallel_iterations=1,
            )
            return keras.tree.pack_sequence_as(planned, found)

        core, loop = one, rounds
        if is_whole:
            loop = tf.function(rounds, jit_compile=True, autograph=False)
        elif self._by_xla:
            core = tf.function(one, jit_compile=True, autograph=False)

        def whole(leaves: Any, places: Any, count: Any, planned: Event) -> Any:
            event = loop(leaves, places, count, planned)
            return self._logs(), event

        return tf.function(whole, autograph=False), loop if is_whole else core

    def _goes_on_without_xla(self, core: Any, arguments: Any) -> bool:
        """Returns whether XLA was chosen, and cannot compile a function.

        It raises if the caller asked for XLA.
        """
        if not self._parts.xla_is_chosen:
            judge(COMPILED_BY_XLA, core, arguments)
        elif lacking_operation(core, arguments):
            self._by_xla = False
            return True
        return False

    def _measure(
        self,
        data: tuple[Any, Any, Any],
        mask: tf.Tensor | None,
        result: BatchResult,
        *,
        must_compile: bool = False,
    ) -> None:
        """Updates the metrics that `fit` shows with a physical batch."""
        if self._parts.side_queries.metrics is None:
            set_masks(result.outputs, result.masks)
            self._parts.metrics.update(
                data,
                mask,
                result.losses,
                result.outputs,
                must_compile=must_compile,
            )
        elif result.released is not None:
            self._parts.side_queries.track(result.released[1])

    def release(self, planned: Event) -> tuple[Mapping[str, Any], Event | None]:
        """Releases a sample of several batches. Returns metrics and event."""
        return self._release(planned)(planned)

    def _release(self, planned: Event) -> Callable[..., Any]:
        key = "release"
        if key not in self._functions:
            self._functions[key] = self._compiled(self._release_step)
        return self._trace((key,), key, (planned,))

    @property
    def known_of_model(self) -> tuple[str, Mapping[str, str]]:
        """How examples are kept apart, and how gradients follow."""
        return self.check.examples_apart, self._computation.engine.readings

    def answer_sizes(self) -> Sizes | None:
        """Returns how large answers and their noise were, if it is known."""
        sizes = self._computation.sizes
        return None if sizes is None else sizes.read()

    @property
    def trace_count(self) -> int:
        """The number of traces of all steps; 0 if they run eagerly."""
        if self._parts.run_eagerly:
            return 0
        functions = self._functions.values()
        return sum(f.experimental_get_tracing_count() for f in functions)

    def _trace(
        self, key: tuple[Any, ...], name: Any, arguments: tuple[Any, ...]
    ) -> Callable[..., Any]:
        """Returns a function of this name, traced once for each key."""
        function = self._functions[name]
        if self._parts.run_eagerly:
            return function
        if key not in self._traces:
            self._traces[key] = rewritten_once(trace_of(function, *arguments))
        # The trace of one replica does not take the batches of several.
        many = self._parts.replicas.are_many
        return function if many else self._traces[key]

    def _function(self, kind: _BatchKind) -> Any:
        if kind in self._functions:
            return self._functions[kind]

        computation = self._computation
        of = computation.of_sample if kind.is_whole else computation.of_part

        def core(x: Any, y: Any, weight: Any, mask: Any, more: Any) -> Any:
            return of((x, y, weight), mask, kind.rows, more)

        if self._by_xla:
            core = tf.function(core, jit_compile=True, autograph=False)
            self._compiled_cores[kind] = core

        def step(x: Any, y: Any, weight: Any, mask: Any, more: Any) -> Any:
            # XLA does not compile the metrics: shapes of batches without
            # their padding depend on the data.
            result = core(x, y, weight, mask, more)
            self._measure((x, y, weight), mask, result)
            return result.released if kind.is_whole else ()

        self._functions[kind] = self._compiled(step)
        return self._functions[kind]

    def _release_step(
        self, planned: Event
    ) -> tuple[Event, dict[str, tf.Tensor]]:
        """Releases the sums of all replicas, apart from a batch."""
        event, values = self._computation.of_sums(planned)
        if self._parts.side_queries.metrics is not None:
            self._parts.side_queries.track(values)
        return event, values

    def _compiled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a step on all replicas, for metrics and the event."""
        replicas = self._parts.replicas

        def whole(*parts: Any) -> Any:
            if replicas.are_many:
                released = replicas.run(step, parts)
            else:
                released = step(*parts)
            if not released:
                return {}, None
            return self._logs(), released[0]

        if self._parts.run_eagerly:
            return whole
        return tf.function(whole, autograph=False)

    def _logs(self) -> dict[str, Any]:
        """Returns the metrics so far over all replicas."""
        public = self._parts.optimizer.public_metrics()
        if self._parts.side_queries.metrics is not None:
            return {**self._parts.side_queries.logs(), **public}
        return {**self._parts.metrics.result(), **public}


def _rates_of(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """Returns the variables and schedules behind all learning rates."""
    return [learning_rate_of(each) for each in optimizers_in(optimizer)]


def _shapes(leaves: list[Any]) -> tuple[Any, ...]:
    return tuple(
        None if leaf is None else (tuple(leaf.shape), leaf.dtype)
        for leaf in leaves
    )


def _ids(objects: Iterable[Any]) -> list[int]:
    return [id(each) for each in objects]
