"""Samplers, which draw records and make the event for the ledger.

They do not import TensorFlow.
"""

from keras_dp.sampling.cyclic_batches import CyclicPoissonBatches
from keras_dp.sampling.fixed_size_batches import (
    FixedSizeBatches,
    ShuffledBatches,
)
from keras_dp.sampling.poisson_batches import (
    PoissonBatches,
    RandomMicrobatches,
)
from keras_dp.sampling.record_files import TFRecordShards
from keras_dp.sampling.record_source import RandomAccessSource
from keras_dp.sampling.record_source import RecordSpec as RecordSpec
from keras_dp.sampling.sampler import PhysicalBatch as PhysicalBatch
from keras_dp.sampling.sampler import Sampler
from keras_dp.sampling.sampler import SamplerOptions as SamplerOptions
from keras_dp.sampling.users import UserBatches

__all__ = [
    "CyclicPoissonBatches",
    "FixedSizeBatches",
    "PoissonBatches",
    "RandomAccessSource",
    "RandomMicrobatches",
    "Sampler",
    "ShuffledBatches",
    "TFRecordShards",
    "UserBatches",
]
