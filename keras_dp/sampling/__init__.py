"""How records are drawn, and the event that proves it. No TensorFlow."""

from keras_dp.sampling.array_shards import ArrayShards
from keras_dp.sampling.microbatches import (
    FixedMicrobatches,
    RandomMicrobatches,
)
from keras_dp.sampling.poisson_batches import PhysicalBatch, PoissonBatches
from keras_dp.sampling.record_source import RandomAccessSource, RecordSpec
from keras_dp.sampling.tfrecord_shards import TFRecordShards

__all__ = [
    "ArrayShards",
    "FixedMicrobatches",
    "PhysicalBatch",
    "PoissonBatches",
    "RandomAccessSource",
    "RandomMicrobatches",
    "RecordSpec",
    "TFRecordShards",
]
