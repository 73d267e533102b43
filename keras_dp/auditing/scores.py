"""The scores of canaries that were in a training, and of those left out."""

import dataclasses
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.accountants.arrays import Array
from keras_dp.accountants.normalize.adjacency import RELATIONS, Neighbours


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """A number for each canary: the higher, the more it looks trained on.

    A score is computed from what the training released, and never from the
    coin of its canary. Their order carries no meaning.

    Attributes:
        inside: Canaries that were trained on, shape `[inside]`.
        outside: Canaries that were left out, shape `[outside]`.
        neighbours: The change of the data that one canary makes, which is the
            adjacency relation of every bound. "add_or_remove_one" where a
            canary is there or not, "replace_one" where another record takes
            its place.

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
        """Divides the scores of all canaries by their coins.

        Args:
            scores: Shape `[canaries]`, in the order of the coins.
            coins: True for each canary that was trained on, shape
                `[canaries]`.
            neighbours: The change of the data that one canary makes.

        >>> Scores.from_coins([2.0, 0.5], [True, False]).outside.tolist()
        [0.5]
        """
        every, chosen = _finite("scores", scores), np.asarray(coins)
        if chosen.shape != every.shape or chosen.dtype != np.bool_:
            raise ValueError(
                "`coins` must be one boolean for each score. Received: "
                f"shape={chosen.shape!r}, dtype={chosen.dtype!s}, for "
                f"{every.size} scores."
            )
        return cls(every[chosen], every[~chosen], neighbours)

    @classmethod
    def from_pairs(
        cls,
        first: npt.ArrayLike,
        second: npt.ArrayLike,
        first_is_inside: npt.ArrayLike,
    ) -> Self:
        """Makes one score of two canaries, of which one was trained on.

        A coin decides which of the two is used, so that it replaces one record
        by another. The score of the pair is by how much the first looks more
        trained on than the second.

        Args:
            first: Shape `[pairs]`.
            second: Shape `[pairs]`.
            first_is_inside: The coins, shape `[pairs]`, boolean.

        >>> Scores.from_pairs([3.0], [1.0], [True])
        Scores(inside=1, outside=0, neighbours='replace_one')
        """
        one, other = _finite("first", first), _finite("second", second)
        if one.shape != other.shape:
            raise ValueError(
                "`second` must be one score for each of `first`. Received: "
                f"{other.size} for {one.size}."
            )
        return cls.from_coins(one - other, first_is_inside, "replace_one")

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
            f"{np.count_nonzero(~np.isfinite(found))} not finite."
        )
    found.flags.writeable = False
    return found
