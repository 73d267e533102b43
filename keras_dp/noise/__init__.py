"""Random noise, and the seeds from which it is drawn."""

from keras_dp._reproducible import reproducible
from keras_dp.ledger.events.tfp_noise import from_tfp

__all__ = ["from_tfp", "reproducible"]
