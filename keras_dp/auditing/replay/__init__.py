"""Does a round keep to what its ledger says? Asked of neighbouring samples."""

from keras_dp.auditing.replay.findings import CheckReport, Finding
from keras_dp.auditing.replay.neighbouring_rounds import check

__all__ = ["CheckReport", "Finding", "check"]
