"""Private training in one call, made of the objects of the other packages."""

from keras_dp import _training_extra as _training_extra
from keras_dp.recipes.batch_normalization import replace_batch_normalization
from keras_dp.recipes.private_training import make_private
from keras_dp.recipes.settings import Settings
from keras_dp.recipes.training_data import Records

__all__ = [
    "Records",
    "Settings",
    "make_private",
    "replace_batch_normalization",
]
