"""Turns the data that `fit` is given into physical batches."""

import functools
import numbers
import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_dp import _check
from keras_dp.ledger import (
    SamplingByContents,
    SamplingEvent,
    UnverifiedSampling,
)
from keras_dp.sampling import Sampler, pipelines
from keras_dp.sampling.draw import EACH_ROW, Pass
from keras_dp.sampling.kinds import check_kinds
from keras_dp.training.data.batches import Batches, StepBatch
from keras_dp.training.data.mixtures import check_keeps_rows_apart


def check_class_weight(class_weight: Any) -> None:
    """Raises unless it maps integer labels to numbers."""
    if isinstance(class_weight, Mapping) and all(
        isinstance(label, numbers.Real) and float(label).is_integer()
        for label in class_weight
    ):
        _check.finite_non_negative(
            **{
                f"class_weight[{label:g}]": weight
                for label, weight in class_weight.items()
            }
        )
        return
    raise TypeError(
        "`class_weight` must map integer labels to numbers, such as {0: 1.0, "
        f"1: 5.0}}. Received: {_check.shown(class_weight)}. Of a list make "
        "dict(enumerate(...)). Choose weights that tell nothing of the records:"
        " their own counts are no public numbers."
    )


def with_class_weights(
    y: Any, sample_weight: Any, class_weight: Mapping[int, float] | None
) -> Any:
    """Returns the weight of each example of a batch, `[batch]`, if it has any.

    The weight follows from the example's own label alone, and multiplies its
    loss before its gradient is clipped. Labels are `[batch]` or `[batch, 1]`;
    of `[batch, classes]` the largest names the label. Other labels have the
    weight 1. So have those that are not finite: an error would tell of a
    record.

    >>> with_class_weights(np.array([0, 2, 1]), None, {2: 5.0}).numpy()
    array([1., 5., 1.], dtype=float32)
    >>> with_class_weights(np.array([2.0, np.nan]), None, {2: 5.0}).numpy()
    array([5., 1.], dtype=float32)
    """
    if class_weight is None:
        return sample_weight
    if sample_weight is not None:
        raise ValueError(
            "`class_weight` must be None where examples have sample weights. "
            f"Received: class_weight={class_weight!r}. Multiply the sample "
            "weights by the weights of the classes."
        )
    labels: Any = np.asarray(y) if hasattr(y, "__array__") else None
    is_single = labels is not None and labels.ndim in (1, 2)
    if not is_single or labels.dtype.kind not in "biuf":
        raise ValueError(
            "`class_weight` must be None for targets other than one label an "
            f"example. Received: class_weight={class_weight!r}. Pass sample "
            "weights with the records."
        )
    if labels.ndim == 2:
        is_column = labels.shape[1] == 1
        labels = labels[:, 0] if is_column else labels.argmax(axis=1)
    found, places = np.unique(np.round(labels), return_inverse=True)
    weights = [
        class_weight.get(int(label), 1.0) if np.isfinite(label) else 1.0
        for label in found
    ]
    return tf.constant(np.array(weights, keras.config.floatx())[places])


_PARTS = ("x", "y", "sample_weight")


class DataAdapter:
    """Says what `fit` iterates over, and how its samples were drawn.

    Attributes:
        rounds_per_pass: The number of rounds with one epoch id; `None` without
            such ids.
        unit: The unit that is drawn: "example" or "user".
        population_size: The number of records; `None` if it is known only by
            reading them.
        rows_of_record: The rows of a batch that make one record.
    """

    def __init__(
        self,
        source: Any,
        class_weight: Mapping[int, float] | None = None,
        unit: str = "example",
    ) -> None:
        self.source = source
        self.class_weight = class_weight
        self._weighed = functools.partial(
            with_class_weights, class_weight=class_weight
        )
        if class_weight is not None:
            check_class_weight(class_weight)
        self.is_sampler = isinstance(source, Sampler)
        self.rounds_per_pass: int | None = None
        self.unit, self.seeded = unit, False
        self.rows_of_record = EACH_ROW
        self.population_size = population_of(source)
        if self.is_sampler:
            self.rounds_per_pass = source.rounds_per_pass
            self.unit, self.seeded = str(source.unit), source.seeded
            self.rows_of_record = source.rows_of_record
            check_keeps_rows_apart(source.functions, "dataset")
        elif isinstance(source, tf.data.Dataset):
            functions = pipelines.check(
                source, "x", is_batched=True, once=False
            )
            check_keeps_rows_apart(functions, "x")
        elif isinstance(source, types.GeneratorType):
            # Keras shows the entries of the lists that it does not take.
            self.source = (_checked(batch) for batch in source)

    @functools.cached_property
    def batches(self) -> Batches:
        """The samples of the sampler, prepared ahead."""
        return Batches(self.source, self._weighed)

    @functools.cached_property
    def physical_batches(self) -> Iterator[StepBatch]:
        """The sampler's endless physical batches, prefetched."""
        return iter(self.batches)

    def close(self) -> None:
        """Ends the iterators of the sampler, and waits for their threads."""
        if "batches" in self.__dict__:
            self.batches.close()

    def sampling_of(self, pass_: Pass | None) -> SamplingEvent:
        """Returns how a sample is drawn; a batch of the caller has no pass."""
        if pass_ is None:
            return self._unverified
        found: SamplingEvent = self.source.sampling_of(pass_)
        return found

    @functools.cached_property
    def _unverified(self) -> SamplingEvent:
        by_contents = bool(pipelines.stages_by_contents(self.source))
        return SamplingByContents() if by_contents else UnverifiedSampling()

    def batch_from(self, data: Any) -> StepBatch:
        """Returns the physical batch that an iterator yielded as `data`."""
        if isinstance(data, StepBatch):
            return data
        given = keras.utils.unpack_x_y_sample_weight(_checked(data))
        x, y, weight = map(_tensors, given)
        weight = self._weighed(y, weight)
        return StepBatch(x, y, weight, None, ends_sample=True)


def population_of(source: Any) -> int | None:
    """Returns the number of records, `None` if only reading them tells."""
    if isinstance(source, Sampler):
        return int(source.population_size)
    leaves = keras.tree.flatten(source)
    if leaves and all(getattr(leaf, "shape", ()) for leaf in leaves):
        return int(leaves[0].shape[0])
    return None


def _checked(batch: Any) -> Any:
    given = keras.utils.unpack_x_y_sample_weight(batch)
    for name, part in zip(_PARTS, given, strict=True):
        check_kinds(part, name)
    return batch


def _tensors(part: Any) -> Any:
    def tensor(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, tf.experimental.Optional):
            return None
        return tf.convert_to_tensor(leaf)

    return keras.tree.map_structure(tensor, part)
