"""Events, rounds and the durable ledger that holds them. No TensorFlow."""

from keras_dp.ledger.events.coordinate_bounds import CoordinateBounds
from keras_dp.ledger.events.noise_distribution import NoiseDistribution
from keras_dp.ledger.events.noise_families import (
    CauchyNoise,
    GaussianNoise,
    HyperbolicSecantNoise,
    LaplaceNoise,
    LogisticNoise,
    StudentTNoise,
)
from keras_dp.ledger.events.rounds import (
    DiscreteGaussianSum,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PoissonUserSampling,
    RandomAllocation,
    Round,
    SamplingEvent,
    SumQueryEvent,
    ThresholdedSum,
    TreeSum,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)
from keras_dp.ledger.events.variance_gamma_noise import VarianceGammaNoise
from keras_dp.ledger.privacy_ledger import PrivacyLedger
from keras_dp.ledger.rows.audits import Commitment, Opening, Verdict
from keras_dp.ledger.rows.author import Author
from keras_dp.ledger.rows.charges import Balance, Charge
from keras_dp.ledger.rows.contents import (
    AccountRecord,
    Stated,
    Verification,
)
from keras_dp.ledger.rows.header import Header
from keras_dp.ledger.rows.reservation import Reservation
from keras_dp.ledger.rows.runs import Run, RunRecord
from keras_dp.ledger.rows.statements import Account, CountedRound

__all__ = [
    "Account",
    "AccountRecord",
    "Author",
    "Balance",
    "CauchyNoise",
    "Charge",
    "Commitment",
    "CoordinateBounds",
    "CountedRound",
    "DiscreteGaussianSum",
    "DisjointBatches",
    "EncodedSum",
    "FixedSizeWithReplacement",
    "FixedSizeWithoutReplacement",
    "FullDataset",
    "GaussianNoise",
    "GaussianSum",
    "Header",
    "HyperbolicSecantNoise",
    "LaplaceNoise",
    "LogisticNoise",
    "NoiseDistribution",
    "NonPrivateSum",
    "Opening",
    "PoissonSampling",
    "PoissonUserSampling",
    "PrivacyLedger",
    "RandomAllocation",
    "Reservation",
    "Round",
    "Run",
    "RunRecord",
    "SamplingEvent",
    "Stated",
    "StudentTNoise",
    "SumQueryEvent",
    "ThresholdedSum",
    "TreeSum",
    "TruncatedPoissonSampling",
    "UnverifiedSampling",
    "VarianceGammaNoise",
    "Verdict",
    "Verification",
]
