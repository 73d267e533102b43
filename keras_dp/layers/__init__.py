"""Keras layers that make private training better."""

from keras_dp import _training_extra as _training_extra
from keras_dp.layers.scattering2d import Scattering2D
from keras_dp.layers.standardized_conv2d import StandardizedConv2D

__all__ = ["Scattering2D", "StandardizedConv2D"]
