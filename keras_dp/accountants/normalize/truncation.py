"""Truncated Poisson samples: how likely a record meets a full batch.

A Poisson sample of probability `q` of which at most `B` records are kept costs
what the whole sample would, but for the outcomes in which the record is drawn
and `B` others are too. They have the chance

    c = q P(Bin(N - 1, q) >= B)

in the larger data set of N records, and add `c` to delta.

Guarantee: let `O` be the event that the coin of the record falls on "drawn" and
that `B` or more others are drawn. The coins are independent of the data, so
that `O` has the chance `c` on both data sets (on that without the record, its
coin is tossed and not used): the outputs are `(1-c) P + c E` and
`(1-c) Q + c F`. `P` and `Q` follow from the set `T` of others that
are drawn, which has one distribution for both. If `T` has `B` or more, the
record is not drawn, `T` is truncated by coins of its own, and both outputs are
the same. If it has fewer, the record is drawn with probability `q`, and nothing
is truncated: the outputs are those of a Poisson sample. So for a fixed `T`
they are at most as far apart as the pair of Poisson sampling. Joint convexity
takes the mixture over `T` away. `Slack` says how exposures compose. A record
that is replaced or zeroed has one coin on both data sets, and a tree sees the
same `T` on both in all rounds, if no round has `O`.

*Without delta.* Where `c` is large, a Gaussian sum has another price. Tell the
adversary whether `T` has `B` or more: the chance `p = P(Bin(N - 1, q) >= B)`
knows nothing of the data. If it has, let `V` be a uniform subset of `B` of all
others, `y` one of `V`, and `U` the rest. Without the record the sum is that of
`U` and `y`. With it the record is kept instead of `y`, with the chance

    q' = q E[B / (|T| + 1) | |T| >= B] = B P(Bin(N, q) > B) / (N p) <= q.

So given `U` and `y`, that is a Poisson round in which the record moves the sum
by twice its bound, and without such a `T` it is a Poisson round as any
(`FullOrNot`). `with_and_without_slack` has both, and the smaller price counts.

*A record that is replaced or zeroed* is kept by the same coins on both data
sets, and so are all others. Tell the adversary whether it is kept in a full
batch, which has the chance `p q'`. If it is, the two sums differ by what the
two records do. If it is not kept in a full batch, they are the same.

*The lower bound.* If all others are zero, the record is kept with a chance of
at least `q (1 - p + p B / N)`, and nothing else is seen.

The proof is ours. Chua et al. (2024), arXiv:2411.04205, Theorem 3.3, compare
the truncated with the whole sample, which adds `(1 + e^epsilon)` times the
chance that the sample overflows: larger by a factor of `(1 + e^epsilon) / q`.
"""

import functools
import math
from collections import Counter

from scipy import special

from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    FullOrNot,
    Mechanism,
    SampledGaussian,
    SampledGaussianReplaceOne,
    Slack,
    in_order,
)
from keras_dp.accountants.normalize.rounds import Neighbours
from keras_dp.ledger import TruncatedPoissonSampling

# Errors of the exponent relative to its terms: a dozen of roundings.
_MARGIN = 1e-14
_ROUND_UP = 1 + 1e-12
# More than the error of a binomial tail, as a share of it, or below any float.
_SAFE, _NEXT_TO_NOTHING = 1 + 1e-8, 1e-300
# A chance is never rounded to 0.
_LEAST = math.ulp(0.0)


def truncation_exposure(sampling: TruncatedPoissonSampling) -> float:
    """Returns the chance that such a sample adds to delta."""
    return chance_to_overflow(
        sampling.probability, sampling.batch_size, sampling.population_size - 1
    )


