"""The spending of a run: its record, its limit, and its reservations."""

from keras_dp.spending.epsilon_limit import PrivacyTarget as PrivacyTarget
from keras_dp.spending.run import RunDetails

__all__ = ["RunDetails"]
