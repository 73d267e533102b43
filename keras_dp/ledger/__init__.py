"""Events, rounds and the durable ledger that holds them. No TensorFlow."""

from keras_dp.ledger.events.coordinate_bounds import (
    CoordinateBounds as CoordinateBounds,
)
from keras_dp.ledger.events.noise_distribution import NoiseDistribution
from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)
from keras_dp.ledger.events.rounds import (
    CorrelatedSum,
    CyclicPoissonSampling,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PoissonUserSampling,
    ProvenGaussianSum,
    Round,
    SamplingByContents,
    SumQueryEvent,
    ThresholdedSum,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.ledger.events.rounds import CountedRound as CountedRound
from keras_dp.ledger.events.rounds import SamplingEvent as SamplingEvent
from keras_dp.ledger.events.selection import (
    Selection,
    TruncatedNegativeBinomial,
)
from keras_dp.ledger.events.strategies import BandedToeplitz, BinaryTree
from keras_dp.ledger.events.strategies import Strategy as Strategy
from keras_dp.ledger.privacy_ledger import PrivacyLedger
from keras_dp.ledger.rows.charges import Charge as Charge
from keras_dp.ledger.rows.contents import AccountRecord as AccountRecord
from keras_dp.ledger.rows.contents import RunRecord as RunRecord
from keras_dp.ledger.rows.contents import SealRecord as SealRecord
from keras_dp.ledger.rows.contents import Verification as Verification
from keras_dp.ledger.rows.header import Header as Header
from keras_dp.ledger.rows.run_writer import Allowance as Allowance
from keras_dp.ledger.rows.run_writer import Forecast as Forecast
from keras_dp.ledger.rows.run_writer import Limits as Limits
from keras_dp.ledger.rows.run_writer import RunWriter
from keras_dp.ledger.rows.statements import Account

__all__ = [
    "Account",
    "BandedToeplitz",
    "BinaryTree",
    "CorrelatedSum",
    "CyclicPoissonSampling",
    "DisjointBatches",
    "EncodedSum",
    "FixedSizeWithoutReplacement",
    "FullDataset",
    "GaussianNoise",
    "GaussianSum",
    "LaplaceNoise",
    "NoiseDistribution",
    "NonPrivateSum",
    "PoissonSampling",
    "PoissonUserSampling",
    "PrivacyLedger",
    "ProvenGaussianSum",
    "Round",
    "RunWriter",
    "SamplingByContents",
    "Selection",
    "StudentTNoise",
    "SumQueryEvent",
    "ThresholdedSum",
    "TruncatedNegativeBinomial",
    "TruncatedPoissonSampling",
    "UnverifiedSampling",
]
