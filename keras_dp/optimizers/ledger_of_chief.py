"""The ledger of a cluster, in the processes that do not keep it."""

from keras_dp import ledger as ledger_lib


class LedgerOfChief:
    """Stands for the ledger in the processes that do not keep it.

    Training with it is refused everywhere but in a worker that is not the
    chief of its cluster.

    Attributes:
        header: The header of the chief's ledger.
    """

    def __init__(self, header: ledger_lib.Header) -> None:
        self.header = header
