"""Keras preprocessing layers that are adapted with noise, under a ledger.

An adapter describes how a layer is adapted. Its `planned_round` is the round
that the ledger records. Calibrate the noise as for a training of one round
without sampling, and pass `ledger=` to count the rounds that are already spent.
For a vocabulary, subtract its `threshold_delta` from `delta` first.

>>> import numpy as np
>>> from keras_dp.accountants import Fourier
>>> from keras_dp.ledger import PrivacyLedger
>>> from keras_dp.planning import calibrate_noise
>>> noise_multiplier = calibrate_noise(
...     target_epsilon=0.5, delta=1e-6, sampling_probability=1.0, rounds=1)
>>> round(noise_multiplier, 3)
8.058
>>> adapter = Normalization((0, 100), noise_multiplier)
>>> planned = [(adapter.planned_round(), 1)]
>>> round(Fourier().epsilon(planned, delta=1e-6), 5)
0.5
>>> ledger = PrivacyLedger.in_memory(dataset="people")
>>> layer = adapter.adapt(np.full(10_000, 30.0), ledger, run="ages")
>>> [(run.name, len(run)) for run in ledger.runs]
[('ages', 1)]
"""

from keras_dp import _training_extra as _training_extra
from keras_dp.preprocessing.discretization import Discretization
from keras_dp.preprocessing.lookups import (
    IntegerLookup,
    StringLookup,
    TextVectorization,
)
from keras_dp.preprocessing.normalization import Normalization
from keras_dp.preprocessing.pca import PCA
from keras_dp.preprocessing.release import Adapter

__all__ = [
    "PCA",
    "Adapter",
    "Discretization",
    "IntegerLookup",
    "Normalization",
    "StringLookup",
    "TextVectorization",
]
