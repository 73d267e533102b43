"""The sums of a sample that spans several physical batches."""

import tensorflow as tf

from keras_dp.optimizers.private_round import Sample


class SampleSums:
    """Holds the sample state between physical batches, on each replica.

    The sums are secret, because they have no noise yet: neither files of Keras
    nor a `tf.train.Checkpoint` hold them. Each replica has sums of its own.
    """

    def __init__(self, empty: Sample, strategy: tf.distribute.Strategy) -> None:
        """Creates the variables.

        Args:
            empty: The state of an empty sample, a nest of tensors.
            strategy: The strategy of the model.
        """
        self._structure = empty
        with strategy.scope():
            self._variables = [
                tf.Variable(
                    leaf,
                    trainable=False,
                    synchronization=tf.VariableSynchronization.ON_READ,
                    aggregation=tf.VariableAggregation.SUM,
                )
                for leaf in tf.nest.flatten(empty)
            ]

    def read(self) -> Sample:
        """Returns the sums of the calling replica."""
        values = [tf.convert_to_tensor(v) for v in self._variables]
        return tf.nest.pack_sequence_as(self._structure, values)

    def assign(self, sample: Sample) -> None:
        """Replaces the sums of the calling replica."""
        leaves = tf.nest.flatten(sample)
        for variable, leaf in zip(self._variables, leaves, strict=True):
            variable.assign(leaf)
