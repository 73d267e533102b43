"""Certificates state the content and the epsilon of a ledger at a seal.

A certificate names a seal by its row and hash. The hash covers every row up to
the seal. So whoever holds the certificate notices if one of these rows is
changed in the ledger, in a copy, or in a ledger that has grown since.

A certificate does not prove that the ledger is true: that every release was
recorded, that the unit is the one that its name says, or that the program did
what it recorded. Without a signature, anybody can make a certificate for a
ledger of their own. A signature shows who made it. If a ledger and its
certificate are both replaced, nobody notices: keep certificates where the
ledger's owner cannot change them.
"""

import contextlib
import dataclasses
import json
import math
import sys
from typing import Any, Self

from keras_dp import _check
from keras_dp._version import __version__
from keras_dp.accountants.claim import rounded_up
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.normalize.samplings import (
    RELATIONS,
    check_neighbours,
)
from keras_dp.budgets import guarantee
from keras_dp.errors import LedgerFormatError, LedgerIntegrityError
from keras_dp.ledger import Header, PrivacyLedger
from keras_dp.ledger.rows.codec import canonical, decoded
from keras_dp.ledger.rows.row import LARGEST_COUNT
from keras_dp.planning.calibration import check_target_delta
from keras_dp.reporting.cautions import LIMITS
from keras_dp.reporting.document import Document, Table, Text
from keras_dp.reporting.wording import (
    counted,
    finite_precision,
    libraries_of,
    moment,
    not_checked,
    proven_rounds,
)

