"""Reports of a ledger as text, JSON and HTML, and the command line."""

from keras_dp.reporting.account_state import AccountState, account_states
from keras_dp.reporting.certificate import (
    Certificate,
    certify,
    read_certificate,
)
from keras_dp.reporting.explanation import Explanation, Paragraph, explain
from keras_dp.reporting.query_costs import QueryCost, query_costs
from keras_dp.reporting.report import Cost, Details, Report, make_report
from keras_dp.reporting.report_page import report_page
from keras_dp.reporting.run_costs import RunCost, run_costs

__all__ = [
    "AccountState",
    "Certificate",
    "Cost",
    "Details",
    "Explanation",
    "Paragraph",
    "QueryCost",
    "Report",
    "RunCost",
    "account_states",
    "certify",
    "explain",
    "make_report",
    "query_costs",
    "read_certificate",
    "report_page",
    "run_costs",
]
