"""Public random numbers for labels, noise images and patterns."""

import numpy as np
import numpy.typing as npt


class Draws:
    """Uniform numbers from Philox. They are not secret.

    >>> bool(Draws(0).integers(10, (4,)).max() < 10)
    True
    """

    def __init__(self, seed: int | None) -> None:
        """Begins a stream.

        Args:
            seed: An integer >= 0. By default, the operating system chooses it.
        """
        self._words = np.random.Philox(np.random.SeedSequence(seed))

    def integers(
        self, below: int, shape: tuple[int, ...]
    ) -> npt.NDArray[np.int64]:
        """Returns integers in `[0, below)`, uniform up to `below / 2^53`."""
        bits = self._raw(shape) >> np.uint64(11)
        return np.asarray(bits * 2.0**-53 * below, np.int64)

    def images(self, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Returns multiples of 2^-24 in [0, 1)."""
        bits = self._raw(shape) >> np.uint64(40)
        return np.asarray(bits * 2.0**-24, np.float32)

    def rows(self, count: int, below: int) -> npt.NDArray[np.int64]:
        """Returns `count` different integers in `[0, below)`."""
        return np.argsort(self._raw((below,)), kind="stable")[:count]

    def _raw(self, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
        return np.asarray(self._words.random_raw(shape), np.uint64)
