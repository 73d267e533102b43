"""Certificates in files: alone as JSON, or inside a model that was exported.

| model | where its statement is |
| --- | --- |
| SavedModel, of `model.export` | files in its folder `assets.extra` |
| `.keras` file, of `model.save` | entries of the zip archive that it is |
| LiteRT file, of `model.export(format="litert")` | a zip archive at its end |

TensorFlow, Keras and LiteRT read such models as before. The note of the seal
has a hash over the model, so that a statement cannot be moved to another one.
"""

import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.errors import (
    LedgerFormatError,
    LedgerIntegrityError,
    OutputError,
)
from keras_dp.ledger import PrivacyLedger
from keras_dp.reporting.certificate import (
    HOW_TO_CHECK,
    Certificate,
    certify,
    signing_key,
)
from keras_dp.reporting.limits import LIMITS

_CERTIFICATE = "keras_dp_certificate.json"
_TEXT = "keras_dp_privacy.txt"
_EXTRA = "assets.extra"
_MARK = "model sha256:"
_FILES = (".keras", ".tflite")


def certify_model(
    model: str | Path,
    ledger: PrivacyLedger,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    note: str = "",
    private_key: bytes | None = None,
) -> Certificate:
    """Seals a ledger, and puts its certificate into an exported model.

    The model gets two files: the certificate, and its sentences as text. The
    seal in the ledger names a hash over the model, so that `keras-dp verify
    LEDGER --against MODEL` notices other weights.

    Guarantee: the certificate is that of the whole ledger. Whether the weights
    were trained under this ledger is not checked; whoever seals says so.

    Args:
        model: The folder of a SavedModel, a `.keras` file, or a `.tflite` file.
        ledger: A ledger that was opened for writing.
        delta: The delta of the guarantee, in (0, 1).
        neighbours: As for `certify`.
        note: A text that is written with the seal. It must hold nothing secret.
        private_key: An Ed25519 private key in PEM form, to sign with.

    Raises:
        LedgerWriteError: The ledger cannot be sealed.
        OutputError: The ledger was sealed, and the statement was not written.
        ValueError: `model` is of another kind, or has a statement already; or
            another argument is out of its range. The ledger is not sealed then.

    >>> import tempfile
    >>> from keras_dp.ledger import FullDataset, GaussianSum
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic")
    >>> ledger.record(FullDataset(), [GaussianSum("counts", 1.0, 4.0)])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(folder, "saved_model.pb").touch()
    ...     _ = certify_model(folder, ledger, delta=1e-5)
    ...     read_certificate(folder).rounds
    1
    """
    if private_key is not None:
        signing_key(private_key)
    path = _checked(Path(model))
    certificate = certify(
        ledger,
        delta=delta,
        neighbours=neighbours,
        note=f"{note} {_MARK}{_digest(path)}".strip(),
    )
    if private_key is not None:
        certificate = certificate.signed(private_key)
    text = "\n\n".join(
        (*certificate.sentences, HOW_TO_CHECK, "Not covered:", *LIMITS)
    )
    try:
        _put(path, {_CERTIFICATE: certificate.as_json(), _TEXT: text})
    except OSError as error:
        raise OutputError(
            f"{error}. The ledger was sealed in row {certificate.seal_row}."
        ) from error
    return certificate


def read_certificate(path: str | Path) -> Certificate:
    """Returns the certificate in a file or in a model.

    Args:
        path: The name of the file, which `keras-dp seal` wrote, or of a model
            that `certify_model` completed.

    Raises:
        LedgerFormatError: The file or the model does not hold a certificate.
        OSError: The file cannot be read.
    """
    path = Path(path)
    try:
        if path.is_dir():
            return read_certificate(path / _EXTRA / _CERTIFICATE)
        text = path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                text = archive.read(_CERTIFICATE)
        return Certificate.from_json(text.decode("utf-8"))
    except (KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        raise LedgerFormatError(
            f"The file {str(path)!r} does not hold a certificate: {error}. "
            "Make one with `keras-dp seal`."
        ) from error


def check_model(
    path: str | Path, certificate: Certificate, ledger: PrivacyLedger
) -> bool:
    """Returns whether a certificate is in a model; raises for another model.

    Args:
        path: Where `certificate` was read from.
        certificate: The certificate, which `ledger` agrees with.
        ledger: The ledger, a copy of it, or the ledger after more rounds.

    Raises:
        LedgerIntegrityError: The seal in the ledger is of another model, or the
            model was changed.
    """
    path = Path(path)
    if not (path.is_dir() or zipfile.is_zipfile(path)):
        return False
    (note,) = (
        each.statement.note
        for each in ledger.seals
        if each.number == certificate.seal_row
    )
    if f"{_MARK}{_digest(path)}" not in note:
        raise LedgerIntegrityError(
            f"The model {str(path)!r} is not the one that was sealed in row "
            f"{certificate.seal_row}: its files are different. Trust it only "
            "after you compared it with a copy that was kept elsewhere."
        )
    return True


def _checked(path: Path) -> Path:
    """Returns the path of a model that can get a statement."""
    is_folder = (path / "saved_model.pb").is_file()
    if not is_folder and not (path.is_file() and path.suffix in _FILES):
        raise ValueError(
            "`model` must be the folder of a SavedModel, a .keras file or a "
            f".tflite file. Received: model={str(path)!r}. Publish the "
            "certificate of `keras-dp seal` beside a model of another format."
        )
    names = {_CERTIFICATE} if (path / _EXTRA / _CERTIFICATE).exists() else set()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names.update(archive.namelist())
    if _CERTIFICATE in names:
        raise ValueError(
            "`model` must not have a statement. Received: "
            f"model={str(path)!r}, which has one. Export the model anew."
        )
    return path


def _digest(path: Path) -> str:
    """Returns a hash over a model without its statement."""
    found = hashlib.sha256()
    for name, digest in _parts(path):
        found.update(hashlib.sha256(name.encode()).digest() + digest)
    return found.hexdigest()


def _parts(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the name and the hash of each part, in an order of their own."""
    statement = {_CERTIFICATE, _TEXT}
    if path.is_dir():
        for file in sorted(path.rglob("*")):
            if file.parent == path / _EXTRA and file.name in statement:
                continue
            if file.is_file():
                with file.open("rb") as opened:
                    digest = hashlib.file_digest(opened, "sha256").digest()
                yield file.relative_to(path).as_posix(), digest
        return
    # All of the file, if it has no archive.
    end = path.stat().st_size
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            end = min((each.header_offset for each in entries), default=end)
            for each in sorted(entries, key=lambda each: each.filename):
                if each.filename not in statement:
                    content = hashlib.sha256(archive.read(each))
                    yield each.filename, content.digest()
    with path.open("rb") as opened:
        yield "", hashlib.sha256(opened.read(end)).digest()


def _put(path: Path, files: dict[str, str]) -> None:
    """Adds files to a model."""
    if path.is_dir():
        (path / _EXTRA).mkdir(exist_ok=True)
        for name, text in files.items():
            (path / _EXTRA / name).write_text(text, "utf-8")
        return
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
