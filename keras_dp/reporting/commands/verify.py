"""`keras-dp verify`: the rows of a ledger are as they were written."""

import argparse
from pathlib import Path

from keras_dp.budgets import verify_prices
from keras_dp.errors import LedgerFormatError, LedgerIntegrityError
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.certificate import Certificate
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.wording import on_one_line, wrapped

HELP = "check that the rows of a ledger are as written"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what the command is told."""
    arguments.add(parser, "file")
    parser.add_argument(
        "--head", help="the head that an earlier `verify` printed"
    )
    parser.add_argument(
        "--against",
        type=arguments.file_name,
        metavar="CERTIFICATE",
        help="a certificate that `seal` wrote, of this ledger or of an earlier "
        "state of it",
    )
    parser.add_argument(
        "--public-key",
        metavar="HEX",
        help="the Ed25519 key that must have signed the certificate",
    )


def answer(options: argparse.Namespace) -> str:
    """Returns the size and the head of the ledger.

    Raises:
        LedgerIntegrityError: The rows contradict each other, or the head is
            not the given one, or the ledger is not the one that was certified.
        LedgerFormatError: The certificate cannot be read.
        ValueError: A key was given without a certificate.
    """
    if options.public_key is not None and options.against is None:
        raise ValueError(
            "`--public-key` must be given with `--against`. Received: "
            f"--public-key={options.public_key!r} alone."
        )
    certificate = None
    if options.against is not None:
        certificate = _read(options.against)
    with PrivacyLedger.open(options.file, mode="r") as ledger:
        found = ledger.verify()
        verify_prices(ledger)
        size = f"{found.rows} rows, {found.rounds} rounds, head {found.head}"
        if options.head is not None:
            _check_head(options.head, found.head, size)
        lines = [f"OK: {size}"]
        if certificate is not None:
            lines += _certified(certificate, ledger, options.public_key)
    if options.head is not None:
        lines.append("The ledger is the one with that head: nothing changed.")
    elif certificate is None:
        lines.append(
            "The same head later means the same ledger; it changes with every "
            "round that is added."
        )
    return "\n".join(lines)


def _read(path: str) -> Certificate:
    """Returns the certificate in a file."""
    try:
        return Certificate.from_json(Path(path).read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise LedgerFormatError(
            f"The file {path!r} is not a certificate: {error}. Make one with "
            "`keras-dp seal`."
        ) from error


def _check_head(given: str, found: str, size: str) -> None:
    if given.strip().lower() != found:
        raise LedgerIntegrityError(
            "`--head` must be the head of the ledger. Received: "
            f"{given!r}, but the ledger has {size}. It is another "
            "ledger, or rounds were added, removed or changed since: "
            "a certificate of that time shows which."
        )


def _certified(
    certificate: Certificate, ledger: PrivacyLedger, public_key: str | None
) -> list[str]:
    """Returns what was certified, if the ledger still says so."""
    signed = "Nobody signed the certificate: anyone may have made it."
    if public_key is not None or certificate.signature:
        key = None if public_key is None else public_key.strip().lower()
        certificate.check_signature(key)
        signed = (
            f"It was signed by the key {on_one_line(certificate.public_key)}"
        )
        signed += (
            ", as demanded."
            if key is not None
            else ". Whose key this is, the certificate does not show: demand "
            "one with `--public-key`."
        )
    checked = certificate.check(ledger)
    more = len(ledger) - certificate.rounds
    since = (
        f"The ledger extends what was certified: {more:,} rounds follow."
        if more > 0
        else "The ledger holds the rounds that were certified, and no more."
    )
    return [
        line
        for each in (since, *checked.sentences, signed)
        for line in wrapped(each)
    ]
