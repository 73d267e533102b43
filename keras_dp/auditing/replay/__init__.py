"""Compares rounds on neighbouring samples with the ledger."""

from keras_dp.auditing.replay.findings import CheckReport, Finding
from keras_dp.auditing.replay.neighbouring_rounds import check

__all__ = ["CheckReport", "Finding", "check"]
