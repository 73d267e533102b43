"""Public vectors of magnitudes that records are clipped to."""

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from keras_dp import _check, ledger
from keras_dp.dp_queries.saving import Configured, as_floats, register

Array = npt.NDArray[np.float64]

# Gauss-Legendre quadrature integrates the mean square of a block. It is exact
# for polynomials up to degree 7.
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(4)
# The number of ranks at which the spread of blocks over ranks is computed.
_RANKS = 4096


@register
@dataclasses.dataclass(frozen=True, slots=True)
class PreselectedVectors(Configured):
    """A recipe for the public vectors of an `EncodedSumQuery`.

    Each vector holds the magnitudes of `size` independent draws from a public
    distribution, in decreasing order. Magnitudes below `floor` are set to zero,
    and the vector is scaled to the norm `l2_norm`. To save memory, a vector has
    at most `levels` different magnitudes: each of the largest is kept, and
    blocks of the others, ever longer, are replaced by their root mean square,
    which keeps the norm. The blocks are at the same places in all vectors. With
    `levels >= size` every magnitude is kept. The vectors are made when they are
    needed.

    Guarantee: none of its own. A query that uses the vectors needs that they
    are fixed before the private data is seen, and independent of it. So
    `distribution` must not be fitted to private gradients. Blocks cost no
    privacy: records are clipped to exactly the vectors that the ledger gets.
    The norm is `l2_norm`, plus at most a relative 2^-23 from rounding levels up
    to float32.

    The table shows how much the blocks change a vector, how much two vectors
    differ (both as mean distances divided by `l2_norm`), and the least cosine
    similarity of two vectors, for 1,000 vectors with 256 levels
    (`benchmarks/chunked_queries.py --vectors`):

    | distribution | size | by blocks | two vectors | least similarity |
    | --- | --- | --- | --- | --- |
    | Gaussian | 1,000 | 0.004 | 0.037 | 0.9937 |
    | Gaussian | 1,000,000 | 0.004 | 0.0014 | 0.99999 |
    | Student's t, df 3 | 1,000 | 0.004 | 0.19 | 0.35 |
    | Student's t, df 3 | 1,000,000 | 0.008 | 0.07 | 0.62 |

    Many draws, sorted, are nearly the same vector each time, unless the
    distribution has heavy tails. So `count` hardly matters. For vectors that
    differ, give several distributions.

    Attributes:
        distribution: The public distribution of the draws, or a tuple of
            several.
        count: Number of vectors from each distribution, >= 1.
        size: Number of coordinates, >= 1.
        l2_norm: Norm of each vector, > 0, in the unit of the records.
        floor: Magnitudes below it become 0, >= 0, in the unit of the
            distribution, before scaling. For a block, its root mean square is
            compared.
        levels: Largest number of different magnitudes in a vector, >= 1.
        seed: Seed of the draws, >= 0. It is no secret.

    Raises:
        TypeError: `distribution` is not a NoiseDistribution or a tuple of them.
        ValueError: A number is out of its range.

    Source: Nasr, Shokri, Houmansadr (2020), arXiv:2007.11524v1, sections 3.1
    and 5: 1,000 vectors from a standard Gaussian, `floor` 1e-5, norm 1. The
    paper has sparse vectors; blocks are ours.

    >>> from keras_dp.ledger import GaussianNoise
    >>> vectors = PreselectedVectors(
    ...     GaussianNoise(1.0), count=10, size=10_000, l2_norm=2.0, levels=64)
    >>> vectors.bounds()
    <CoordinateBounds of 10 vectors, 62 levels, dimension 10000>
    >>> vectors.bounds().largest_l2_norm
    2.0000...
    """

    distribution: (
        ledger.NoiseDistribution | tuple[ledger.NoiseDistribution, ...]
    )
    count: int
    size: int
    l2_norm: float
    floor: float = 1e-5
    levels: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for noise in self.distributions:
            if not isinstance(noise, ledger.NoiseDistribution):
                raise TypeError(
                    "`distribution` must be a NoiseDistribution, or a tuple "
                    f"of them. Received: distribution={self.distribution!r}."
                )
        if not self.distributions:
            raise ValueError(
                "`distribution` must hold at least one NoiseDistribution. "
                f"Received: distribution={self.distribution!r}."
            )
        for name in ("count", "size", "levels"):
            _check.integer_at_least(1, **{name: getattr(self, name)})
        _check.integer_at_least(0, seed=self.seed)
        _check.finite_positive(l2_norm=self.l2_norm)
        _check.finite_non_negative(floor=self.floor)
        for name in ("count", "size", "levels", "seed"):
            object.__setattr__(self, name, int(getattr(self, name)))
        as_floats(self, "l2_norm", "floor")

    @property
    def distributions(self) -> tuple[ledger.NoiseDistribution, ...]:
        """The distributions of the draws, one or several."""
        if isinstance(self.distribution, tuple):
            return self.distribution
        return (self.distribution,)

    def bounds(self) -> ledger.CoordinateBounds:
        """Returns the vectors; they are made once and then remembered.

        Raises:
            ValueError: `floor` is above every magnitude of a vector, or a draw
                is not finite.
        """
        return _bounds(self)