def full_or_not_of(
    sampling: TruncatedPoissonSampling,
    whole: SampledGaussian | SampledGaussianReplaceOne,
    neighbours: Neighbours,
) -> FullOrNot:
    """Returns the sum `whole` over a truncated sample, without slack."""
    q, size = sampling.probability, sampling.population_size
    z = whole.noise_multiplier
    p, least = _chance_to_be_full(sampling)
    both = _tail(sampling.batch_size + 1, size, q) * _SAFE + _NEXT_TO_NOTHING
    both *= min(1.0, sampling.batch_size / size)  # It is full, and keeps it.
    if neighbours == "add_or_remove_one":
        full = min(q, both / least * _SAFE) if least else q
        parts = (1 - p, z, q), (least, z / 2, full), (p - least, z / 2, q)
        return FullOrNot(whole, parts)
    apart = z / 2 if neighbours == "replace_one" else z
    both = min(both, p * q)
    return FullOrNot(whole, ((1 - both, z, q), (both, apart, 1.0)))


def reached_by(sampling: TruncatedPoissonSampling) -> float | None:
    """Returns the least chance of a record to be kept, `None` if it is `q`."""
    p, _ = _chance_to_be_full(sampling)
    q = sampling.probability
    kept = sampling.batch_size / sampling.population_size
    return q * (1 - p * (1 - kept)) / _SAFE if p and kept < 1 else None


def _chance_to_be_full(
    sampling: TruncatedPoissonSampling,
) -> tuple[float, float]:
    """Returns `p`, rounded up and rounded down."""
    others, q = sampling.population_size - 1, sampling.probability
    if sampling.batch_size > others:
        return 0.0, 0.0
    found = _tail(sampling.batch_size, others, q)
    return min(1.0, found * _SAFE + _NEXT_TO_NOTHING), found / _SAFE


def _tail(least: int, trials: int, probability: float) -> float:
    """Returns `P(Bin(trials, probability) >= least)`, for `least` >= 1."""
    if least > trials:
        return 0.0
    found = special.betainc(least, trials - least + 1, probability)
    return float(found)


@functools.lru_cache(maxsize=1024)
def chance_to_overflow(
    probability: float, batch_size: int, others: int
) -> float:
    """Returns `q P(Bin(N, q) >= B)`, rounded up, for N others.

    Let `k` be the binomial's value and `K` the divergence of `B/N` from `q`.
    Stirling's bounds give `P(k = B) <= e^(-N K) sqrt(N / (2 pi B (N-B)))`. From
    there on each chance is at most `r = (N-B) q / ((B+1) (1-q))` times the one
    before: a geometric series bounds the tail.
    """
    q, most, size = probability, batch_size, others
    if most > size:
        return 0.0
    ratio = (size - most) * q / ((most + 1) * (1 - q)) if q < 1 else math.inf
    if ratio >= 1 or most <= size * q:
        return q
    if most == size:
        log_first = most * math.log(q)
        terms = -log_first
    else:
        mean = size * q
        kept = most * math.log(most / mean)
        left = (size - most) * math.log1p((mean - most) / (size - mean))
        spread = size / (2 * math.pi * most * (size - most))
        log_first = 0.5 * math.log(spread) - kept - left
        terms = most + mean + kept - left + 1
    log_tail = log_first - math.log1p(-ratio) + _MARGIN * terms
    return min(q, max(_LEAST, q * math.exp(min(0.0, log_tail)) * _ROUND_UP))


def with_and_without_slack(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[tuple[CountedMechanism, ...], ...]:
    """Returns mechanisms that dominate rounds, each tuple by itself.

    Truncated samples take a part of delta, or are of less noise where they are
    full (see above). Which price is smaller depends on delta. In each tuple the
    choice is made.
    """
    if not any(
        getattr(mechanism, "full_or_not", None) for mechanism, _ in rounds
    ):
        return (rounds,)
    of_slack, without = Counter[Mechanism](), Counter[Mechanism]()
    for mechanism, count in rounds:
        if isinstance(mechanism, Slack) and mechanism.full_or_not:
            of_slack[Slack(mechanism.chance)] += count
            without[mechanism.full_or_not.whole] -= count
            without[mechanism.full_or_not] += count
        else:
            of_slack[mechanism] += count
            without[mechanism] += count
    return in_order(of_slack), in_order(+without)
