"""The names of `keras_dp`: here alone, for type checkers and for users."""

from keras_dp import accountants as accountants
from keras_dp import auditing as auditing
from keras_dp import budgets as budgets
from keras_dp import dp_queries as dp_queries
from keras_dp import errors as errors
from keras_dp import experimental as experimental
from keras_dp import interchange as interchange
from keras_dp import layers as layers
from keras_dp import ledger as ledger
from keras_dp import optimizers as optimizers
from keras_dp import planning as planning
from keras_dp import preprocessing as preprocessing
from keras_dp import recipes as recipes
from keras_dp import reporting as reporting
from keras_dp import sampling as sampling
from keras_dp import spending as spending
from keras_dp import training as training
from keras_dp import tuning as tuning
from keras_dp._version import __version__ as __version__
from keras_dp.dp_queries import GaussianAverageQuery as GaussianAverageQuery
from keras_dp.ledger import PrivacyLedger as PrivacyLedger
from keras_dp.optimizers import DPSGD as DPSGD
from keras_dp.optimizers import DPAdam as DPAdam
from keras_dp.optimizers import DPOptimizer as DPOptimizer
from keras_dp.recipes import Records as Records
from keras_dp.recipes import make_private as make_private
from keras_dp.recipes import (
    replace_batch_normalization as replace_batch_normalization,
)
from keras_dp.sampling import PoissonBatches as PoissonBatches
from keras_dp.sampling import UserBatches as UserBatches
from keras_dp.spending import RunDetails as RunDetails
from keras_dp.training import PrivateGradients as PrivateGradients
from keras_dp.training import PrivateLoss as PrivateLoss
from keras_dp.training import PrivateMean as PrivateMean
from keras_dp.training import PrivateModel as PrivateModel
from keras_dp.training import SaveModel as SaveModel
from keras_dp.training import mean_gradient_norms as mean_gradient_norms
