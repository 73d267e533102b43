"""Checks that the processes of a cluster agree before they train.

One of them, the chief, keeps the ledger. Each of them draws samples of its own
records. No record belongs to two of them.
"""

import hashlib
import os
from typing import Any

import tensorflow as tf

from keras_dp import ledger as ledger_lib
from keras_dp.errors import PrivateTrainingError
from keras_dp.ledger import PrivacyLedger, Round
from keras_dp.optimizers.dp_optimizer import LedgerOfChief
from keras_dp.training.data.data_adapter import DataAdapter
from keras_dp.training.devices.replicas import Replicas


def open_ledger(
    strategy: tf.distribute.Strategy,
    path: str | os.PathLike[str],
    *,
    dataset: str,
    unit: str = "example",
) -> PrivacyLedger | LedgerOfChief:
    """Opens the ledger of a cluster. Only the chief opens its file.

    Call it in every process, with the same arguments.

    Args:
        strategy: The strategy of the model.
        path: The file on the chief's machine, or the URL of a server.
        dataset: As in `PrivacyLedger.open`.
        unit: As in `PrivacyLedger.open`.

    Raises:
        LedgerError: On the chief, for the reasons of `PrivacyLedger.open`.
        ValueError: The file on the chief has another data set or unit.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> open_ledger(tf.distribute.get_strategy(), folder + "/run.ledger",
    ...             dataset="doc")
    <PrivacyLedger '.../run.ledger', dataset='doc', unit='example'>
    """
    if Replicas(strategy).is_chief:
        return PrivacyLedger.open(
            path,
            dataset=dataset,
            unit=unit,
        )
    return LedgerOfChief(ledger_lib.Header(dataset, unit))


def refusal_of(
    ledger: PrivacyLedger | LedgerOfChief,
    adapter: DataAdapter,
    replicas: Replicas,
) -> PrivateTrainingError | None:
    """Returns the error of a worker that must not train, `None` if it may.

    The chief must have the only ledger. Each worker must draw from a shard of
    its own, because a record that two workers draw counts twice, and the ledger
    does not show it.
    """
    if replicas.is_chief and isinstance(ledger, LedgerOfChief):
        return PrivateTrainingError(
            "`ledger` must be a PrivacyLedger on the chief, and in a process "
            "that trains on its own. Received: a LedgerOfChief, in worker "
            f"{replicas.worker!r} of {replicas.workers!r}. Open it with "
            "open_ledger(strategy, ...), under the strategy of the model."
        )
    if not replicas.is_chief and not isinstance(ledger, LedgerOfChief):
        return PrivateTrainingError(
            "`ledger` must be a LedgerOfChief on a worker that is not the "
            "chief: the chief alone records the rounds. Received: "
            f"ledger={ledger!r}, in worker {replicas.worker!r} of "
            f"{replicas.workers!r}. Open it with open_ledger(strategy, ...)."
        )
    shard = _shard(adapter)
    if replicas.workers > 1 and shard != (replicas.worker, replicas.workers):
        return PrivateTrainingError(
            "Each worker must draw from a shard of its own, of the same "
            f"PoissonBatches. Received: shard={shard!r} on worker "
            f"{replicas.worker} of {replicas.workers}. Pass "
            f"batches.shard({replicas.worker}, {replicas.workers}) to fit."
        )
    return None


def check_agreement(
    ledger: PrivacyLedger | LedgerOfChief,
    adapter: DataAdapter,
    replicas: Replicas,
    planned: Round,
    terms: tuple[Any, ...],
) -> None:
    """Raises on every worker unless all are about to do the same.

    Every worker must call it at the same point, because it waits for all. They
    must agree in what the ledger is told, how they update, and how many rounds
    they run, and all of them must be able to train.
    """
    index, count = _shard(adapter) or (-1, -1)
    size = getattr(adapter.source, "population_size", None)
    refusal = refusal_of(ledger, adapter, replicas)
    # A worker that refuses tells the others, which would wait for it forever.
    may_train = int(refusal is None)
    row = [may_train, index, count, *_words((planned, terms, size))]
    gathered = _gathered(replicas, row)
    expected = [
        [1, i, replicas.workers, *row[3:]] for i in range(len(gathered))
    ]
    if refusal is not None:
        raise refusal
    if not all(row[0] for row in gathered):
        raise PrivateTrainingError(
            "All workers must be able to train. Received: a refusal on another "
            "worker. Read the message of that worker, and follow it."
        )
    if gathered != expected:
        raise PrivateTrainingError(
            "All workers must train with the same query, inner optimizer, "
            "data, sampling probability, epochs, and rounds, each "
            "on its own shard. "
            f"Received: {planned!r} and {terms!r} on worker "
            f"{replicas.worker!r}, and something else on another one. Run the "
            "same program with the same arguments on every worker."
        )


def _gathered(replicas: Replicas, row: list[int]) -> list[list[int]]:
    """Returns the row of each worker, in order."""

    @tf.function(autograph=False)
    def rows() -> Any:
        def gather() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.constant([row], tf.int64), axis=0)

        gathered = replicas.strategy.run(gather)
        return replicas.strategy.experimental_local_results(gathered)[0]

    every: list[list[int]] = rows().numpy().tolist()
    return every[:: replicas.local_count]


def _shard(adapter: DataAdapter) -> tuple[int, int] | None:
    """Returns the index of this worker's shard and the number of shards."""
    index = getattr(adapter.source, "shard_index", None)
    count = getattr(adapter.source, "shard_count", None)
    return None if index is None or count is None else (index, count)


def _words(value: Any) -> list[int]:
    """Returns a digest of a value as two numbers below 2^63."""
    digest = hashlib.sha256(repr(value).encode()).digest()
    return [int.from_bytes(digest[start : start + 8]) >> 1 for start in (0, 8)]