# A set of 1,000 vectors of 256 levels takes 2 MB.
@functools.lru_cache(maxsize=16)
def _bounds(recipe: PreselectedVectors) -> ledger.CoordinateBounds:
    counts = block_sizes(recipe.size, recipe.levels)
    rows = [
        _levels(recipe, noise, (place, own), counts)
        for place, noise in enumerate(recipe.distributions)
        for own in range(recipe.count)
    ]
    return ledger.CoordinateBounds.from_arrays(np.stack(rows), counts)


def block_sizes(size: int, levels: int) -> npt.NDArray[np.int64]:
    """Returns the length of each block of ranks, from the largest magnitude on.

    Half of the levels are spread evenly over the logarithm of the rank, for the
    few large magnitudes. Half are spread evenly over the rank, for the many
    small ones. There can be fewer blocks than `levels`, where two would be the
    same.
    """
    if levels >= size:
        return np.ones(size, np.int64)
    ranks = np.geomspace(1, size, _RANKS)
    heights = 0.5 * np.log(ranks) / math.log(size) + 0.5 * (ranks - 1) / (
        size - 1
    )
    ends = np.interp(np.linspace(0, 1, levels), heights, ranks)
    ends[-1] = size
    return np.diff(np.r_[0, np.unique(np.rint(ends).astype(np.int64))])


def _levels(
    recipe: PreselectedVectors,
    noise: ledger.NoiseDistribution,
    key: tuple[int, int],
    counts: npt.NDArray[np.int64],
) -> Array:
    """Returns the levels of one vector, from order statistics of the draws.

    A magnitude is exceeded with some probability. These probabilities, sorted,
    are uniform order statistics. At the ends of blocks they are sums of gamma
    variables, divided by the total (Rényi 1953). Within a block, the expected
    mean square is taken.
    """
    entropy = np.random.SeedSequence(recipe.seed, spawn_key=key)
    words = np.random.Philox(entropy).random_raw(counts.size + 1)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    gaps = special.gammaincinv(np.r_[counts, 1], uniform)
    ends = np.cumsum(gaps[:-1]) / gaps.sum()
    starts = np.r_[0.0, ends[:-1]]
    levels = np.where(counts == 1, _magnitudes(noise, ends), 0.0)
    blocks = np.flatnonzero(counts > 1)
    middle = 0.5 * (starts + ends)[blocks, np.newaxis]
    reach = 0.5 * (ends - starts)[blocks, np.newaxis]
    inner = _magnitudes(noise, middle + reach * _NODES)
    # Scaled, as squares of heavy tails overflow.
    most = np.maximum(inner.max(axis=1, keepdims=True), np.finfo(float).tiny)
    mean_squares = np.square(inner / most) @ (0.5 * _WEIGHTS)
    levels[blocks] = most[:, 0] * np.sqrt(mean_squares)
    # Quantile functions found by search are monotone up to rounding.
    levels = np.minimum.accumulate(levels)
    levels[levels < recipe.floor] = 0.0
    largest = levels.max()
    if not 0 < largest < math.inf:
        raise ValueError(
            "`floor` must be below the largest of the draws, and these must "
            f"be finite. Received: floor={recipe.floor!r}, and draws from "
            f"{noise!r} up to {largest!s}."
        )
    unit = levels / largest
    return unit * (recipe.l2_norm / math.sqrt(float(np.square(unit) @ counts)))


def _magnitudes(noise: ledger.NoiseDistribution, chance: Array) -> Array:
    """Returns the magnitudes that are exceeded with these probabilities."""
    return -noise.quantile(0.5 * np.minimum(chance, 1.0))
