"""Random noise, and the seeds from which it is drawn."""

from keras_dp._reproducible import reproducible
from keras_dp.noise import discrete_gaussian, samplers, seeds, tree_noise

__all__ = [
    "discrete_gaussian",
    "reproducible",
    "samplers",
    "seeds",
    "tree_noise",
]
