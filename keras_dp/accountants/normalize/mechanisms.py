"""Mechanisms: the rounds as accountants read them, and no more than that.

`normalize` turns the rounds of a ledger into these; accountants read
nothing else. A `noise_multiplier` is a noise stddev divided by a distance
between means: dimensionless, `>= 0`, and at 0 the release is not private.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeAlias

from keras_dp.accountants.normalize.thresholds import (
    Threshold,
    chance_to_pass,
)
from keras_dp.ledger import (
    CoordinateBounds,
    NoiseDistribution,
    TruncatedNegativeBinomial,
)

# A noise multiplier in which nothing is seen. With more noise 1/z^2 would
# underflow, and the release would count as free; with less than its reciprocal
# 1/z^2 would overflow, and it counts as bare.
UNREACHED = 1e100
# More than the rounding of a sum and of a few products.
_ROUND_UP = 1 + 1e-14


@dataclasses.dataclass(frozen=True, slots=True)
class Gaussian:
    """The pair `N(0, z^2)`, `N(1, z^2)` with `z = noise_multiplier`.

    `z` is the stddev over the sensitivity under the chosen relation.
    `most_noise` is the same for what two data sets are known to reach; `None`
    if it is no larger, `UNREACHED` if none are known to reach any.
    """

    noise_multiplier: float
    most_noise: float | None = None
    sampling_probability: ClassVar[float] = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class SampledGaussian:
    """The pair `(1-q) N(0, z^2) + q N(1, z^2)`, `N(0, z^2)`, both ways round.

    Poisson sampling when neighbours differ by one record being there or not.
    `z` is the stddev over the bound of one record.

    Guarantee: the pair of a smaller `z` and a larger `q` dominates this one,
    in both directions. *Noise.* Adding `N(0, z^2 - y^2)` to an output turns
    both distributions of the pair of `y < z` into those of the pair of `z`.
    *Probability.* Replacing an output by a draw from `N(0, z^2)`, with chance
    `1 - q/p`, turns the pair of `p > q` into that of `q`: the second
    distribution stays, and the first becomes

        (q/p) ((1-p) N(0, z^2) + p N(1, z^2)) + (1 - q/p) N(0, z^2).

    Neither step knows which of the two data sets it was: both are
    post-processing. The other pairs of this file are dominated likewise. The
    noise is added in the same way to all of them. If the probability is that of
    a pair with `N(0, z^2)` in it, as in `SampledGaussianReplaceOne` and
    `FixedSizeGaussian`, the same replacement does.
    `SampledGaussianGroup` has its own proof.

    Attributes:
        samples_all: Whether every record is in the sample of every such round
            with this probability. Then a group of records costs what
            `SampledGaussianGroup` says. Where classes take turns, the records
            of a group can be in different rounds, which correlated noise
            connects. No pair is proven for such a group.
        most_noise: As for `Gaussian`.
        reached: The sampling probability that two data sets are known to reach;
            `None` if it is no lower.
    """

    noise_multiplier: float
    sampling_probability: float
    samples_all: bool = dataclasses.field(default=True, repr=False)
    most_noise: float | None = dataclasses.field(default=None, repr=False)
    reached: float | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class SampledGaussianReplaceOne:
    """The pair `(1-q) N(0, z^2) + q N(1, z^2)` and its mirror image in 0.

    Poisson sampling when neighbours differ in the value of one record. `z` is
    the stddev over the bound of *one* record: twice that bound is only reached
    if the record is in the sample.

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
    """

    noise_multiplier: float
    sampling_probability: float
    most_noise: float | None = dataclasses.field(default=None, repr=False)
    reached: float | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True)
class FullOrNot:
    """A truncated Poisson sample that tells whether others filled the batch.

    Attributes:
        whole: The round, if the batch is not full without the record.
        parts: A chance, a noise multiplier and a sampling probability of each
            kind of round that it is with this chance. The chances know nothing
            of the data, and their sum is 1. The first kind is `whole`.
    """

    whole: SampledGaussian | SampledGaussianReplaceOne
    parts: tuple[tuple[float, float, float], ...]

    @property
    def noise_multiplier(self) -> float:
        """The least one of all kinds."""
        return min(z for _, z, _ in self.parts)

    @property
    def sampling_probability(self) -> float:
        """The largest chance of the record to be drawn."""
        return self.whole.sampling_probability


@dataclasses.dataclass(frozen=True, slots=True)
class FixedSizeGaussian:
    """A sample of fixed size without replacement; neighbours replace a record.

    The noise multiplier is the stddev over *twice* the bound of one record, as
    the record, its replacement and whichever record takes its place in the
    sample are that far apart.
    """

    noise_multiplier: float
    sampling_probability: float


@dataclasses.dataclass(frozen=True, slots=True)
class SampledGaussianGroup:
    """The pair `sum_j Bin(j; k, q) N(j, z^2)`, `N(0, z^2)`, both ways round.

    Poisson sampling when neighbours differ by `k = records` being there or not.
    `z` is the stddev over the bound of one record.

    Guarantee: given the sample of the other records, the output is a mixture
    over the subsets of the `k` records that are in the sample, each a Gaussian
    moved by a sum of vectors of length at most 1. Likelihood ratios of the
    subsets are log-normal martingales whose covariances are the products of
    the sums, and the divergence of the mixture from `N(0, z^2)` is the mean of
    a convex function of their mixture, so that by Price's theorem it grows
    with every covariance (compare `SampledGaussianReplaceOne`). All are
    largest if the records are one vector of length 1: then the sums depend on
    the number of records in the sample alone, which is binomial. The other
    order is the divergence of another convex function.

    The divergences grow with `q`, by the same theorem: leave each record of a
    sample of `p > q` out with chance `1 - q/p`. Its subset is a sample of `q`,
    and for any two samples the product of the sums is at most that of the
    samples they are subsets of.
    """

    noise_multiplier: float
    sampling_probability: float
    records: int


class Encoding(NamedTuple):
    """A sum of encoded records, whose noise on each coordinate is not Gaussian.

    The bounds are magnitudes of each vector that a record can become.
    """

    bounds: CoordinateBounds
    noise: NoiseDistribution


@dataclasses.dataclass(frozen=True, slots=True)
class AdditiveNoise:
    """Sums over one sample with noise of several kinds; see `renyi.encoded`.

    Neighbours differ by one record being there, or contributing, or not. The
    noise multiplier is that of the Gaussian sums, `inf` without any. At a
    probability of 1 nothing amplifies.
    """

    noise_multiplier: float
    sampling_probability: float
    encodings: tuple[Encoding, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class OneOf:
    """One of several mechanisms without sampling, which the data decide.

    Guarantee: divergence of an order is the largest of theirs.
    """

    alternatives: tuple["Mechanism", ...]
    sampling_probability: ClassVar[float] = 1.0

    @property
    def noise_multiplier(self) -> float:
        """The least of the alternatives' ones."""
        return min(each.noise_multiplier for each in self.alternatives)


