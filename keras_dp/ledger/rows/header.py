"""The header of a ledger: its data set, unit, generator and versions."""

import dataclasses

from keras_dp import _check
from keras_dp._version import __version__
from keras_dp.ledger.rows.codec import (
    canonical,
    check_names,
    decoded,
    readable,
)

FORMAT_VERSION = 4

# The random generator of all noise, which is cryptographic.
GENERATOR = "chacha20"

# Units that are rows by themselves, or made of rows by the library. Another
# unit, such as "patient", may have several rows.
UNITS_OF_ROWS = frozenset({"example", "record", "row", "microbatch"})


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The header of a ledger, written once, when the ledger is created.

    Attributes:
        dataset: A name for the data set that the ledger is about.
        unit: The privacy unit, for which a record stands: "example",
            "microbatch", "user", "patient", ...
        generator: The random generator of all noise that this library draws:
            ChaCha20 (RFC 8439), which is cryptographic.
        rows_per_unit: The largest number of records that one unit has, >= 1. If
            it is above 1, every report prints the epsilon for this many records
            together.
        format_version: The version of the ledger's format.
        library_version: The version of keras_dp that created the ledger.

    >>> Header(dataset="clinic", unit="patient").generator
    'chacha20'
    """

    dataset: str
    unit: str = "example"
    generator: str = GENERATOR
    rows_per_unit: int = 1
    format_version: int = FORMAT_VERSION
    library_version: str = __version__

    def __post_init__(self) -> None:
        _check.non_empty_text(
            dataset=self.dataset,
            unit=self.unit,
            library_version=self.library_version,
        )
        _check.integer_at_least(1, rows_per_unit=self.rows_per_unit)
        if type(self.format_version) is not int or (
            self.format_version != FORMAT_VERSION
        ):
            raise ValueError(
                f"`format_version` must be {FORMAT_VERSION}. "
                f"Received: format_version={self.format_version!r}."
            )
        if self.generator != GENERATOR:
            raise ValueError(
                f"`generator` must be {GENERATOR!r}. "
                f"Received: generator={self.generator!r}."
            )

    def as_text(self) -> str:
        """Returns canonical JSON."""
        return canonical(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> "Header":
        """Inverts `as_text`.

        Raises:
            LedgerFormatError: The text is not one that `as_text` returns.
        """
        what = "The header of the ledger"
        with readable(what):
            content = decoded(text)
            check_names(what, cls, content)
            header = cls(**content)
            if header.as_text() != text:
                raise ValueError("it is not written as `as_text` writes it")
        return header
