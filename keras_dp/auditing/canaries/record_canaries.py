"""Canaries that are records, inserted into the data of a training."""

import dataclasses
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from keras_dp import _check, _nests
from keras_dp.auditing.canaries.coins import FairCoins
from keras_dp.auditing.draws import Draws
from keras_dp.auditing.scores import Scores
from keras_dp.ledger import CommitmentRecord, Opening, PrivacyLedger
from keras_dp.ledger.canonical import canonical


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RecordCanaries:
    """Records that are made for an audit, each with a coin of its own.

    The unit is one record, and the adjacency relation of the scores is
    `add_or_remove_one`. The settings of the training must not depend on the
    coins, and so not on the number of records with canaries. Fix the sampling
    probability and the denominator before, from the number of records plus half
    the number of canaries.

    The audit does not keep canaries private. Make them of noise or of public
    records.

    Attributes:
        records: A nest of arrays, such as `(x, y)`, of shapes
            `[canaries, ...]`.
        coins: One coin for each canary. By default, new coins are drawn.

    >>> x, y = np.zeros([100, 4], np.float32), np.zeros([100], np.int32)
    >>> canaries = RecordCanaries(random_labels(np.ones([8, 4]), classes=2))
    >>> data = canaries.insert((x, y))
    >>> bool(len(data[0]) == 100 + canaries.coins.values.sum())
    True
    """

    records: Any
    coins: FairCoins

    def __init__(self, records: Any, coins: FairCoins | None = None) -> None:
        leaves = [np.asarray(leaf) for leaf in _nests.leaves(records)]
        sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves}
        if (
            len(sizes) != 1
            or 0 in sizes
            or any(x.dtype.hasobject for x in leaves)
        ):
            raise ValueError(
                "`records` must be arrays of numbers with one row for each "
                "canary. Received: "
                f"{[(leaf.shape, str(leaf.dtype)) for leaf in leaves]!r}. Give "
                "arrays of equal length, at least 1."
            )
        (size,) = sizes
        found = FairCoins.draw(size) if coins is None else coins
        if len(found) != size:
            raise ValueError(
                f"`coins` must be one for each of {size} canaries. Received: "
                f"{len(found)} coins. Draw them with FairCoins.draw({size})."
            )
        object.__setattr__(self, "records", _nests.join(records, iter(leaves)))
        object.__setattr__(self, "coins", found)

    @property
    def content(self) -> str:
        """The SHA-256 of the dtypes, the shapes and the values, in hex."""
        digest = hashlib.sha256()
        for leaf in _nests.leaves(self.records):
            values = np.ascontiguousarray(leaf)
            head = canonical([values.dtype.str, values.shape])
            digest.update(head.encode())
            digest.update(values.tobytes())
        return digest.hexdigest()

    def commit(self, ledger: PrivacyLedger, note: str = "") -> CommitmentRecord:
        """Writes a commitment to canaries and coins, before the training.

        Args:
            ledger: The ledger of the training.
            note: Free text, which becomes public.

        Raises:
            LedgerWriteError: The commitment was not written. Do not train.
        """
        return ledger.write_commitment(
            self.coins.commitment(self.content, note)
        )

    def opening(self, commitment: CommitmentRecord) -> Opening:
        """Returns the opening of a commitment, for `write_verdict`."""
        return self.coins.opening(commitment.number, self.content)

    def insert(self, records: Any) -> Any:
        """Returns the records of a training, with the canaries that take part.

        Args:
            records: Arrays in the same nest as the canaries, of shapes
                `[records, ...]`.

        Returns:
            The same nest, of shapes `[records + inserted canaries, ...]`. Its
            size reveals how many canaries take part.
        """
        own = _nests.split(
            self.records,
            records,
            "`records` must be a nest like that of the canaries.",
        )
        joined = [
            np.concatenate(
                [
                    each,
                    canaries[self.coins.values].astype(np.asarray(each).dtype),
                ]
            )
            for each, canaries in zip(
                own, _nests.leaves(self.records), strict=True
            )
        ]
        return _nests.join(self.records, iter(joined))

    def scores(self, values: npt.ArrayLike) -> Scores:
        """Returns the scores of the canaries, separated by their coins.

        Args:
            values: A number for each canary, shape `[canaries]`. It is higher
                the more likely the canary was trained on: minus its loss, for
                example.
        """
        return Scores.from_coins(values, self.coins.values)


def random_labels(
    x: npt.ArrayLike,
    *,
    classes: int,
    seed: int | None = None,
) -> tuple[Any, Any]:
    """Returns inputs with random labels, independent of the inputs.

    Args:
        x: Inputs of noise or of public records, shape `[canaries, ...]`.
        classes: The number of labels, >= 2.
        seed: The seed of the labels. By default, the operating system chooses
            it.

    Returns:
        `(x, y)`, where `y` is int32 of shape `[canaries]`.
    """
    _check.integer_at_least(2, classes=classes)
    inputs = np.asarray(x)
    labels = Draws(seed).integers(classes, inputs.shape[:1])
    return inputs, labels.astype(np.int32)


def mislabelled(
    x: npt.ArrayLike,
    y: npt.ArrayLike,
    *,
    classes: int,
    seed: int | None = None,
) -> tuple[Any, Any]:
    """Returns records with wrong labels.

    Args:
        x: Public inputs, shape `[canaries, ...]`.
        y: The right labels, integers in `[0, classes)`, shape `[canaries]`.
        classes: The number of labels, >= 2.
        seed: The seed of the new labels. By default, the operating system
            chooses it.

    Returns:
        `(x, y)`, where each label is drawn from the wrong ones, all equally
        likely.

    >>> _, y = mislabelled(np.zeros([3, 2]), [0, 1, 1], classes=2)
    >>> y.tolist()
    [1, 0, 0]
    """
    _check.integer_at_least(2, classes=classes)
    labels = np.asarray(y)
    if labels.dtype.kind not in "iu" or np.any(
        (labels < 0) | (labels >= classes)
    ):
        raise ValueError(
            f"`y` must be integers in [0, {classes}). Received: "
            f"dtype={labels.dtype!s}. Convert the labels to integers, and "
            "number them from 0."
        )
    moved = labels + 1 + Draws(seed).integers(classes - 1, labels.shape)
    return np.asarray(x), (moved % classes).astype(labels.dtype)
