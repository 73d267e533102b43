"""The ledger of a cluster, in the processes that do not keep it."""

from keras_dp import ledger as ledger_lib


class LedgerOfChief:
    """Stands for the ledger in the workers that are not the chief.

    In a cluster, only the chief writes the ledger. Every other worker passes
    this object to its optimizer. Training with it is refused in a process that
    is no such worker.

    Attributes:
        header: The header of the chief's ledger.

    >>> ledger = ledger_lib.PrivacyLedger.in_memory(dataset="doc")
    >>> LedgerOfChief(ledger.header).header.unit
    'example'
    """

    def __init__(self, header: ledger_lib.Header) -> None:
        self.header = header
