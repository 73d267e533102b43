"""The scores of canaries, inside a training and outside of it."""

import dataclasses
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.accountants.normalize.samplings import RELATIONS


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One score for each canary.

    A higher score means that the canary is more likely to have been trained on.
    A score must be computed from the releases of the training, without the coin
    of its canary. The order of the scores is not used.

    Attributes:
        inside: The scores of canaries that were trained on, shape `[inside]`.
        outside: The scores of canaries that were left out, shape `[outside]`.
        neighbours: The adjacency relation of every bound. It is
            "add_or_remove_one" if a coin inserts a canary or leaves it out, and
            "replace_one" if a coin replaces it by another record.

    >>> scores = Scores([2.0, 3.5], [0.5])
    >>> len(scores), scores.inside.tolist()
    (3, [2.0, 3.5])
    """

    inside: Array
    outside: Array
    neighbours: Neighbours = "add_or_remove_one"

    def __init__(
        self,
        inside: npt.ArrayLike,
        outside: npt.ArrayLike,
        neighbours: Neighbours = "add_or_remove_one",
    ) -> None:
        _check.one_of(RELATIONS, neighbours=neighbours)
        object.__setattr__(self, "inside", _finite("inside", inside))
        object.__setattr__(self, "outside", _finite("outside", outside))
        object.__setattr__(self, "neighbours", neighbours)

    @classmethod
    def from_coins(
        cls,
        scores: npt.ArrayLike,
        coins: npt.ArrayLike,
        neighbours: Neighbours = "add_or_remove_one",
    ) -> Self:
        """Separates the scores of all canaries by their coins.

        Args:
            scores: Numbers of shape `[canaries]`, in the order of the coins.
            coins: Booleans of shape `[canaries]`. True is for a canary that
                was trained on.
            neighbours: The adjacency relation.

        >>> Scores.from_coins([2.0, 0.5], [True, False]).outside.tolist()
        [0.5]
        """
        every, chosen = _finite("scores", scores), np.asarray(coins)
        if chosen.shape != every.shape or chosen.dtype != np.bool_:
            raise ValueError(
                "`coins` must be one boolean for each score. Received: "
                f"shape={chosen.shape!r}, dtype={chosen.dtype!s}, for "
                f"{every.size} scores. Give coins in the order of scores."
            )
        return cls(every[chosen], every[~chosen], neighbours)

    def __len__(self) -> int:
        """The number of canaries."""
        return self.inside.size + self.outside.size

    def __repr__(self) -> str:
        return (
            f"Scores(inside={self.inside.size}, outside={self.outside.size}, "
            f"neighbours={self.neighbours!r})"
        )


def _finite(name: str, values: npt.ArrayLike) -> Array:
    found = np.array(values, np.float64)
    if found.ndim != 1 or not np.all(np.isfinite(found)):
        raise ValueError(
            f"`{name}` must be one finite number for each canary. Received: "
            f"shape={found.shape!r}, "
            f"{np.count_nonzero(~np.isfinite(found))} not finite. Replace or "
            "leave out such canaries without a look at their coins."
        )
    found.flags.writeable = False
    return found
