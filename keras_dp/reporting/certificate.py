"""Certificates: what a ledger held and cost at a seal, to be checked later.

A certificate names a seal by its row and hash. The hash covers every row before
it, so that whoever holds the certificate notices if one of them is changed in
the ledger, in a copy, or in a ledger that has grown since.

It does not show that the ledger tells the truth: that every release was
recorded, that the unit is what its name says, or that the program did what it
wrote. Without a signature anybody can make one for a ledger of their own; with
one it shows who did. A ledger that was replaced together with its certificate
shows nothing: keep certificates where the ledger's owner cannot change them.
"""

import contextlib
import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any, Self

from keras_dp._version import __version__
from keras_dp.accountants.claim import rounded_up
from keras_dp.accountants.normalize.adjacency import Neighbours
from keras_dp.auditing.verdicts import judgements
from keras_dp.budgets import guarantee
from keras_dp.errors import LedgerFormatError, LedgerIntegrityError
from keras_dp.ledger import Header, PrivacyLedger
from keras_dp.ledger.canonical import canonical
from keras_dp.reporting.contradictions import AuditSummary
from keras_dp.reporting.wording import counted, moment, on_one_line

_KIND = "keras_dp certificate"
# Other versions of an accountant may differ by less.
_TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True, slots=True)
class Certificate:
    """The content and the cost of a ledger at one of its seals.

    Attributes:
        header: The header of the ledger, as canonical JSON.
        seal_row: The row of the seal.
        seal_hash: Its hash, over all rows before.
        rounds: Rounds up to the seal, those reserved then in full.
        runs: Runs up to the seal.
        epsilon: The guarantee; `inf` if there is none.
        delta: At which epsilon is given.
        neighbours: The adjacency relation; `None` without a guarantee.
        theorem: Covers epsilon.
        audits: How many verdicts of audits there were up to the seal.
        contradictions: How many of them found more than was certified.
        audited_epsilon: The largest lower bound among them; 0 without any.
        audited_delta: At which it is given; 0 without any.
        audited_confidence: The chance at which it holds; 0 without any.
        issued: Seconds since 1970 (UTC).
        version: The version of keras_dp that issued it.
        public_key: The Ed25519 key of who signed, in hex; empty if nobody did.
        signature: In hex.
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
    audits: int
    contradictions: int
    audited_epsilon: float
    audited_delta: float
    audited_confidence: float
    issued: int
    version: str = __version__
    public_key: str = ""
    signature: str = ""

    def as_json(self) -> str:
        """Returns a JSON object; an infinite epsilon is the text `inf`."""
        return json.dumps({"kind": _KIND, **self._content()}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverts `as_json`.

        Raises:
            LedgerFormatError: The text is no certificate.
        """
        try:
            content = json.loads(text)
            if content.pop("kind") != _KIND:
                raise ValueError("it is of another kind")
            if content["epsilon"] == "inf":
                content["epsilon"] = math.inf
            certificate = cls(**content)
            for field in dataclasses.fields(cls):
                value = getattr(certificate, field.name)
                if field.type is not None and isinstance(value, (list, dict)):
                    raise ValueError(f"its {field.name} is {value!r}")
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise LedgerFormatError(
                f"The text holds no certificate: {error}. `keras-dp seal` "
                "writes one."
            ) from error
        return certificate

    def signed(self, private_key: bytes) -> Self:
        """Returns the certificate with a signature.

        Args:
            private_key: An Ed25519 key in PEM form, without a password.

        Raises:
            ImportError: cryptography is not installed; `pip install
                keras_dp[signing]`.
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
            public_key: The key of who should have signed, in hex; by default
                the one in the certificate, which only shows that it is whole.

        Raises:
            ImportError: cryptography is not installed.
            LedgerIntegrityError: It is not signed, by another key, or changed
                since.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric import ed25519

        if not self.signature:
            raise LedgerIntegrityError("The certificate is not signed.")
        if public_key is not None and public_key != self.public_key:
            raise LedgerIntegrityError(
                "The certificate must be signed by the key "
                f"{public_key}. Received: one signed by {self.public_key}."
            )
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(
                bytes.fromhex(self.public_key)
            )
            key.verify(bytes.fromhex(self.signature), self._signed_bytes())
        except (InvalidSignature, ValueError) as error:
            raise LedgerIntegrityError(
                "The certificate was changed after it was signed, or its "
                "signature is of another one. It must not be trusted."
            ) from error

    def check(self, ledger: PrivacyLedger) -> None:
        """Raises unless a ledger is the one that was certified, or extends it.

        Args:
            ledger: The ledger, a copy, or one that has grown since.

        Raises:
            LedgerIntegrityError: It is another ledger; rows before the seal
                were changed; or the certificate says other numbers than they
                give.
        """
        ledger.verify()
        if ledger.header.as_text() != self.header:
            raise _differs("its header is another one")
        seals = {seal.number: seal.hash for seal in ledger.seals}
        if self.seal_row not in seals:
            raise _differs(f"row {self.seal_row} is no seal of it")
        if seals[self.seal_row] != self.seal_hash:
            raise _differs(f"the rows up to {self.seal_row} are others")
        again = _certificate(ledger, self.seal_row, self.delta, self.neighbours)
        if (again.rounds, again.runs) != (self.rounds, self.runs):
            raise _differs(
                f"it held {again.rounds} rounds in {again.runs} runs, not "
                f"{self.rounds} in {self.runs}"
            )
        if self._audits != again._audits:
            raise _differs(
                f"of its audits the certificate says {self._audits.sentence!r} "
                f"and the ledger {again._audits.sentence!r}"
            )
        if self.epsilon < again.epsilon - _TOLERANCE:
            raise _differs(
                f"its epsilon was {again.epsilon:.6g}, not {self.epsilon:.6g}"
            )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The guarantee, its theorem, how much it covers, and its audits."""
        header = Header.from_text(self.header)
        relation = "no adjacency relation is supported by all rounds"
        if self.neighbours is not None:
            unit = on_one_line(header.unit)
            relation = f"{self.neighbours.replace('_', ' ')} {unit}"
        if header.rows_per_unit > 1:
            relation += f" of at most {header.rows_per_unit:,} records"
        rounds, runs = counted(self.rounds, "round"), counted(self.runs, "run")
        return (
            f"epsilon <= {rounded_up(self.epsilon)} at delta = {self.delta!r}, "
            f"{relation}",
            f"Theorem: {self.theorem}",
            f"It covers {rounds} in {runs} of the data set "
            f"{on_one_line(header.dataset)}, up to row {self.seal_row}, "
            f"{moment(self.issued)} UTC.",
            self._audits.sentence,
        )

    @property
    def _audits(self) -> AuditSummary:
        return AuditSummary(
            self.audits,
            self.contradictions,
            self.audited_epsilon,
            self.audited_delta,
            self.audited_confidence,
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
    """Returns an Ed25519 key to sign with.

    Args:
        pem: A key in PEM form, without a password.

    Raises:
        ImportError: cryptography is not installed; `pip install
            keras_dp[signing]`.
        ValueError: The key is of another kind, or has a password.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ed25519

    key: Any = None
    with contextlib.suppress(TypeError, ValueError):
        key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ValueError(
            "`private_key` must be an Ed25519 key in PEM form, without a "
            "password. Received: something else. `openssl genpkey -algorithm "
            "ed25519` makes one."
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
        ledger: Opened for writing.
        delta: In (0, 1).
        neighbours: The adjacency relation; by default the strongest that all
            rounds support.
        note: Written into the seal. Nothing secret.

    Raises:
        LedgerWriteError: The ledger cannot be sealed.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling
    >>> ledger = PrivacyLedger.in_memory(dataset="clinic", unit="patient")
    >>> with ledger.start_run("training") as run:
    ...     run.record(PoissonSampling(0.01), [GaussianSum("all", 1.0, 4.0)])
    >>> certificate = certify(ledger, delta=1e-5)
    >>> ledger.start_run("later").record(
    ...     PoissonSampling(0.01), [GaussianSum("all", 1.0, 4.0)])
    >>> certificate.check(ledger)
    >>> certificate.rounds, len(ledger)
    (1, 2)
    """
    seal = ledger.seal(note)
    return _certificate(ledger, seal.number, delta, neighbours)


def read_certificate(path: str | Path) -> Certificate:
    """Returns the certificate in a file.

    Raises:
        LedgerFormatError: The file holds none.
    """
    try:
        return Certificate.from_json(Path(path).read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise LedgerFormatError(
            f"The file {str(path)!r} holds no certificate: {error}."
        ) from error


def _certificate(
    ledger: PrivacyLedger,
    row: int,
    delta: float,
    neighbours: Neighbours | None,
) -> Certificate:
    """Returns what a ledger held and cost at a row that is a seal."""
    (seal,) = (each for each in ledger.seals if each.number == row)
    sealed = ledger.until(row)
    found = guarantee(sealed, delta=delta, neighbours=neighbours)
    audits = AuditSummary.of(judgements(sealed))
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
        audits=audits.verdicts,
        contradictions=audits.contradictions,
        audited_epsilon=audits.epsilon,
        audited_delta=audits.delta,
        audited_confidence=audits.confidence,
        issued=int(time.time()),
    )


def _differs(reason: str) -> LedgerIntegrityError:
    return LedgerIntegrityError(
        f"The ledger is not the one that was certified: {reason}. One of them "
        "must not be trusted."
    )
