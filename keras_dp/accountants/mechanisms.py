"""What a round costs, with everything that does not matter taken away.

`normalization` turns the rounds of a ledger into these; accountants read
nothing else. A `noise_multiplier` is a noise stddev divided by a distance
between means: dimensionless, `>= 0`, and at 0 the release is not private.
"""

import dataclasses
from typing import ClassVar, NamedTuple, TypeAlias


@dataclasses.dataclass(frozen=True, slots=True)
class Gaussian:
    """The pair `N(0, z^2)`, `N(1, z^2)` with `z = noise_multiplier`.

    Attributes:
        noise_multiplier: Stddev over sensitivity under the chosen relation.
        sampling_probability: 1, as nothing amplifies.
    """

    noise_multiplier: float
    sampling_probability: ClassVar[float] = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class SampledGaussian:
    """The pair `(1-q) N(0, z^2) + q N(1, z^2)`, `N(0, z^2)`, both ways round.

    Poisson sampling when neighbours differ by one record being there or not.

    Attributes:
        noise_multiplier: `z`, stddev over the bound of one record.
        sampling_probability: `q`, in (0, 1).
    """

    noise_multiplier: float
    sampling_probability: float


@dataclasses.dataclass(frozen=True, slots=True)
class SampledGaussianReplaceOne:
    """The pair `(1-q) N(0, z^2) + q N(1, z^2)` and its mirror image in 0.

    Poisson sampling when neighbours differ in the value of one record.

    Guarantee: let `r`, `p`, `p'` be the output when the sample, the other
    records in it being fixed, lacks the record, holds it, or holds its
    replacement: Gaussians with means `0, a, b`, where `|a|, |b| <= 1` (in
    units of the bound). For a convex `f` the divergence of
    `P = (1-q) r + q p` from `Q = (1-q) r + q p'` is `E_r[h(X, Y)]` with
    `X = p/r`, `Y = p'/r`, `u = P/r`, `v = Q/r`, `h = v f(u/v)`, and
    `h_xx = q^2 f''/v >= 0`, `h_yy = q^2 f'' u^2/v^3 >= 0`,
    `h_xy = -q^2 f'' u/v^2 <= 0`. `(X, Y)` are log-normal martingales with
    `|a|^2`, `|b|^2`, `a.b` as covariances, and by Price's theorem
    `d/d|a|^2 = E[X^2 h_xx]/2`, `d/d(a.b) = E[XY h_xy]`: the divergence grows
    with both lengths and falls with their product. `a = 1, b = -1` has the
    longest ones and the least product. Joint convexity takes the mixture over
    the other records away.

    Attributes:
        noise_multiplier: `z`, stddev over the bound of *one* record (twice
            that bound is only reached if the record is in the sample).
        sampling_probability: `q`, in (0, 1).
    """

    noise_multiplier: float
    sampling_probability: float


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizeGaussian:
    """A sample of fixed size without replacement; neighbours replace a record.

    Attributes:
        noise_multiplier: Stddev over *twice* the bound of one record, as the
            record, its replacement and whichever record takes its place in
            the sample are that far apart.
        sampling_probability: Sample size over population size, in (0, 1).
    """

    noise_multiplier: float
    sampling_probability: float


Mechanism: TypeAlias = (
    Gaussian | SampledGaussian | SampledGaussianReplaceOne | FixedSizeGaussian
)


class CountedMechanism(NamedTuple):
    """A mechanism and how many rounds of it there were."""

    mechanism: Mechanism
    rounds: int
