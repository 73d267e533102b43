"""Commands that seal a ledger, and check it later."""

import argparse
from pathlib import Path

from keras_dp.budgets import verify_prices
from keras_dp.errors import (
    LedgerFormatError,
    LedgerIntegrityError,
    OutputError,
)
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.certificate import Certificate, certify, signing_key
from keras_dp.reporting.commands import arguments
from keras_dp.reporting.commands.arguments import Command
from keras_dp.reporting.document import Document, Text


def _seal_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser, "file", "planned delta")
    parser.add_argument(
        "--out",
        type=arguments.file_name,
        required=True,
        help="a new file for the certificate",
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


def _seal(options: argparse.Namespace) -> Document:
    key = None if options.key is None else Path(options.key).read_bytes()
    out = Path(options.out)
    with arguments.existing(options.file) as ledger:
        # A seal is for ever: everything that may fail comes first.
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
    try:
        out.write_text(f"{certificate.as_json()}\n", "utf-8", newline="")
    except OSError as error:
        raise OutputError(
            f"The ledger was sealed, and the file {options.out!r} could not be "
            f"written: {error.strerror}."
        ) from error
    return certificate.document()


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
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


def _verify(options: argparse.Namespace) -> Document:
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
        sentences = [f"OK: {size}"]
        if certificate is not None:
            sentences += _certified(certificate, ledger, options.public_key)
        dataset = ledger.header.dataset
    if options.head is not None:
        sentences.append(
            "The ledger is the one with that head: nothing changed."
        )
    elif certificate is None:
        sentences.append(
            "The same head later means the same ledger; it changes with every "
            "round that is added."
        )
    return Document(
        f"The rows of {dataset} are as they were written",
        (Text("", tuple(sentences)),),
        {"rows": found.rows, "rounds": found.rounds, "head": found.head},
    )


def _read(path: str) -> Certificate:
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
        signed = f"It was signed by the key {certificate.public_key}"
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
    return [since, *checked.sentences, signed]


SEAL = Command(
    "seal a ledger, and write a certificate of what it held and cost",
    _seal_arguments,
    _seal,
)
VERIFY = Command(
    "check that the rows of a ledger are as written",
    _verify_arguments,
    _verify,
)
