"""Reads a data set once, and keeps its records so that they can be drawn.

Data sets of TensorFlow and Keras are known by what they have: nothing here
imports either.
"""

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _nests
from keras_dp._nests import Nest, mapped
from keras_dp.sampling import pipelines
from keras_dp.sampling.kinds import check_kinds, is_keras, is_tensorflow
from keras_dp.sampling.pipelines import Function, Stage, kinds_in
from keras_dp.sampling.record_source import RecordSpec, as_arrays

# Records that are read at once where a data set yields one after another.
_AT_ONCE = 256
_PROGRESS_SECONDS = 2.0
# Operations of TensorFlow whose names have one of these draw random numbers.
_RANDOM = ("Random", "Multinomial", "TruncatedNormal")


def check_order(dataset: Any, **ids: Any) -> None:
    """Raises if ids of records cannot belong to what a data set yields.

    Nothing is known of the order of a `PyDataset`.

    Args:
        dataset: Anything.
        **ids: One argument, by its name for messages; `None` without ids.
    """
    ((name, given),) = ids.items()
    if given is None or not is_tensorflow(dataset):
        return
    for stage in Stage(dataset):
        if stage.moves_records:
            raise ValueError(
                f"`{name}` must be in the order in which the data set yields "
                "its records. Received: a data set with the stage "
                f"{stage.kind}, which mixes them. Leave the stage out: "
                "samples are drawn at random anyway."
            )


class FiniteDataset:
    """A data set that yields each record once, in a row of its own.

    Its `functions` are those of its stages. Where TensorFlow is, more can be
    seen of them.
    """

    def __init__(
        self, dataset: Any, batched: bool | None = None, name: str = "dataset"
    ) -> None:
        """Looks at its stages, and reads no record."""
        self._dataset, self._name = dataset, name
        self.functions: list[Function] = []
        if is_keras(dataset):
            if batched is False or dataset.num_batches is None:
                raise ValueError(
                    "`dataset` must be finite, and yield batches, where it is "
                    f"a PyDataset. Received: batched={batched!r}, num_batches="
                    f"{dataset.num_batches!r}."
                )
            self.is_batched = True
            return
        if not is_tensorflow(dataset):
            raise TypeError(
                "`dataset` must be a tf.data.Dataset or a "
                f"keras.utils.PyDataset. Received: {type(dataset).__name__}. "
                "PoissonBatches takes arrays."
            )
        _check_finite(dataset)
        check_kinds(dataset.element_spec, "dataset")
        self.is_batched = (
            _is_batched(dataset) if batched is None else bool(batched)
        )
        self._check_stages()

    def _check_stages(self, records: int | None = None) -> None:
        if is_tensorflow(self._dataset):
            self.functions = pipelines.check(
                self._dataset,
                self._name,
                is_batched=self.is_batched,
                records=records,
            )

    @property
    def record_specs(self) -> Nest:
        """The `tf.TensorSpec`s of a record; a `PyDataset` declares none."""
        if is_keras(self._dataset):
            return None
        specs = self._dataset.element_spec
        if not self.is_batched:
            return specs
        leaves = _nests.leaves(specs)
        return _nests.join(
            specs, (type(each)(each.shape[1:], each.dtype) for each in leaves)
        )

    def batches(self) -> Iterator[Nest]:
        """Returns the elements, with a leading axis for records."""
        dataset = self._dataset
        if is_keras(dataset):
            return (dataset[i] for i in range(dataset.num_batches))
        if not self.is_batched:
            specs = _nests.leaves(dataset.element_spec)
            are_alike = all(each.shape.is_fully_defined() for each in specs)
            # Records that differ in shape would not make a batch.
            dataset = dataset.batch(_AT_ONCE if are_alike else 1)
        elements: Iterator[Nest] = dataset.as_numpy_iterator()
        return elements

    def stored(self, *, verbose: bool = True) -> Nest:
        """Returns the records, as arrays.

        Functions of the data set that hold as many rows are refused then.
        """
        if self._changes_at_random():
            from absl import (
                logging,  # It comes with Keras, as the data set does.
            )

            logging.warning(
                "The data set changes its records at random, such as by an "
                "augmentation. It is read once, so that each record keeps the "
                "one change that it gets now, in all epochs. Leave the random "
                "part out of the data set, and pass it as map= of the sampler, "
                "or as augment= of keras_dp.Records."
            )
        records, size, spoken = 0, 0, time.monotonic()
        parts: list[Nest] = []
        for element in self.batches():
            part = as_arrays(element, "dataset")
            parts.append(part)
            mapped(_check_alike, parts[0], part)
            lengths = {len(leaf) for leaf in _nests.leaves(part)}
            if len(lengths) != 1:
                raise ValueError(
                    "`dataset` must have batches whose arrays are of equal "
                    f"length. Received: lengths {sorted(lengths)!r} in one "
                    "batch. Give every array of a batch one entry for each "
                    "record."
                )
            records += lengths.pop()
            size += sum(int(leaf.nbytes) for leaf in _nests.leaves(part))
            if verbose and time.monotonic() - spoken > _PROGRESS_SECONDS:
                sys.stdout.write(f"\rRead {records:,} records, {_shown(size)}")
                spoken = time.monotonic()
        if not records:
            raise ValueError(
                "`dataset` must hold at least one record. Received: 0 records. "
                "Look at its filters, and at whether it was read to its end "
                "before."
            )
        self._check_stages(records)
        if verbose:
            shapes = ", ".join(
                f"{leaf.dtype}{list(leaf.shape[1:])}"
                for leaf in _nests.leaves(parts[0])
            )
            sys.stdout.write(
                f"\rStored {records:,} records of {shapes}: {_shown(size)} "
                "in memory.\n"
            )
        columns = zip(*map(_nests.leaves, parts), strict=True)
        return _nests.join(parts[0], map(np.concatenate, columns))

    def _changes_at_random(self) -> bool:
        """Returns whether a function of the data set draws random numbers.

        Nothing is known of functions that call Python. A `PyDataset` draws some
        if its first batch differs when it is read twice.
        """
        dataset = self._dataset
        if is_keras(dataset):
            if not dataset.num_batches:
                return False
            pairs = zip(
                *(_nests.leaves(as_arrays(dataset[0])) for _ in range(2)),
                strict=True,
            )
            return not all(one.tobytes() == two.tobytes() for one, two in pairs)
        return any(
            each in kind
            for function in self.functions
            for kind in kinds_in(function.graph)
            for each in _RANDOM
        )


