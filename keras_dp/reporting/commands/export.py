"""`keras-dp export`: a ledger in the forms of other programs."""

import argparse
import io

from keras_dp.interchange import write_csv, write_registry_entry
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.contradictions import Answer

HELP = "write a ledger as JSON, its rounds as CSV, or its registry entry"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add_file(parser)
    parser.add_argument(
        "--to",
        choices=("json", "csv", "registry"),
        required=True,
        help="json: the whole ledger without loss, for `import`; csv: its "
        "rounds; registry: the entry for the Differential Privacy Deployments "
        "Registry, as YAML to be completed",
    )
    parser.add_argument(
        "--out",
        type=arguments.file_name,
        help="a file (default: standard output)",
    )
    parser.add_argument(
        "--delta", type=arguments.delta, help="of the registry entry, in (0, 1)"
    )
    arguments.add_neighbours(parser)


def answer(options: argparse.Namespace) -> Answer:
    """Returns the text, or writes it.

    Raises:
        OutputError: The file could not be written.
        ValueError: The entry needs a delta.
    """
    if (options.delta is None) is (options.to == "registry"):
        raise ValueError(
            "`--delta` must be given for `--to registry`, and for nothing "
            f"else. Received: --delta={options.delta!r}, --to={options.to!r}."
        )
    text = io.StringIO()
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        if options.to == "json":
            text.write(ledger.to_json())
        elif options.to == "csv":
            write_csv(ledger, text)
        else:
            write_registry_entry(
                ledger,
                text,
                delta=options.delta,
                neighbours=options.neighbours,
            )
    written = text.getvalue().rstrip("\n")
    if options.out is None:
        return Answer(written)
    arguments.write(options.out, written + "\n")
    return Answer(f"Wrote {options.out}")
