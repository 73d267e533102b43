"""Checks the engine on the user's own data before the first release."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from keras_dp.gradients import (
    UNTRACEABLE,
    GradientTrace,
    batch_losses,
    check_holds_no_records,
    example_losses,
    self_check,
    summing,
    without_variable_writes,
)
from keras_dp.keras_internals import (
    counting_one_replica,
    keeping_variable_scope,
    trace_of,
)
from keras_dp.training.data.batches import StepBatch
from keras_dp.training.metrics.example_metrics import masks_of, set_masks
from keras_dp.training.step.batch_computation import BatchComputation
from keras_dp.training.step.step_parts import StepParts


class EngineCheck:
    """Looks for records in the model, and runs the self-check.

    Both are for each size of a physical batch. A size is checked on each of its
    batches until one shows enough: gradients that are finite, and examples that
    differ. Without the self-check two records do.
    """

    def __init__(self, parts: StepParts, computation: BatchComputation) -> None:
        self._parts, self._computation = parts, computation
        self._checked: set[int] = set()
        self._has_warned = False

    @property
    def examples_apart(self) -> str:
        """How it is known that examples are kept apart; empty if nobody knows.

        It is "proven" if the graphs of the model show it for all inputs, and
        "tested" if only the self-check looked at some.
        """
        engine = self._computation.engine
        if engine.is_proven_apart:
            return "proven"
        is_tested = engine.not_shown and self._parts.self_check_examples
        return "tested" if is_tested else ""

    def is_done(self, batch: int) -> bool:
        """Whether batches of this many rows need no check."""
        return batch in self._checked

    def run(self, batch: StepBatch) -> None:
        """Checks the engine on a batch, unless its size was checked before."""
        size = keras.tree.flatten(batch.x)[0].shape[0]
        # A step may have been traced since the last check.
        self._warn_of_what_is_not_shown()
        if size in self._checked:
            return
        examples, records = self._parts.self_check_examples, _records_of(batch)
        if not examples and min(map(len, records)) < 2:
            return
        x, y, tells = _example_batch(batch, examples or 2)
        rows = max(2, size)
        losses_of, splits_of = self._losses_of(y, rows)
        # The check compares losses without sample weights.
        data = (x, y, _each(_ones_like_rows(rows), batch.sample_weight))
        trace = self._trace_of(data)
        shown = self._forward(x, y) if trace is None else trace
        check_holds_no_records(self._parts.model, shown.graph, records)
        if not examples:
            self._settle_hooks(x, rows)
            self._checked.add(size)
            return
        finite = self_check(
            self._computation.engine,
            x,
            losses_of,
            rows,
            splits_of=splits_of,
            gradients_of=self._gradients_of(trace, data),
            examples=examples,
            eagerly=self._parts.run_eagerly,
            bits=self._parts.round.is_proven,
        )
        if finite and tells:
            self._checked.add(size)
        self._warn_of_what_is_not_shown()

    def _settle_hooks(self, x: Any, rows: int) -> None:
        """Finds axes that are as long as the batch by chance.

        The self-check does so where gradients are wrong. A model for batches of
        one size alone cannot be asked.
        """
        try:
            self._computation.engine.settle_hooks_again(x, rows)
        except (ValueError, tf.errors.InvalidArgumentError):
            return

    def _trace_of(self, data: tuple[Any, Any, Any]) -> GradientTrace | None:
        """Returns the trace that the step calls; `None` where it has none."""
        parts = self._parts
        if parts.run_eagerly or parts.replicas.are_many or parts.user_updates:
            return None
        return self._computation.gradients.trace(*data, parts.loss_scale)

    def _forward(self, x: Any, y: Any) -> Any:
        """Returns a trace of the outputs and losses of a batch, with its graph.

        It is for a step without a trace of gradients. A model whose Python
        reads the values of tensors has no graph: then it shows the variables.
        """
        engine = self._computation.engine

        def traced(x: Any, y: Any) -> None:
            rows = keras.tree.flatten(x)[0].shape[0]
            with (
                keeping_variable_scope(),
                without_variable_writes(engine.model),
            ):
                self._computation.losses(y, engine.call(x), None, rows)

        def variables() -> list[tf.Tensor]:
            return [tf.identity(each.value) for each in engine.model.variables]

        try:
            return trace_of(tf.function(traced, autograph=False), x, y)
        except UNTRACEABLE:
            return trace_of(tf.function(variables, autograph=False))

    def _gradients_of(
        self, trace: GradientTrace | None, data: tuple[Any, Any, Any]
    ) -> Any:
        """Returns the argument `gradients_of` of `self_check`.

        Random numbers must move with their examples, and a loss scale makes
        gradients overflow: these models are traced once more for the check.
        """
        scale = self._parts.loss_scale
        if trace is None or scale != 1:
            return None
        if not trace.can_be_called or trace.draws:
            return None
        _, y, weight = data
        gradients = self._computation.gradients

        def of_rows(inputs: Any, order: tf.Tensor) -> Any:
            targets = _each(lambda leaf: tf.gather(leaf, order), y)
            found = gradients.of(inputs, targets, weight, scale)
            made = gradients.trace(inputs, targets, weight, scale)
            return found.gradients, made.graph.get_operations()

        return of_rows

    def _warn_of_what_is_not_shown(self) -> None:
        found = None if self._has_warned else self._computation.engine.not_shown
        if found is None or not self._parts.self_check_examples:
            return
        self._has_warned = True
        logging.warning(
            "That examples are kept apart was tested on this batch, and not "
            "proven for all inputs. The first operation that is not known to "
            "keep them apart: %s. If it makes them interact on other inputs, "
            "such as rare ones, the privacy guarantee does not hold. Look at "
            "what this layer computes over the first axis.",
            found,
        )

    def _losses_of(
        self, y: Any, rows: int
    ) -> tuple[
        Callable[[Any], tf.Tensor],
        Callable[[Any], list[tuple[tf.Tensor, tf.Tensor]]],
    ]:
        """Returns the arguments `losses_of` and `splits_of` of `self_check`."""

        # All passes share one function, so that vectorizing is traced once.
        @tf.function(autograph=False)
        def of_examples(outputs: Any, masks: Any) -> Any:
            set_masks(outputs, masks)
            return self._computation.losses(y, outputs, None, rows)

        def of_batch(outputs: Any) -> Any:
            with counting_one_replica():
                return batch_losses(self._parts.loss, y, outputs)

        @tf.function(autograph=False)
        def splits(outputs: Any, totals: list[tf.Tensor]) -> Any:
            whole = of_batch(outputs)
            if whole.leaves_out:
                # Keras divides by the entries that the whole batch keeps.
                with summing(self._parts.loss):
                    losses = example_losses(
                        self._parts.loss, y, outputs, None, rows
                    )
                    totals = losses.parts or [losses.total]
                    whole = of_batch(outputs)
            return list(zip(totals, whole.values, strict=True))

        def run(function: Any, *arguments: Any) -> Any:
            # TensorFlow warns of functions whose calls trace too often.
            return trace_of(function, *arguments)(*arguments)

        def losses_of(outputs: Any) -> tf.Tensor:
            return run(of_examples, outputs, masks_of(outputs)).total

        def splits_of(outputs: Any) -> list[tuple[tf.Tensor, tf.Tensor]]:
            masks = masks_of(outputs)
            if any(mask is not None for mask in masks):
                # With masks, Keras weighs examples by their unmasked entries.
                outputs = keras.tree.map_structure(tf.identity, outputs)
                masks = [None] * len(masks)
            losses = run(of_examples, outputs, masks)
            return run(splits, outputs, losses.parts or [losses.total])

        return losses_of, splits_of


def _example_batch(batch: StepBatch, examples: int) -> tuple[Any, Any, bool]:
    """Returns inputs and targets for the self-check, and whether they differ.

    They have at least two rows, and differ if two of the first `examples` have
    different inputs.

    The batch keeps its size if that is at least 2, because layers may treat an
    axis as long as the batch specially. Rows of padding get copies of records,
    because many models are not finite on padding (a mean over no tokens).
    Floats that are not finite become 0. Other floats of the inputs get noise,
    so that no two examples are alike. Whole numbers get none, because they may
    be ids or marks of masked entries. They get noise, too, if all examples
    would be alike otherwise, unless a later batch may show different ones.
    """
    leaves = keras.tree.flatten(batch.x)
    size = leaves[0].shape[0]
    real = np.ones(size, bool) if batch.mask is None else batch.mask.numpy()
    records = np.flatnonzero(real) if real.any() else np.arange(size)
    rows = np.resize(records, max(2, size))
    first = min(examples, len(rows))

    def taken(leaf: Any) -> Any:
        if leaf is None:
            return None
        leaf = tf.gather(leaf, rows)
        if leaf.dtype.is_floating:
            leaf = tf.where(tf.math.is_finite(leaf), leaf, tf.zeros_like(leaf))
        return leaf

    given = keras.tree.map_structure(taken, batch.x)
    x = keras.tree.map_structure(_moved, given)
    tells = _are_different(x, first)
    # A sample with one record is followed by others. Other reasons remain:
    # records are all alike, there is none, or there is place for only one.
    if not tells and (real.sum() != 1 or size == 1):
        every = functools.partial(_moved, whole_numbers=True)
        x = keras.tree.map_structure(every, given)
        tells = _are_different(x, first)
    return x, keras.tree.map_structure(taken, batch.y), tells


def _moved(leaf: Any, *, whole_numbers: bool = False) -> Any:
    """Returns a tensor with noise of the size of its entries, if of floats.

    It is their size in most examples. One example that is near the end of the
    range of floats must not overflow the others, which are to be compared.
    """
    if leaf is None or not leaf.dtype.is_floating:
        return leaf
    # TensorFlow would prepare each operation for one use.
    wide = np.asarray(leaf)
    wide = wide.astype(np.promote_types(wide.dtype, np.float32))
    axes = tuple(range(1, wide.ndim))
    generator = np.random.Generator(np.random.Philox(0))
    noise = generator.standard_normal(wide.shape, wide.dtype.type)
    with np.errstate(over="ignore", invalid="ignore"):
        centre = _middle(wide.mean(axes))
        noise *= _middle(np.square(wide - centre).mean(axes)) ** 0.5 + 0.1
        if not whole_numbers:
            noise[wide == np.round(wide)] = 0
        return tf.cast(wide + noise, leaf.dtype)


def _middle(values: np.ndarray) -> Any:
    return np.sort(values)[len(values) // 2]


def _are_different(inputs: Any, count: int) -> bool:
    leaves = keras.tree.flatten(inputs)
    kinds = {
        b"".join(_content(leaf[i]) for leaf in leaves) for i in range(count)
    }
    return len(kinds) > 1


def _content(entry: tf.Tensor) -> bytes:
    """Returns bytes that tell an entry from others of its shape and dtype."""
    if entry.dtype == tf.string:
        return repr(np.asarray(entry).tolist()).encode()
    return bytes(np.asarray(entry).tobytes())


def _each(function: Callable[[tf.Tensor], Any], nest: Any) -> Any:
    return keras.tree.map_structure(
        lambda leaf: None if leaf is None else function(leaf), nest
    )


def _ones_like_rows(rows: int) -> Callable[[tf.Tensor], tf.Tensor]:
    return lambda leaf: tf.ones([rows, *leaf.shape[1:]], leaf.dtype)


def _records_of(batch: StepBatch) -> Any:
    """Returns inputs and targets of a batch, without padding."""
    kept = slice(None) if batch.mask is None else batch.mask.numpy()
    leaves = keras.tree.flatten((batch.x, batch.y))
    return [np.asarray(leaf)[kept] for leaf in leaves if leaf is not None]
