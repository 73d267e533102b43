"""Reports of a ledger: text, JSON, plots, the command line."""

from keras_dp.reporting.difference import Difference, difference
from keras_dp.reporting.explanation import Explanation, Paragraph, explain
from keras_dp.reporting.plan_report import plot_plans
from keras_dp.reporting.report import Cost, Report, make_report

__all__ = [
    "Cost",
    "Difference",
    "Explanation",
    "Paragraph",
    "Report",
    "difference",
    "explain",
    "make_report",
    "plot_plans",
]
