"""Every exception class of the package, and how one is kept beside another.

`ValueError` and `TypeError` are used where a caller can only fix the code;
the classes here are the ones a caller may want to catch.
"""

import contextlib
from collections.abc import Iterator

from keras_dp import _check

_LONGEST = 1500


class LedgerError(Exception):
    """A privacy ledger cannot be used. The base class of all ledger errors."""

    def __str__(self) -> str:
        # A forged ledger may have put anything into it.
        return _check.shortened(super().__str__(), _LONGEST)


class LedgerFormatError(LedgerError):
    """The file is not a readable ledger: foreign, truncated or corrupt."""


class LedgerVersionError(LedgerError):
    """The file was written in another version of the format."""


class LedgerIntegrityError(LedgerError):
    """The rows of the file contradict each other or their hash chain."""


class LedgerWriteError(LedgerError):
    """The ledger could not store an entry durably: nothing may be released.

    It is also raised for a ledger that must not be written: one that was
    opened for reading, is closed, or was inherited through `fork`.
    """


class UnsupportedEventError(Exception):
    """An accountant has no sound bound for an event under this relation."""


class CalibrationError(Exception):
    """No parameter meets the requested privacy target."""


class BudgetExceededError(Exception):
    """One more round would exceed the privacy target. It did not run."""


class UnsupportedLayerError(Exception):
    """A layer's per-example gradients cannot be computed soundly.

    The message names the layer, the reason, and the remedy.
    """


class GradientCheckError(Exception):
    """Per-example gradients disagree with brute force, or examples interact.

    Raised by the self-check before anything is released.
    """


class PrivateTrainingError(Exception):
    """A private optimizer or model was used in a way that is not private."""


class DamagedRecordsError(OSError):
    """A file of records is damaged, or changed while it was in use."""


class OutputError(Exception):
    """The command line could not write its answer. Never leaves the package."""


class TooSlowError(Exception):
    """A numerical method would take too long; another one takes over.

    Never leaves the package.
    """


class MetricsNotCompiledError(Exception):
    """Padding must be cut off for a metric, which XLA cannot compile.

    Never leaves the package.
    """


class NumericalLimitError(Exception):
    """A number is out of reach of float64; another method takes over.

    Never leaves the package.
    """


@contextlib.contextmanager
def noted_in(error: BaseException) -> Iterator[None]:
    """Adds what goes wrong inside as a note to an exception.

    So an exception that comes while another one is passed on does not take its
    place.

    >>> first = ValueError("the cause")
    >>> with noted_in(first):
    ...     raise OSError("no space left")
    >>> first.__notes__
    ['Then: OSError: no space left']
    """
    try:
        yield
    except Exception as later:  # noqa: BLE001 - it is kept as a note.
        if str(later) != str(error):  # A disk stays full.
            error.add_note(f"Then: {type(later).__name__}: {later}")
