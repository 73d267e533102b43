"""Keras preprocessing layers that are adapted with noise, under a ledger."""

from keras_dp.preprocessing.discretization import Discretization
from keras_dp.preprocessing.feature_space import FeatureSpace
from keras_dp.preprocessing.integer_lookup import IntegerLookup
from keras_dp.preprocessing.normalization import Normalization
from keras_dp.preprocessing.pca import PCA
from keras_dp.preprocessing.release import Adapter
from keras_dp.preprocessing.string_lookup import StringLookup
from keras_dp.preprocessing.text_vectorization import TextVectorization

__all__ = [
    "PCA",
    "Adapter",
    "Discretization",
    "FeatureSpace",
    "IntegerLookup",
    "Normalization",
    "StringLookup",
    "TextVectorization",
]
