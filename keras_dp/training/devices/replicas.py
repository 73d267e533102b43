"""The replicas of a model that a distribution strategy keeps in step."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp.optimizers.private_round import Sample
from keras_dp.training.data.batches import StepBatch


class Replicas:
    """Spreads physical batches over the replicas of a model.

    Attributes:
        count: The number of replicas, of all workers together.
        workers: The number of processes that train together.
        worker: The index of this process. The chief has index 0.
        are_many: Whether steps must be spread, also over the one replica of a
            strategy.
        is_chief: Whether this worker keeps the ledger.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.count = int(strategy.num_replicas_in_sync)
        self.local_count = 1
        self.are_many = self.count > 1 or isinstance(
            strategy,
            (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy),
        )
        if self.are_many:  # The default strategy cannot be asked.
            self.local_count = len(strategy.extended.worker_devices)
        self.workers = self.count // self.local_count
        self.worker = 0
        if self.workers > 1:
            self.worker = _worker_index(strategy.cluster_resolver)
        self.is_chief = self.worker == 0

    def placeholder_data(self) -> Any:
        """Returns an endless data set for Keras, which nobody reads.

        Keras's `fit` asks for one where the loop draws its own samples.
        """
        if not self.are_many:
            return tf.data.Dataset.range(1).repeat()
        return self.strategy.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.range(1).repeat()
        )

    def parts(self, batch: StepBatch) -> tuple[Any, ...]:
        """Returns inputs, targets, weights and mask, a part for each replica.

        The batch comes from `padded`.
        """
        nest = (batch.x, batch.y, batch.sample_weight, batch.mask)
        leaves = keras.tree.flatten(nest)
        count = leaves[0].shape[0]
        size = count // self.local_count

        def spread(leaf: Any) -> Any:
            if leaf is None:
                return None
            part = iter(range(0, count, size))

            def of_replica(context: Any) -> tf.Tensor:
                del context  # TensorFlow asks for the replicas in order.
                start = next(part)
                return leaf[start : start + size]

            distribute = (
                self.strategy.experimental_distribute_values_from_function
            )
            return distribute(of_replica)

        return tuple(
            keras.tree.pack_sequence_as(nest, [spread(x) for x in leaves])
        )

    def whole(self, data: Any) -> Any:
        """Joins the parts of a batch that Keras cut up for this worker."""

        def joined(leaf: Any) -> Any:
            if not isinstance(leaf, tf.distribute.DistributedValues):
                return leaf
            values = self.strategy.experimental_local_results(leaf)
            if isinstance(values[0], tf.experimental.Optional):
                return values[0]
            return tf.concat(values, axis=0)

        return keras.tree.map_structure(joined, data)

    def padded(self, batch: StepBatch, rows: int) -> StepBatch:
        """Adds padding to a batch, so that it can be cut into equal parts.

        The parts hold whole groups of `rows` consecutive rows.
        """
        leaves = keras.tree.flatten(batch.x)
        count = leaves[0].shape[0]
        missing = -count % (self.local_count * rows)
        if not missing:
            return batch

        def filled(leaf: Any) -> Any:
            if leaf is None:
                return None
            zeros = tf.zeros([missing, *leaf.shape[1:]], leaf.dtype)
            return tf.concat([leaf, zeros], axis=0)

        mask = tf.ones([count], tf.bool) if batch.mask is None else batch.mask
        x, y, weight = (
            keras.tree.map_structure(filled, part) for part in batch.data
        )
        return batch._replace(x=x, y=y, sample_weight=weight, mask=filled(mask))

    def run(self, function: Callable[..., Any], parts: tuple[Any, ...]) -> Any:
        """Calls a function on every replica of this worker, each on its part.

        It returns the result of the first replica. The caller uses only values
        that are equal on all of them.
        """
        results = self.strategy.run(function, args=parts)
        return keras.tree.map_structure(self._first, results)

    def _first(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)[0]


def summed(sample: Sample) -> Sample:
    """Returns the sum of the sample states of all replicas, on each of them.

    Every replica calls it once at the end of a sample.
    """
    context = tf.distribute.get_replica_context()
    # TensorFlow needs a device, which a value read from a variable lacks.
    leaves = [tf.identity(leaf) for leaf in keras.tree.flatten(sample)]
    # The tensors of one call travel in one piece, which has one dtype.
    for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        totals = context.all_reduce("SUM", [leaves[i] for i in places])
        for place, total in zip(places, totals, strict=True):
            leaves[place] = total
    return keras.tree.pack_sequence_as(sample, leaves)


def _worker_index(resolver: Any) -> int:
    """Returns the index of this worker, 0 for the chief."""
    jobs = resolver.cluster_spec().as_dict()
    if resolver.task_type == "chief":
        return 0
    return int(resolver.task_id) + len(jobs.get("chief", []))
