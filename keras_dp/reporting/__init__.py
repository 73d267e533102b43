"""Reports of a ledger as text, JSON, HTML and Markdown; the command line."""

from keras_dp.reporting.account_state import account_states as account_states
from keras_dp.reporting.certificate import certify
from keras_dp.reporting.document import render
from keras_dp.reporting.explanation import explain
from keras_dp.reporting.plans import plan_document
from keras_dp.reporting.report import make_report
from keras_dp.reporting.run_costs import run_costs as run_costs

__all__ = [
    "certify",
    "explain",
    "make_report",
    "plan_document",
    "render",
]
