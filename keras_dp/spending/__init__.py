"""The spending of a run: what it is called, and what limits it."""

from keras_dp.spending.epsilon_limit import PrivacyTarget as PrivacyTarget
from keras_dp.spending.run import RunDetails, RunLimits

__all__ = ["RunDetails", "RunLimits"]
