"""`keras-dp report`: who spent what, and which theorem covers it."""

import argparse

from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import Answer
from keras_dp.reporting.report import Report, make_report
from keras_dp.reporting.report_page import report_page
from keras_dp.reporting.standards.assessment import STANDARDS, assess

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
    parser.add_argument(
        "--standard",
        type=str.lower,
        choices=tuple(STANDARDS),
        help="print the requirements of a standard, each with the ledger's "
        "answer",
    )
    arguments.add(parser, "declarations")
    parser.add_argument(
        "--form",
        type=arguments.file_name,
        metavar="TOML",
        help="write a new file of declarations, to fill in, and no report",
    )


def answer(options: argparse.Namespace) -> Answer:
    """Returns the report, and writes its page.

    Raises:
        OutputError: The page could not be written.
        ValueError: Options do not go together, or the declarations are none.
    """
    _check_together(options)
    details = bool(options.json or options.html or options.standard)
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
    if options.standard:
        return _of_standard(report, options)
    if options.html:
        arguments.write(options.html, report_page(report))
    return Answer(
        report.as_json()
        if options.json
        else report.as_text(every_accountant=options.all),
        report.contradictions,
    )


def _of_standard(report: Report, options: argparse.Namespace) -> Answer:
    held = arguments.declared(options)
    found = assess(report, options.standard, held)
    if options.form:
        arguments.write(options.form, found.form(held), is_new=True)
        return Answer(
            f"Wrote {options.form}: answer its questions, and give it to "
            "`--declarations`."
        )
    if options.html:
        arguments.write(options.html, found.as_page())
    return Answer(
        found.as_json() if options.json else found.as_text(),
        found.report.contradictions,
        found.summary[-1] if found.missing else "",
    )


def _check_together(options: argparse.Namespace) -> None:
    """Raises for options of another kind of report.

    Raises:
        ValueError: There is one.
    """
    if options.standard and options.all:
        raise ValueError(
            "`--all` must be given without `--standard`. Received: both. A "
            "page for a standard has every accountant where it asks for it."
        )
    for name in ("declarations", "form"):
        if getattr(options, name) and not options.standard:
            raise ValueError(
                f"`--{name}` must be given with `--standard`. Received: "
                f"--{name}={getattr(options, name)!r} alone."
            )
    if options.form and (options.html or options.json):
        raise ValueError(
            "`--form` must be given without `--html` and `--json`. Received: "
            "both. Fill in the form before you print the page."
        )
