"""Rows of the ledger about audits: commitments and verdicts.

They cost no privacy. A *canary* is a record that is made for an audit; a fair
coin decides whether it takes part. A *commitment* is written before the
training. It fixes which canaries the training will see, and hides it. A
*verdict* is written after the audit. It says what was found, about which rows,
and reveals what the commitment hid.
"""

import dataclasses
import hashlib
from typing import ClassVar

from keras_dp import _check
from keras_dp.ledger.rows.canonical import canonical

# The adjacency relations under which a canary changes the data.
RELATIONS = ("add_or_remove_one", "replace_one", "zero_out")
_HASH = 64  # Hexadecimal digits of SHA-256.
_DIGITS = set("0123456789abcdef")


@dataclasses.dataclass(frozen=True, slots=True)
class Opening:
    """The content that a commitment hid, revealed by a verdict.

    Attributes:
        row: The row of the commitment.
        salt: 256 random bits, in hexadecimal digits. Without them, somebody
            could try all coins until the hash fits.
        coins: One bit for each canary, in hexadecimal digits: 1 if the canary
            took part. The first canary has the highest bit of the first byte,
            and zeros fill the last byte.
        content: SHA-256 hash of the canaries, in hexadecimal digits.
    """

    row: int
    salt: str
    coins: str
    content: str

    def __post_init__(self) -> None:
        _check.integer_at_least(1, row=self.row)
        _hexadecimal(_HASH, salt=self.salt, content=self.content)
        _hexadecimal(None, coins=self.coins)

    @property
    def digest(self) -> str:
        """The hash that the commitment holds if this is its content."""
        return digest_of(self.salt, self.coins, self.content)


@dataclasses.dataclass(frozen=True, slots=True)
class Commitment:
    """A hash that fixes which canaries a training will see, and hides it.

    `auditing.FairCoins.commitment` makes one.

    Attributes:
        digest: SHA-256 hash over the salt, the coins and the canaries, in
            hexadecimal digits.
        canaries: The number of canaries, >= 1.
        note: Free text. It must hold nothing secret.

    >>> hidden = Opening(1, salt="0" * 64, coins="80", content="1" * 64)
    >>> Commitment(hidden.digest, canaries=3).is_opened_by(hidden)
    True
    """

    kind: ClassVar[str] = "commitment"

    digest: str
    canaries: int
    note: str = ""

    def __post_init__(self) -> None:
        _hexadecimal(_HASH, digest=self.digest)
        _check.integer_at_least(1, canaries=self.canaries)
        _check.kind(str, note=self.note)

    def is_opened_by(self, opening: Opening) -> bool:
        """Returns whether `opening` is the content that was hashed."""
        size = -(-self.canaries // 8)
        spare = 8 * size - self.canaries
        return (
            opening.digest == self.digest
            and len(opening.coins) == 2 * size
            and int(opening.coins, 16) % (1 << spare) == 0
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """The result of an audit: a lower bound on the epsilon of a training.

    Attributes:
        estimator: The name of the test that gave the bound.
        statistic: The counts or the measurement, in words.
        epsilon: The lower bound, finite and >= 0. A bound of 0 says nothing.
        delta: The delta of the guarantee that `epsilon` is about, in [0, 1).
        confidence: The least probability with which the bound holds, in (0, 1).
        neighbours: The adjacency relation under which one canary changes the
            data.
        records: The number of records in one canary, >= 1.
        assumptions: Sentences. If one of them is false, nothing is claimed.
        p_value: An upper bound on the probability of such scores, if the
            epsilon of the ledger is true; `None` if that was not tested.
        runs: The rows in which the runs began whose releases were audited;
            empty if all rounds were.
        seal_row: The row of a seal. The verdict is about the rows before it.
        seal_hash: The hash of this seal.
        opening: The content of the commitment to the canaries; `None` without
            a commitment.
    """

    kind: ClassVar[str] = "verdict"

    estimator: str
    statistic: str
    epsilon: float
    delta: float
    confidence: float
    neighbours: str
    records: int
    assumptions: tuple[str, ...]
    p_value: float | None
    runs: tuple[int, ...]
    seal_row: int
    seal_hash: str
    opening: Opening | None

    def __post_init__(self) -> None:
        _check.non_empty_text(estimator=self.estimator)
        _check.kind(str, statistic=self.statistic)
        _check.finite_non_negative(epsilon=self.epsilon, delta=self.delta)
        _check.finite_positive(confidence=self.confidence)
        _check.one_of(RELATIONS, neighbours=self.neighbours)
        _check.integer_at_least(1, records=self.records)
        _check.integer_at_least(1, seal_row=self.seal_row)
        _hexadecimal(_HASH, seal_hash=self.seal_hash)
        for name, value in {
            "delta": self.delta,
            "confidence": self.confidence,
        }.items():
            if value >= 1:
                raise ValueError(
                    f"`{name}` must be < 1. Received: {name}={value!r}."
                )
        if self.p_value is not None:
            _check.probability(p_value=self.p_value)
        for assumption in self.assumptions:
            _check.non_empty_text(assumptions=assumption)
        for run in self.runs:
            _check.integer_at_least(1, runs=run)

    @property
    def rejects_claim(self) -> bool:
        """Whether the epsilon of the ledger was tested, and rejected."""
        error = 1 - self.confidence
        return self.p_value is not None and self.p_value <= error


def digest_of(salt: str, coins: str, content: str) -> str:
    """Returns the hash that commits to coins and canaries.

    Args:
        salt: As in `Opening`.
        coins: As in `Opening`.
        content: As in `Opening`.
    """
    return hashlib.sha256(
        canonical([salt, coins, content]).encode()
    ).hexdigest()


def _hexadecimal(length: int | None, **named: str) -> None:
    """Raises unless every value has `length` digits, or at least one."""
    for name, value in named.items():
        _check.non_empty_text(**{name: value})
        expected = len(value) if length is None else length
        if len(value) != expected or not set(value) <= _DIGITS:
            raise ValueError(
                f"`{name}` must be {expected} hexadecimal digits in lower "
                f"case. Received: {name}={value!r}."
            )
