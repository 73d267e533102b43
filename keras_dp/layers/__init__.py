"""Keras layers that make private training better."""

from keras_dp.layers.scattering2d import Scattering2D

__all__ = ["Scattering2D"]
