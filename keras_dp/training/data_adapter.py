"""From what `fit` is given to physical batches of one sample."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_dp.ledger import Round, SamplingEvent, UnverifiedSampling
from keras_dp.optimizers.record_batch import Grouping
from keras_dp.sampling import Sampler
from keras_dp.sampling.sampler import Pass
from keras_dp.training.class_weights import with_class_weights
from keras_dp.training.sampled_batches import SampledBatches, mapped_structure


class PhysicalStep(NamedTuple):
    """One physical batch.

    Attributes:
        x: Inputs, leaves `[batch, ...]`.
        y: Targets, or `None`.
        sample_weight: Weights, or `None`.
        mask: Shape `[batch]`, false for padding; `None` if there is none.
        ends_sample: Whether the sample ends here, and is released.
        sampling: How the sample was drawn: unverified unless the library drew
            it.
        next_sampling: How that of the next round will be.
        rounds_left: Rounds of the pass that follow; `None` without passes.
    """

    x: Any
    y: Any
    sample_weight: Any
    mask: tf.Tensor | None
    ends_sample: bool
    sampling: SamplingEvent = UnverifiedSampling()
    next_sampling: SamplingEvent = UnverifiedSampling()
    rounds_left: int | None = None

    @property
    def data(self) -> tuple[Any, Any, Any]:
        """Inputs, targets and weights: a batch of data in Keras's words."""
        return self.x, self.y, self.sample_weight


class DataAdapter:
    """Says what `fit` iterates over, and how its samples were drawn.

    Attributes:
        source: The argument of `fit`.
        class_weight: The weight of each label, for what a sampler draws; Keras
            itself weights the rest.
    """

    def __init__(
        self, source: Any, class_weight: Mapping[int, float] | None = None
    ) -> None:
        self.source = source
        self.class_weight = class_weight if self.is_sampler else None

    @property
    def is_sampler(self) -> bool:
        """Whether the library draws the samples."""
        return isinstance(self.source, Sampler)

    @property
    def rounds_per_pass(self) -> int | None:
        """Rounds of one epoch of the ledger, `None` if it knows no epochs."""
        return self.source.rounds_per_pass if self.is_sampler else None

    def coming(self, planned: Round, rounds: int) -> list[tuple[Round, int]]:
        """Returns the rounds that come, each with its count.

        Args:
            planned: The first of them, which begins a pass if there are any.
            rounds: How many.
        """
        if self.rounds_per_pass is None:
            return [(planned, rounds)]
        sampling: Any = planned.sampling
        events = self.source.planned(rounds, Pass.of_id(sampling.epoch_id))
        return [
            (dataclasses.replace(planned, sampling=each), count)
            for each, count in events
        ]

    @property
    def unit(self) -> str:
        """The unit that is drawn: "example", "microbatch" or "user"."""
        return str(self.source.unit) if self.is_sampler else "example"

    def check_targets(self) -> None:
        """Raises for a sampler whose records hold no targets.

        Raises:
            ValueError: The message says how to give them.
        """
        if not self.is_sampler:
            return
        structure = mapped_structure(self.source)
        _, y, _ = keras.utils.unpack_x_y_sample_weight(structure)
        if y is None:
            raise ValueError(
                "`x` must be a sampler of (inputs, targets) or (inputs, "
                "targets, sample_weight), for the loss is of the targets. "
                f"Received: records of {structure!r}. An autoencoder takes "
                "PoissonBatches((x, x), ...), which needs no second copy."
            )

    @property
    def population_size(self) -> int | None:
        """Number of records, `None` if it is not known without reading them."""
        if self.is_sampler:
            return int(self.source.population_size)
        leaves = keras.tree.flatten(self.source)
        if leaves and all(hasattr(leaf, "shape") for leaf in leaves):
            return int(leaves[0].shape[0])
        return None

    @property
    def seeded(self) -> bool:
        """Whether the caller chose the seed of the draws."""
        return self.is_sampler and self.source.seeded

    @property
    def grouping(self) -> Grouping | None:
        """How examples make microbatches; `None` if each is a record."""
        if not self.is_sampler or self.source.microbatches is None:
            return None
        groups = self.source.microbatches
        return Grouping(
            groups.rows, groups.size, groups.bound_factor, groups.averages
        )

    def dataset(self) -> tf.data.Dataset:
        """Returns the sampler's endless physical batches, prefetched."""
        return SampledBatches(self.source)

    def step_from(self, data: Any) -> PhysicalStep:
        """Returns the physical batch in what the iterator yielded."""
        if not self.is_sampler:
            x, y, weight = map(
                _tensors, keras.utils.unpack_x_y_sample_weight(data)
            )
            return PhysicalStep(x, y, weight, mask=None, ends_sample=True)
        leaves, mask, ends_sample, numbers = data
        of = Pass(*map(int, numbers))
        records = keras.tree.pack_sequence_as(
            mapped_structure(self.source), list(leaves)
        )
        x, y, weight = keras.utils.unpack_x_y_sample_weight(records)
        if self.class_weight is not None:
            weight = with_class_weights(y, weight, self.class_weight)
        return PhysicalStep(
            x,
            y,
            weight,
            mask,
            bool(ends_sample),
            self.source.sampling_of(of),
            self.source.sampling_of(of.next_round()),
            None if self.rounds_per_pass is None else of.rounds_left,
        )


def example_batch(step: PhysicalStep, examples: int) -> tuple[Any, Any, bool]:
    """Returns inputs and targets for the self-check, and whether they tell.

    The batch keeps its size, for layers may treat an axis as long as the batch
    specially. Its records stand in the rows of padding, too, where many models
    are not finite (a mean over no tokens). Where floats are not finite they are
    0. Inputs get noise, so that no two examples are alike, but for their whole
    numbers: those may be ids, or mark what is masked.

    Args:
        step: A physical batch.
        examples: How many examples will be compared.

    Returns:
        Inputs and targets, leaves `[max(2, batch), ...]`, and whether two
        records with different inputs are among the first `examples`.
    """
    leaves = keras.tree.flatten(step.x)
    size = leaves[0].shape[0]
    real = np.ones(size, bool) if step.mask is None else step.mask.numpy()
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

    given = keras.tree.map_structure(taken, step.x)
    x = keras.tree.map_structure(_moved, given)
    tells = _are_different(x, first)
    # Records that are all alike, or none, or no place for a second one.
    if not tells and (real.sum() != 1 or size == 1):
        every = functools.partial(_moved, whole_numbers=True)
        x = keras.tree.map_structure(every, given)
        tells = _are_different(x, first)
    return x, keras.tree.map_structure(taken, step.y), tells


def _moved(leaf: Any, *, whole_numbers: bool = False) -> Any:
    """Returns a tensor of floats with noise of the size of its entries.

    Args:
        leaf: A tensor, or `None`.
        whole_numbers: Whether they get noise, too.
    """
    if leaf is None or not leaf.dtype.is_floating:
        return leaf
    noise = tf.random.stateless_normal(leaf.shape, [0, 0], alg="philox")
    noise = tf.cast(noise, leaf.dtype) * (tf.math.reduce_std(leaf) + 0.1)
    if not whole_numbers:
        noise = tf.where(leaf == tf.round(leaf), tf.zeros_like(noise), noise)
    return leaf + noise


def _are_different(inputs: Any, count: int) -> bool:
    """Whether two of the first examples are not alike."""
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


def _tensors(part: Any) -> Any:
    def tensor(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, tf.experimental.Optional):
            return None
        return tf.convert_to_tensor(leaf)

    return keras.tree.map_structure(tensor, part)
