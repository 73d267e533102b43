"""Records the trainings of other libraries in this ledger, ahead of each step.

Opacus and JAX Privacy draw the samples, clip and add the noise. This package
covers each step in the ledger before they release it. It imports neither Keras
nor TensorFlow, and each of the other libraries only when it is used.
"""

from keras_dp.bridges.jax_privacy import DeclaredSteps, recorded_batches
from keras_dp.bridges.opacus import recorded_steps

__all__ = ["DeclaredSteps", "recorded_batches", "recorded_steps"]
