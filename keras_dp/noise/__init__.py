"""Random noise, and the seeds from which it is drawn."""

from keras_dp._reproducible import reproducible

__all__ = ["reproducible"]
