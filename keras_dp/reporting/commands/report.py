"""`keras-dp report`: who spent what, and which theorem covers it."""

import argparse

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.report import make_report
from keras_dp.reporting.report_page import report_page

HELP = "print who spent what privacy, and which theorem covers it"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, *arguments.GUARANTEE)
    parser.add_argument(
        "--all", action="store_true", help="print epsilon by every accountant"
    )
    parser.add_argument(
        "--html",
        type=arguments.file_name,
        help="also write the report with pictures, as one HTML file",
    )
    arguments.add(parser, "json")


def answer(options: argparse.Namespace) -> str:
    """Returns the report, and writes its page.

    Raises:
        OutputError: The page could not be written.
    """
    details = bool(options.json or options.html)
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        report = make_report(
            ledger,
            delta=arguments.delta_for(options.delta, ledger),
            neighbours=options.neighbours,
            # Some take long, and nobody has asked for them.
            accountants=None if details or options.all else (),
            units=options.units,
            details=details,
        )
    if options.html:
        arguments.write(options.html, report_page(report))
    if options.json:
        return report.as_json()
    return report.as_text(every_accountant=options.all)
