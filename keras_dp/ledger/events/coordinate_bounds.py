"""Magnitudes of preselected vectors, compressed for a field of an event."""

import base64
import binascii
import dataclasses
import functools
import zlib
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_dp import _check

_LEVELS = np.dtype("<f4")
_COUNTS = np.dtype("<i8")
# The last few texts stay unpacked; their arrays can be large.
_REMEMBERED = 8
# A text from elsewhere could unpack to a thousand times its size.
_LARGEST_BYTES = 2**26


@dataclasses.dataclass(frozen=True, slots=True)
class CoordinateBounds:
    """The magnitudes of a set of public vectors, in a compact form.

    A magnitude is the absolute value of a coordinate. Each vector is stored by
    its distinct magnitudes, called levels: level `j` of a vector stands for
    `counts[j]` of its coordinates. The counts are the same for all vectors.

    Make it with `from_vectors` or `from_arrays`. Two objects are equal if their
    levels and counts are equal, in the same order, however a text was
    compressed.

    Attributes:
        levels: float32 `[vectors, levels]`, finite and >= 0, as the base64
            text of the zlib-compressed little-endian bytes.
        counts: int64 `[levels]`, each >= 1, in the same form.

    Raises:
        ValueError: A text is not in this form, the shapes differ, a level is
            negative or not finite, or a count is below 1.

    >>> bounds = CoordinateBounds.from_arrays([[0.5, 0.25]], [1, 3])
    >>> bounds.level_array().tolist(), bounds.count_array().tolist()
    ([[0.5, 0.25]], [1, 3])
    >>> bounds.dimension, bounds.largest_l2_norm
    (4, 0.66143...)
    """

    levels: str
    counts: str

    def __post_init__(self) -> None:
        _check.non_empty_text(levels=self.levels, counts=self.counts)
        counts = _unpacked("counts", self.counts, _COUNTS)
        if not counts.size or (counts < 1).any():
            raise ValueError(
                "`counts` must hold at least one number, each >= 1. "
                f"Received: {counts.size} of them."
            )
        if sum(counts.tolist()) >= 2**63:
            raise ValueError(
                "`counts` must have a sum that fits 64 bits. "
                f"Received: {sum(counts.tolist())} coordinates."
            )
        flat = _unpacked("levels", self.levels, _LEVELS)
        if not flat.size or flat.size % counts.size:
            raise ValueError(
                "`levels` must have the shape [vectors, levels], with as many "
                f"levels as `counts`. Received: {flat.size} levels in all, "
                f"and {counts.size} counts."
            )
        if not (np.isfinite(flat).all() and (flat >= 0).all()):
            raise ValueError(
                "`levels` must be finite and >= 0. Received: levels in "
                f"[{flat.min()}, {flat.max()}]."
            )
        # Minus zero becomes zero. Every text is compressed by one compressor.
        object.__setattr__(self, "levels", _packed(flat + _LEVELS.type(0)))
        object.__setattr__(self, "counts", _packed(counts))

    @classmethod
    def from_arrays(cls, levels: Any, counts: Any) -> Self:
        """Returns the bounds of some levels, rounded up to float32.

        Args:
            levels: Shape `[vectors, levels]`, finite and >= 0.
            counts: Shape `[levels]`, integers >= 1: the number of coordinates
                of each level.

        Raises:
            ValueError: The shapes do not fit, a level is negative or not
                finite, or a count is below 1 or not an integer.
        """
        exact = np.asarray(levels, np.float64)
        if exact.ndim != 2 or np.shape(counts) != exact.shape[1:]:
            raise ValueError(
                "`levels` must have the shape [vectors, levels], and `counts` "
                f"the shape [levels]. Received: shapes {exact.shape!r} and "
                f"{np.shape(counts)!r}."
            )
        whole = np.asarray(counts)
        if not np.issubdtype(whole.dtype, np.integer):
            raise ValueError(
                "`counts` must be integers. "
                f"Received: an array of {whole.dtype.name}."
            )
        with np.errstate(over="ignore"):  # To inf, which is refused.
            rounded = exact.astype(_LEVELS)
        below = rounded < exact
        rounded[below] = np.nextafter(rounded[below], np.float32(np.inf))
        return cls(_packed(rounded), _packed(whole.astype(_COUNTS)))

    @classmethod
    def from_vectors(cls, vectors: Any) -> Self:
        """Returns the magnitudes of your own public vectors.

        The magnitudes of each vector are sorted in decreasing order. Adjacent
        coordinates that are equal in every sorted vector become one level.

        Args:
            vectors: Shape `[vectors, size]`, finite.

        Raises:
            ValueError: `vectors` has another shape, is empty, or is not finite.

        >>> vectors = [[0, -3, 1, 0], [0, 2, 2, 0]]
        >>> bounds = CoordinateBounds.from_vectors(vectors)
        >>> bounds.level_array().tolist(), bounds.count_array().tolist()
        ([[3.0, 1.0, 0.0], [2.0, 2.0, 0.0]], [1, 1, 2])
        """
        magnitudes = np.abs(np.asarray(vectors, np.float64))
        if magnitudes.ndim != 2 or not magnitudes.size:
            raise ValueError(
                "`vectors` must have the shape [vectors, size], with neither "
                f"of these 0. Received: shape {magnitudes.shape!r}."
            )
        falling = -np.sort(-magnitudes, axis=1)
        changes = (falling[:, 1:] != falling[:, :-1]).any(axis=0)
        starts = np.r_[0, 1 + np.flatnonzero(changes)]
        counts = np.diff(np.r_[starts, falling.shape[1]])
        return cls.from_arrays(falling[:, starts], counts)

    def level_array(self) -> npt.NDArray[np.float32]:
        """Returns the levels, `[vectors, levels]`, read-only."""
        flat = _unpacked("levels", self.levels, _LEVELS)
        return flat.reshape(-1, self.count_array().size)

    def count_array(self) -> npt.NDArray[np.int64]:
        """Returns how many coordinates each level stands for, `[levels]`."""
        return _unpacked("counts", self.counts, _COUNTS)

    @property
    def dimension(self) -> int:
        """The number of coordinates of each vector."""
        return int(self.count_array().sum())

    @property
    def largest_l2_norm(self) -> float:
        """The L2 norm of the longest vector."""
        squares = np.square(self.level_array().astype(np.float64))
        return float(np.sqrt((squares @ self.count_array()).max()))

    def __repr__(self) -> str:
        vectors, levels = self.level_array().shape
        return (
            f"<CoordinateBounds of {vectors} vectors, {levels} levels, "
            f"dimension {self.dimension}>"
        )


def _packed(array: npt.NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(array.tobytes(), 9)).decode("ascii")


@functools.lru_cache(maxsize=_REMEMBERED)
def _unpacked(name: str, text: str, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(
            base64.b64decode(text, validate=True), _LARGEST_BYTES
        )
        if not unpacking.eof or unpacking.unused_data:
            raise ValueError(
                f"it does not end within {_LARGEST_BYTES} bytes, or goes on"
            )
        return np.frombuffer(content, dtype)
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ValueError(
            f"`{name}` must be base64 of zlib-compressed {dtype.name}. "
            f"Received: a text that is not: {error}. Make the bounds with "
            "`CoordinateBounds.from_vectors`."
        ) from error
