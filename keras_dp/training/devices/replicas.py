"""The replicas of a model that a distribution strategy keeps in step."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_dp.training.data_adapter import PhysicalStep


class Replicas:
    """Spreads physical batches over replicas, and sums what they computed.

    Attributes:
        strategy: The model's, TensorFlow's default one without a scope.
        count: Number of replicas, of all workers together.
        local_count: Number of replicas of this worker.
        workers: Number of processes that train together.
        worker: Index of this one.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.count = int(strategy.num_replicas_in_sync)
        self.local_count = 1
        if self.are_many:  # The default strategy cannot be asked.
            self.local_count = len(strategy.extended.worker_devices)
        self.workers = self.count // self.local_count
        self.worker = 0
        if self.workers > 1:
            self.worker = _worker_index(strategy.cluster_resolver)

    @property
    def are_many(self) -> bool:
        """Whether steps must be spread: even over one replica, if mirrored."""
        return self.count > 1 or isinstance(
            self.strategy, tf.distribute.MirroredStrategy
        )

    @property
    def is_chief(self) -> bool:
        """Whether this worker keeps the ledger."""
        return self.worker == 0

    def nothing(self) -> tf.distribute.DistributedDataset:
        """Returns what `fit` iterates over where the loop has its own input."""
        return self.strategy.distribute_datasets_from_function(
            lambda context: tf.data.Dataset.range(1).repeat()
        )

    def parts(self, step: PhysicalStep, rows: int = 1) -> tuple[Any, ...]:
        """Returns inputs, targets, weights and mask, one part a replica.

        Args:
            step: A physical batch of this worker.
            rows: Consecutive rows that must stay together.

        Raises:
            ValueError: The batch cannot be cut into equal parts.
        """
        nest = (step.x, step.y, step.sample_weight, step.mask)
        leaves = keras.tree.flatten(nest)
        batch = leaves[0].shape[0]
        if batch % (self.local_count * rows):
            raise ValueError(
                "`physical_batch_size` must be a multiple of the number of "
                f"replicas, {self.local_count}, times the rows of a "
                f"microbatch, {rows}. "
                f"Received: physical_batch_size={batch!r}."
            )
        size = batch // self.local_count

        def spread(leaf: Any) -> Any:
            if leaf is None:
                return None
            part = iter(range(0, batch, size))

            def of_replica(context: Any) -> tf.Tensor:
                del context  # Asked for the replicas of this worker, in order.
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
        """Returns the batch that Keras cut into parts, in one piece."""

        def joined(leaf: Any) -> Any:
            if not isinstance(leaf, tf.distribute.DistributedValues):
                return leaf
            values = self.strategy.experimental_local_results(leaf)
            if isinstance(values[0], tf.experimental.Optional):
                return values[0]
            return tf.concat(values, axis=0)

        return tf.nest.map_structure(joined, data)

    def padded(self, step: PhysicalStep) -> PhysicalStep:
        """Returns the batch with padding, so that it can be cut equally."""
        leaves = keras.tree.flatten(step.x)
        batch = leaves[0].shape[0]
        missing = -batch % self.local_count
        if not missing:
            return step

        def filled(leaf: Any) -> Any:
            if leaf is None:
                return None
            zeros = tf.zeros([missing, *leaf.shape[1:]], leaf.dtype)
            return tf.concat([leaf, zeros], axis=0)

        mask = tf.ones([batch], tf.bool) if step.mask is None else step.mask
        x, y, weight = (
            keras.tree.map_structure(filled, part) for part in step.data
        )
        return step._replace(x=x, y=y, sample_weight=weight, mask=filled(mask))

    def run(self, function: Callable[..., Any], parts: tuple[Any, ...]) -> Any:
        """Calls a function on every replica of this worker, each on its part.

        Returns:
            The result of the first replica. The caller uses only values that
            are equal on all of them.
        """
        results = self.strategy.run(function, args=parts)
        return tf.nest.map_structure(self._first, results)

    def _first(self, value: Any) -> Any:
        return self.strategy.experimental_local_results(value)[0]


def summed(sample: Any) -> Any:
    """Returns the sum of the sample states of all replicas, on each of them.

    Called on every replica at the end of a sample, once.
    """
    context = tf.distribute.get_replica_context()
    # A value read from a variable has no device, and TensorFlow looks for one.
    leaves = [tf.identity(leaf) for leaf in tf.nest.flatten(sample)]
    # Tensors travel in one piece, which has one type.
    for dtype in sorted({leaf.dtype for leaf in leaves}, key=str):
        places = [i for i, leaf in enumerate(leaves) if leaf.dtype == dtype]
        totals = context.all_reduce("SUM", [leaves[i] for i in places])
        for place, total in zip(places, totals, strict=True):
            leaves[place] = total
    return tf.nest.pack_sequence_as(sample, leaves)


def _worker_index(resolver: Any) -> int:
    """Returns 0 for the chief, and the place of a worker among the others."""
    jobs = resolver.cluster_spec().as_dict()
    if resolver.task_type == "chief":
        return 0
    return int(resolver.task_id) + len(jobs.get("chief", []))
