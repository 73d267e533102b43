"""Keras preprocessing layers that are adapted with noise, under a ledger."""

from keras_dp.preprocessing.discretization import Discretization
from keras_dp.preprocessing.feature_space import FeatureSpace
from keras_dp.preprocessing.normalization import Normalization
from keras_dp.preprocessing.pca import PCA
from keras_dp.preprocessing.release import Adapter

__all__ = ["PCA", "Adapter", "Discretization", "FeatureSpace", "Normalization"]
