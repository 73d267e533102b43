"""Auditing: does a training keep the promise that its ledger states?

Canaries are records that are put in or left out at random. What a training
tells of them bounds epsilon from below. No TensorFlow.
"""

from keras_dp.auditing.canaries.coins import FairCoins
from keras_dp.auditing.canaries.record_canaries import (
    RecordCanaries,
    mislabelled,
    random_labels,
)
from keras_dp.auditing.claim import p_value_of_claim
from keras_dp.auditing.estimators.clopper_pearson import ClopperPearson
from keras_dp.auditing.estimators.gaussian_model import GaussianModel
from keras_dp.auditing.estimators.one_run import OneRun
from keras_dp.auditing.estimators.one_run_fdp import OneRunFDP
from keras_dp.auditing.lower_bound import Estimator, LowerBound
from keras_dp.auditing.scores import Scores
from keras_dp.auditing.verdicts import Judgement, judgements, write_verdict

__all__ = [
    "ClopperPearson",
    "Estimator",
    "FairCoins",
    "GaussianModel",
    "Judgement",
    "LowerBound",
    "OneRun",
    "OneRunFDP",
    "RecordCanaries",
    "Scores",
    "judgements",
    "mislabelled",
    "p_value_of_claim",
    "random_labels",
    "write_verdict",
]
