"""Private search: the best of a random number of trainings, as one release."""

from keras_dp import _training_extra as _training_extra
from keras_dp.tuning.best_of import Found as Found
from keras_dp.tuning.priors import Choice, LogUniform, Uniform
from keras_dp.tuning.priors import Prior as Prior
from keras_dp.tuning.private_search import PrivateSearch
from keras_dp.tuning.private_search import SearchCost as SearchCost
from keras_dp.tuning.trials import PrivateScore

__all__ = [
    "Choice",
    "LogUniform",
    "PrivateScore",
    "PrivateSearch",
    "Uniform",
]
