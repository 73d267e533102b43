"""Checks for memorization of noise, which have no privacy loss."""

from keras_dp.experimental.memorization.exposure import exposure
from keras_dp.experimental.memorization.noise_records import NoiseRecords

__all__ = ["NoiseRecords", "exposure"]