@dataclasses.dataclass(frozen=True, slots=True)
class Slack:
    """A part of a round that only adds to delta; no mechanism of its own.

    Guarantee: let the other mechanisms of a ledger, composed, be
    `(epsilon, d)`-private. The ledger is `(epsilon, d + c)`-private, with `c`
    the sum of the chances of all rounds. With the same chance `c_i` on both
    data sets, the output of a round is anything at all, and else that of a
    mechanism: `(1-c_i) P + c_i E` and `(1-c_i) Q + c_i F`. By joint convexity
    the divergence of the two, of any `e^epsilon >= 0`, is at most `(1-c_i)`
    times that of `P` from `Q`, plus `c_i`: that of a pair which tells with
    chance `c_i` which data set it was. Such pairs compose to one whose chance
    is `1 - prod(1 - c_i) <= sum c_i`. All this holds with the data sets in
    either order.

    `Exposure` is the slack of thresholds, and this that of truncated samples
    (see `truncation`). A round may have both, which add up. The noise
    multiplier is `inf`, because slack is not what makes epsilon infinite. The
    probability is 1, as all amplification is applied.

    `full_or_not` is the same round with a price that needs no slack, if there
    is one.
    """

    chance: float
    full_or_not: "FullOrNot | None" = None
    noise_multiplier: ClassVar[float] = math.inf
    sampling_probability: ClassVar[float] = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Exposure:
    """The slack of thresholds; see `Slack`.

    Guarantee: let `E` be that a key is released which only the changed records
    of the sample hold. Its chance is at most `c = chance_to_pass` with either
    data set. If it does not happen, the output is a function of noised sums of
    keys that other records hold, and independent of it. A part of the other
    outcomes counted as `E` makes its chance `c` with both.

    If a sample of the changed records is drawn with probability `q`, the chance
    is `q c`. Let the sample of the other records be fixed, `R` be the output on
    it, and `A` that if any of the changed records are drawn too:
    `A = (1-c) A0 + c E`, where `A0` is Gaussian sums. With
    `q' = q (1-c) / (1-qc) <= q` the output `(1-q) R + q A` is
    `(1-qc) ((1-q') R + q' A0) + qc E`. The divergence of `(1-q') R + q' A0`
    from `R`, from `(1-q') R + q' B0` for replaced records, or of these from
    it, is convex in `q'` and least at 0, where both are `R`. So it is at most
    that for `q`, which is the mechanism of the round. Joint convexity takes
    the mixture over the other records away.

    Attributes:
        alternatives: The thresholds of a round; of each round of an epoch of
            disjoint batches, in one of which a record takes part.
        sampling_probability: `q` of one record, in (0, 1].
        records: How many records are changed.
    """

    alternatives: tuple[tuple[Threshold, ...], ...]
    sampling_probability: float = 1.0
    records: int = 1
    noise_multiplier: ClassVar[float] = math.inf

    @property
    def chance(self) -> float:
        """The chance that something is released of these records alone."""
        chances = [
            math.fsum(chance_to_pass(*each, self.records) for each in round_)
            for round_ in self.alternatives
        ]
        # Records of a group can be in different rounds.
        chance = max(chances) if self.records == 1 else math.fsum(chances)
        share = self.sampling_probability
        if share < 1:
            share = -math.expm1(self.records * math.log1p(-share))
        # It is never 0: that would say that the round has no slack.
        return min(1.0, max(math.ulp(0.0), chance * share * _ROUND_UP))


