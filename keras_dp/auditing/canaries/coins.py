"""The coins of canaries, fixed before a training and opened after it."""

import dataclasses
import secrets
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.ledger import Commitment, Opening
from keras_dp.ledger.audits import digest_of

_SALT_BYTES = 32

Coins = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FairCoins:
    """Independent fair coins of the operating system's generator.

    They are secret until the scores are computed: who knows them can make a
    training look as private as they like. The salt is too, or the coins of a
    few canaries could be found by trying.

    Attributes:
        values: True for each canary that is put in, shape `[canaries]`.
        salt: 256 random bits, in hex.

    >>> coins = FairCoins.draw(1000)
    >>> coins
    <1000 fair coins>
    >>> 300 < int(coins.values.sum()) < 700
    True
    """

    values: Coins
    salt: str

    def __init__(self, values: npt.ArrayLike, salt: str) -> None:
        """Takes coins that were drawn; `draw` draws others."""
        found = np.array(values)
        if found.ndim != 1 or found.dtype != np.bool_ or not found.size:
            raise ValueError(
                "`values` must be one boolean for each canary, at least one. "
                f"Received: shape={found.shape!r}, dtype={found.dtype!s}."
            )
        _check.non_empty_text(salt=salt)
        found.flags.writeable = False
        object.__setattr__(self, "values", found)
        object.__setattr__(self, "salt", salt)

    @classmethod
    def draw(cls, count: int) -> Self:
        """Draws one coin for each canary, and a salt.

        Args:
            count: The number of canaries, >= 1.
        """
        _check.integer_at_least(1, count=count)
        drawn = np.frombuffer(secrets.token_bytes(-(-count // 8)), np.uint8)
        values = np.unpackbits(drawn, count=int(count)).astype(np.bool_)
        return cls(values, secrets.token_hex(_SALT_BYTES))

    def commitment(self, content: str, note: str = "") -> Commitment:
        """Returns what a ledger holds before the training.

        Args:
            content: SHA-256 of the canaries, in hex.
            note: Free text. Nothing secret.
        """
        digest = digest_of(self.salt, self._bits, content)
        return Commitment(digest, self.values.size, note)

    def opening(self, row: int, content: str) -> Opening:
        """Returns what a verdict holds after the training.

        Args:
            row: The row of the commitment.
            content: As in `commitment`.
        """
        return Opening(row, self.salt, self._bits, content)

    @property
    def _bits(self) -> str:
        return np.packbits(self.values).tobytes().hex()

    def __len__(self) -> int:
        return int(self.values.size)

    def __repr__(self) -> str:
        return f"<{len(self)} fair coins>"
