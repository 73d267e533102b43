"""What happened: events, rounds and the durable ledger. No TensorFlow."""

from keras_dp.ledger.events import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    SamplingEvent,
    SumQueryEvent,
    UnverifiedSampling,
)
from keras_dp.ledger.header import Header
from keras_dp.ledger.privacy_ledger import (
    CountedRound,
    PrivacyLedger,
    Verification,
)
from keras_dp.ledger.reservation import Reservation

__all__ = [
    "CountedRound",
    "DisjointBatches",
    "FixedSizeWithReplacement",
    "FixedSizeWithoutReplacement",
    "FullDataset",
    "GaussianSum",
    "Header",
    "NonPrivateSum",
    "PoissonSampling",
    "PrivacyLedger",
    "Reservation",
    "Round",
    "SamplingEvent",
    "SumQueryEvent",
    "UnverifiedSampling",
    "Verification",
]
