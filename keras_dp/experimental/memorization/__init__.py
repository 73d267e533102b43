"""Checks for memorization of noise, which have no privacy loss."""

from keras_dp.experimental.memorization.exposure import exposure
from keras_dp.experimental.memorization.noise_records import NoiseRecords
from keras_dp.experimental.memorization.user_patterns import UserPatterns

__all__ = ["NoiseRecords", "UserPatterns", "exposure"]
