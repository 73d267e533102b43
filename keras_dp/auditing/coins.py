"""The coins of canaries, committed before a training and opened after it."""

import dataclasses
import secrets
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check
from keras_dp.ledger import Commitment, Opening
from keras_dp.ledger.rows.audits import digest_of

_SALT_BYTES = 32

Coins = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FairCoins:
    """Independent fair coins from the operating system's generator.

    A canary is a record that is made for an audit, of noise or of public data:
    an audit does not keep canaries private. A coin decides whether it takes
    part. Keep the coins secret until the scores are computed: someone who knows
    them can make a training look more private than it is. Keep the salt secret
    too. Without it, the coins of a few canaries can be found by trial.

    The settings of the training must not depend on the coins, and so not on the
    number of records with canaries. Fix the sampling probability and the
    denominator before, from the number of records plus half the number of
    canaries.

    Attributes:
        values: Booleans of shape `[canaries]`. True is for a canary that takes
            part.
        salt: Random text. `draw` makes 256 bits, in hex.

    >>> x, canaries = np.zeros([5000, 4]), np.ones([1000, 4])
    >>> coins = FairCoins.draw(len(canaries))
    >>> coins
    <1000 fair coins>
    >>> data = np.concatenate([x, canaries[coins.values]])
    >>> 5300 < len(data) < 5700
    True
    """

    values: Coins
    salt: str

    def __init__(self, values: npt.ArrayLike, salt: str) -> None:
        """Takes coins that were drawn before. `draw` draws new ones."""
        found = np.array(values)
        if found.ndim != 1 or found.dtype != np.bool_ or not found.size:
            raise ValueError(
                "`values` must be one boolean for each canary, at least one. "
                f"Received: shape={found.shape!r}, dtype={found.dtype!s}. Use "
                "FairCoins.draw(count)."
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
        """Returns the commitment that a ledger holds before the training.

        Args:
            content: The SHA-256 of the canaries, in hex.
            note: Free text, which becomes public.
        """
        digest = digest_of(self.salt, self._bits, content)
        return Commitment(digest, self.values.size, note)

    def opening(self, row: int, content: str) -> Opening:
        """Returns the opening that a verdict holds after the training.

        Args:
            row: The number of the row of the commitment.
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