@dataclasses.dataclass(frozen=True, slots=True)
class Selected:
    """The best of a random number of trials; docs/accounting.md, section 8.

    Attributes:
        plans: The mechanisms of each plan of a trial for one record, or already
            of a group if `records` is 1.
        law: The law of the number of trials.
        records: How many records are changed.
    """

    plans: tuple[tuple["CountedMechanism", ...], ...]
    law: TruncatedNegativeBinomial
    records: int = 1
    sampling_probability: ClassVar[float] = 1.0

    @property
    def noise_multiplier(self) -> float:
        """The least one of all plans."""
        return min(
            mechanism.noise_multiplier
            for plan in self.plans
            for mechanism, _ in plan
        )


@dataclasses.dataclass(frozen=True, slots=True)
class ProfilePair:
    """A pair of distributions with finitely many privacy losses, without noise.

    It is the same for both directions. `searches.profile_pair` makes it.

    Attributes:
        losses: In nats, rising.
        masses: The mass of each loss under `Q`, > 0.
    """

    losses: tuple[float, ...]
    masses: tuple[float, ...]
    noise_multiplier: ClassVar[float] = 1.0
    sampling_probability: ClassVar[float] = 1.0


Mechanism: TypeAlias = (
    Gaussian
    | SampledGaussian
    | SampledGaussianReplaceOne
    | SampledGaussianGroup
    | FullOrNot
    | FixedSizeGaussian
    | AdditiveNoise
    | OneOf
    | Selected
    | ProfilePair
    | Slack
    | Exposure
)
# Both only add to delta.
SLACK = Slack | Exposure


class CountedMechanism(NamedTuple):
    """A mechanism and how many rounds of it there were."""

    mechanism: Mechanism
    rounds: int


# Noise and probability tell all mechanisms of these kinds apart.
_TOLD_BY_NUMBERS = frozenset(
    {
        "Gaussian",
        "SampledGaussian",
        "SampledGaussianReplaceOne",
        "FixedSizeGaussian",
    }
)


def in_order(
    counts: Mapping[Mechanism, int],
) -> tuple[CountedMechanism, ...]:
    """Returns mechanisms in the order on which last digits depend."""
    return tuple(
        CountedMechanism(mechanism, counts[mechanism])
        for mechanism in sorted(counts, key=place)
    )


def place(mechanism: Mechanism) -> tuple[str, float, float, str]:
    """Returns by what mechanisms are ordered."""
    name = type(mechanism).__name__
    rest = "" if name in _TOLD_BY_NUMBERS else _text(mechanism)
    if not getattr(mechanism, "samples_all", True):
        rest = "classes"
    if any(
        getattr(mechanism, name, None) is not None
        for name in ("most_noise", "reached")
    ):
        rest = _text(mechanism)
    z, q = mechanism.noise_multiplier, mechanism.sampling_probability
    return name, z, q, rest


def _text(mechanism: Mechanism) -> str:
    return repr(mechanism) + repr(dataclasses.astuple(mechanism))
