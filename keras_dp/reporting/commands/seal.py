"""`keras-dp seal`: a mark in the ledger, and a certificate of it."""

import argparse
from pathlib import Path

from keras_dp.errors import OutputError
from keras_dp.reporting.certificate import certify, signing_key
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.report_page import certificate_page

HELP = "seal a ledger, and write a certificate of what it held and cost"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, "file", "planned delta")
    parser.add_argument(
        "--out",
        type=arguments.file_name,
        required=True,
        help="a new file for the certificate",
    )
    parser.add_argument(
        "--html",
        type=arguments.file_name,
        help="also write the certificate as a page to print and to sign",
    )
    parser.add_argument(
        "--note", default="", help="written into the seal; nothing secret"
    )
    parser.add_argument(
        "--key",
        type=arguments.file_name,
        help="a PEM file with an Ed25519 key, to sign with",
    )
    arguments.add(parser, "neighbours")


def answer(options: argparse.Namespace) -> str:
    """Returns what was certified.

    Raises:
        OutputError: The certificate could not be written; the message says
            whether the ledger was sealed.
        ValueError: It cannot be signed with the key.
    """
    key = None if options.key is None else Path(options.key).read_bytes()
    out = Path(options.out)
    with arguments.existing(options.file) as ledger:
        # A seal is for ever: everything that may fail comes first.
        if options.html:
            arguments.check_replaceable(options.html)
        if key is not None:
            signing_key(key)
        try:
            out.touch(exist_ok=False)
        except OSError as error:
            raise OutputError(f"{error}. Nothing was sealed.") from error
        try:
            certificate = certify(
                ledger,
                delta=arguments.delta_for(options.delta, ledger),
                neighbours=options.neighbours,
                note=options.note,
            )
            if key is not None:
                certificate = certificate.signed(key)
        except BaseException:
            out.unlink(missing_ok=True)
            raise
    arguments.write(options.out, certificate.as_json() + "\n")
    if options.html:
        arguments.write(options.html, certificate_page(certificate))
    lines = [
        f"Sealed: row {certificate.seal_row}, hash {certificate.seal_hash}",
        *certificate.sentences,
    ]
    if key is not None:
        lines.append(f"Signed by the public key {certificate.public_key}")
    return "\n".join(lines)
