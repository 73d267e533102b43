"""Reports of a ledger: text, JSON, plots, the command line.

`EpsilonProgress` needs Keras, and is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from keras_dp.reporting.plan_report import plot_plans
from keras_dp.reporting.report import Cost, Report, make_report

if TYPE_CHECKING:
    from keras_dp.reporting.progress import EpsilonProgress

__all__ = ["Cost", "EpsilonProgress", "Report", "make_report", "plot_plans"]


def __getattr__(name: str) -> Any:
    if name == "EpsilonProgress":
        from keras_dp.reporting.progress import EpsilonProgress

        return EpsilonProgress
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