_KIND = "keras_dp certificate"
_HOW_TO_CHECK = (
    "Whoever has the ledger, a copy, or the ledger after it has grown runs "
    "`keras-dp verify LEDGER --against CERTIFICATE` with the file of this "
    "certificate. It computes the hash and epsilon anew."
)
# The fields that a ledger decides at a seal, besides epsilon.
_EQUAL = (
    *("rounds", "runs", "libraries", "proven_rounds"),
    *("names", "note", "neighbours"),
)
# The epsilons of different versions of an accountant differ by less.
_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """The content and the epsilon of a ledger at one of its seals.

    Attributes:
        header: The header of the ledger, as canonical JSON.
        seal_row: The number of the row of the seal.
        seal_hash: The hash of the seal, over its row and all rows before it.
        rounds: The number of rounds up to the seal. Rounds that were reserved
            at that time count in full.
        runs: The number of runs up to the seal.
        epsilon: The epsilon of the guarantee; `inf` if there is none.
        delta: The delta that belongs to `epsilon`.
        neighbours: The adjacency relation; `None` if all rounds support no
            common one.
        theorem: A phrase that says why the guarantee holds.
        issued: When the seal was written, in seconds since 1970 (UTC).
        libraries: The other libraries in which rounds ran, with their versions;
            empty if there are none. That they did what the ledger says was not
            checked.
        proven_rounds: The number of rounds whose bounds hold in floating point.
        names: The names of the runs, each once.
        note: The text that was written with the seal; may be empty.
        version: The version of keras_dp that made the certificate.
        public_key: The Ed25519 public key of the signer, in hex; empty without
            a signature.
        signature: The signature, in hex; empty without a signature.
    """

    header: str
    seal_row: int
    seal_hash: str
    rounds: int
    runs: int
    epsilon: float
    delta: float
    neighbours: Neighbours | None
    theorem: str
    issued: int
    libraries: str
    proven_rounds: int
    names: str
    note: str
    version: str = __version__
    public_key: str = ""
    signature: str = ""

    def as_json(self) -> str:
        """Returns a JSON object; an infinite epsilon is the text `inf`."""
        return json.dumps({"kind": _KIND, **self._content()}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverts `as_json`.

        Args:
            text: The text that `as_json` returned.

        Raises:
            LedgerFormatError: The text is not the text of a certificate.
        """
        try:
            content = decoded(text)
            if content.pop("kind") != _KIND:
                raise ValueError("it is of another kind")
            if content["epsilon"] == "inf":
                content["epsilon"] = math.inf
            certificate = cls(**content)
            for field in dataclasses.fields(cls):
                value = getattr(certificate, field.name)
                if not _fits(field.type, value):
                    shown = _check.shown(value)
                    raise ValueError(f"its {field.name} is {shown}")
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise LedgerFormatError(
                f"The text is not a certificate: {error}. Make one with "
                "`keras-dp seal`."
            ) from error
        return certificate

    def signed(self, private_key: bytes) -> Self:
        """Returns the certificate with a signature over all its fields.

        Args:
            private_key: An Ed25519 private key in PEM form, without a password.

        Raises:
            ImportError: cryptography is not installed.
            ValueError: The key is of another kind, or has a password.
        """
        key = signing_key(private_key)
        public = key.public_key().public_bytes_raw().hex()
        unsigned = dataclasses.replace(self, public_key=public, signature="")
        signature = key.sign(unsigned._signed_bytes()).hex()
        return dataclasses.replace(unsigned, signature=signature)

    def check_signature(self, public_key: str | None = None) -> None:
        """Raises unless the certificate is as it was signed.

        Args:
            public_key: The public key of the expected signer, in hex. By
                default, the key in the certificate itself: this shows that
                nothing was changed since somebody signed it, but not who.

        Raises:
            ImportError: cryptography is not installed.
            LedgerIntegrityError: The certificate is not signed, was signed with
                another key, or was changed since.
        """
        with _check.needing("cryptography", "for signatures", "signing"):
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric import ed25519

        if not self.signature:
            raise LedgerIntegrityError(
                "The certificate is not signed. Ask its issuer for a signed "
                "one, which `keras-dp seal --key` writes."
            )
        if public_key is not None and public_key != self.public_key:
            raise LedgerIntegrityError(
                f"The certificate must be signed by the key {public_key}. "
                f"Received: one signed by {self.public_key!r}. Ask the owner "
                "of the first key for a certificate."
            )
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(
                bytes.fromhex(self.public_key)
            )
            key.verify(bytes.fromhex(self.signature), self._signed_bytes())
        except (InvalidSignature, ValueError) as error:
            raise LedgerIntegrityError(
                "The certificate was changed after it was signed, or its "
                "signature belongs to another one. Do not trust it. Ask its "
                "issuer for the original."
            ) from error

    def check(self, ledger: PrivacyLedger) -> Self:
        """Raises unless a ledger is the one that was certified, or extends it.

        The guarantee up to the seal is computed anew. The theorem, the time of
        issue and the version are not checked; a signature protects them.

        Args:
            ledger: The ledger, a copy of it, or the ledger after more rounds.

        Returns:
            The certificate, with the theorem and the time of the ledger itself.

        Raises:
            LedgerIntegrityError: It is another ledger, or a row up to the seal
                was changed. Or the certificate states another number of rounds
                or runs, another adjacency relation, or a smaller
                epsilon than the rows up to the seal give.
        """
        ledger.verify()
        if ledger.header.as_text() != self.header:
            raise _differs("its header is different")
        seals = {seal.number: seal.hash for seal in ledger.seals}
        if self.seal_row not in seals:
            raise _differs(f"its row {self.seal_row} is no seal")
        if seals[self.seal_row] != self.seal_hash:
            raise _differs(f"its rows up to {self.seal_row} are different")
        again = _certificate(ledger, self.seal_row, self.delta, self.neighbours)
        for name in _EQUAL:
            own, other = getattr(self, name), getattr(again, name)
            if own != other:
                raise _differs(f"its {name} was {other!r}, not {own!r}")
        # NaN is refused too.
        if not self.epsilon >= again.epsilon - _TOLERANCE:
            raise _differs(
                f"its epsilon was {again.epsilon:.6g}, not {self.epsilon:.6g}"
            )
        return dataclasses.replace(
            self, theorem=again.theorem, issued=again.issued
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The guarantee, its theorem, and the rounds it covers."""
        header = Header.from_text(self.header)
        relation = "no adjacency relation is supported by all rounds"
        if self.neighbours is not None:
            relation = f"{self.neighbours.replace('_', ' ')} {header.unit}"
        if header.rows_per_unit > 1:
            relation += f" of at most {header.rows_per_unit:,} records"
        rounds, runs = counted(self.rounds, "round"), counted(self.runs, "run")
        bound = "no bound: epsilon is infinite"
        if math.isfinite(self.epsilon):
            bound = f"epsilon <= {rounded_up(self.epsilon)}"
        return (
            f"{bound} at delta = {self.delta!r}, {relation}",
            f"Theorem: {self.theorem}",
            f"It covers {rounds} in {runs} of the data set {header.dataset}, "
            f"up to row {self.seal_row}, {moment(self.issued)} UTC.",
            finite_precision(self.rounds, self.proven_rounds),
            *(
                (not_checked("Rounds", self.libraries),)
                if self.libraries
                else ()
            ),
        )

    def document(self) -> Document:
        """Returns the certificate as a document to print and to sign."""
        facts = (
            ("Runs", self.names or "none"),
            ("Note", self.note or "none"),
            ("Row of the seal", f"{self.seal_row:,}"),
            ("Hash of the seal", self.seal_hash),
            ("Signed by the Ed25519 key", self.public_key or "none"),
            ("Signature", self.signature or "none"),
            ("Made by", f"keras_dp {self.version}"),
        )
        return Document(
            f"Privacy certificate of {Header.from_text(self.header).dataset}",
            (
                Text("", self.sentences, "claim"),
                Table("Seal and signature", (), facts),
                Text("How to check it", (_HOW_TO_CHECK,)),
                Text("What it does not cover", LIMITS),
                Text("", ("Date, name, signature:",)),
            ),
            self._content(),
        )

    def _content(self) -> dict[str, Any]:
        content = dataclasses.asdict(self)
        if not math.isfinite(self.epsilon):
            content["epsilon"] = "inf"
        return content

    def _signed_bytes(self) -> bytes:
        content = {**self._content(), "signature": ""}
        return canonical(content).encode()


def signing_key(pem: bytes) -> Any:
    """Returns an Ed25519 key, which the PEM must hold without a password."""
    with _check.needing("cryptography", "for signatures", "signing"):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519

    key: Any = None
    with contextlib.suppress(TypeError, ValueError):
        key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ValueError(
            "`private_key` must be an Ed25519 key in PEM form, without a "
            "password. Received: something else. Make one with `openssl "
            "genpkey -algorithm ed25519`."
        )
    return key


def certify(
    ledger: PrivacyLedger,
    *,
    delta: float,
    neighbours: Neighbours | None = None,
    note: str = "",
) -> Certificate:
    """Seals a ledger, and returns a certificate of all that it holds.

    Args:
        ledger: A ledger that was opened for writing.
        delta: The delta of the guarantee, in (0, 1).
        neighbours: The adjacency relation; by default the strongest that all
            rounds support. Promises of accounts have their own relation.
        note: A text that is written with the seal. It must hold nothing secret.

    Raises:
        LedgerWriteError: The ledger cannot be sealed.
        ValueError: `delta` or `neighbours` is not a possible one. The ledger is
            not sealed then.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> with ledger.start_run("training") as run:
    ...     run.record(PoissonSampling(0.01), [GaussianSum("all", 1.0, 4.0)])
    >>> certificate = certify(ledger, delta=1e-5)
    >>> ledger.start_run("later").record(
    ...     PoissonSampling(0.01), [GaussianSum("all", 1.0, 4.0)])
    >>> certificate.check(ledger).rounds, len(ledger)
    (1, 2)
    """
    # A seal stays for ever: the arguments are checked before it is written.
    check_target_delta(delta)
    check_neighbours(neighbours)
    seal = ledger.seal(note)
    return _certificate(ledger, seal.number, delta, neighbours)


def _certificate(
    ledger: PrivacyLedger,
    row: int,
    delta: float,
    neighbours: Neighbours | None,
) -> Certificate:
    (seal,) = (each for each in ledger.seals if each.number == row)
    sealed = ledger.until(row)
    found = guarantee(sealed, delta=delta, neighbours=neighbours)
    return Certificate(
        header=ledger.header.as_text(),
        seal_row=seal.number,
        seal_hash=seal.hash,
        rounds=len(sealed),
        runs=sum(1 for run in sealed.runs if run.number),
        epsilon=found.claim.epsilon,
        delta=float(delta),
        neighbours=found.claim.neighbours,
        theorem=found.theorem,
        issued=seal.time,
        libraries=libraries_of(sealed.runs),
        proven_rounds=proven_rounds(sealed.rounds),
        names=", ".join(dict.fromkeys(x.name for x in sealed.runs if x.number)),
        note=seal.note,
    )


def _differs(reason: str) -> LedgerIntegrityError:
    return LedgerIntegrityError(
        f"The ledger is not the one that was certified: {reason}. Trust "
        "neither before you compare them with copies that were kept elsewhere."
    )


def _fits(kind: Any, value: Any) -> bool:
    if kind is str:
        return isinstance(value, str)
    if kind in (int, float):
        if isinstance(value, bool) or not isinstance(value, kind | int):
            return False
        most = LARGEST_COUNT if kind is int else sys.float_info.max
        return 0 <= value <= most or value == math.inf
    return value is None or value in RELATIONS