def _check_finite(dataset: Any) -> None:
    if int(dataset.cardinality()) == -1:
        raise ValueError(
            "`dataset` must be finite. Received: an infinite one. Remove "
            "repeat(), or take(...) as many records as there are."
        )
    repeated = [x.inputs for x in Stage(dataset) if "Repeat" in x.kind]
    if repeated:
        remedy = "Remove repeat(): samples are drawn anew in every round."
        if all(x.kind == "Tensor" for inputs in repeated for x in inputs):
            remedy = (
                "It repeats one tensor, as timeseries_dataset_from_array does "
                "to cut windows of it: pass windows as an array, such as "
                "numpy.lib.stride_tricks.sliding_window_view(x, n, 0)[::n]. "
                "Windows that overlap share rows: say whose they are by "
                "Records(unit_ids=..., rows_per_unit=...)."
            )
        raise ValueError(
            "`dataset` must yield each record once. Received: a stage that "
            f"repeats them. {remedy}"
        )


def _is_batched(dataset: Any) -> bool:
    """Refuses what is not known.

    A wrong guess would protect a part of a record, or a batch of them.
    """
    found = Stage(dataset).is_batched
    if found is not None:
        return found
    shapes = [spec.shape for spec in _nests.leaves(dataset.element_spec)]
    known = {shape[0] for shape in shapes if shape.rank and shape[0]}
    if any(shape.rank == 0 for shape in shapes) or len(known) > 1:
        return False
    raise ValueError(
        "`batched` must say whether an element of this data set is a batch of "
        f"records or one record. Received: batched=None, for elements "
        f"{dataset.element_spec!r}. Or end the data set with batch(...)."
    )


def _check_alike(
    path: str, first: npt.NDArray[Any], other: npt.NDArray[Any]
) -> None:
    if not RecordSpec.of(first).fits(other):
        raise ValueError(
            "`dataset` must have records of one shape and dtype. Received: "
            f"{first.shape[1:]} and {first.dtype}, and then "
            f"{other.shape[1:]} and {other.dtype}, at {path}. Resize or pad "
            "them in a map, or with padded_batch(..., padded_shapes=...)."
        )


def _shown(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
