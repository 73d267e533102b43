"""Events, rounds and the durable ledger that holds them. No TensorFlow."""

from keras_dp.ledger.audits import Commitment, Opening, Verdict
from keras_dp.ledger.author import Author
from keras_dp.ledger.charges import Balance, Charge
from keras_dp.ledger.contents import (
    AccountRecord,
    CommitmentRecord,
    SealRecord,
    VerdictRecord,
    Verification,
)
from keras_dp.ledger.coordinate_bounds import CoordinateBounds
from keras_dp.ledger.events import (
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
from keras_dp.ledger.header import Header
from keras_dp.ledger.noise_distribution import NoiseDistribution
from keras_dp.ledger.noise_families import (
    CauchyNoise,
    GaussianNoise,
    HyperbolicSecantNoise,
    LaplaceNoise,
    LogisticNoise,
    StudentTNoise,
)
from keras_dp.ledger.privacy_ledger import PrivacyLedger
from keras_dp.ledger.reservation import Reservation
from keras_dp.ledger.runs import Run, RunRecord
from keras_dp.ledger.statements import Account, CountedRound
from keras_dp.ledger.variance_gamma_noise import VarianceGammaNoise

__all__ = [
    "Account",
    "AccountRecord",
    "Author",
    "Balance",
    "CauchyNoise",
    "Charge",
    "Commitment",
    "CommitmentRecord",
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
    "SealRecord",
    "StudentTNoise",
    "SumQueryEvent",
    "ThresholdedSum",
    "TreeSum",
    "TruncatedPoissonSampling",
    "UnverifiedSampling",
    "VarianceGammaNoise",
    "Verdict",
    "VerdictRecord",
    "Verification",
]
