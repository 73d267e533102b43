"""Truncated Poisson samples: how likely a record meets a full batch.

A Poisson sample of probability `q` of which at most `B` records are kept costs
what the whole sample would, but for the outcomes in which the record is drawn
and `B` others are too. They have the chance

    c = q P(Bin(N', q) >= B)

with `N'` other records, and add `c` to delta.

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

The proof is ours. Chua et al. (2024), arXiv:2411.04205, Theorem 3.3, compare
the truncated with the whole sample, which adds `(1 + e^epsilon)` times the
chance that the sample overflows: larger by a factor of `(1 + e^epsilon) / q`.
"""

import functools
import math

from keras_dp.ledger import TruncatedPoissonSampling

# Errors of the exponent relative to its terms: a dozen of roundings.
_MARGIN = 1e-14
_ROUND_UP = 1 + 1e-12
# A chance is never rounded to 0.
_LEAST = math.ulp(0.0)


def truncation_exposure(sampling: TruncatedPoissonSampling) -> float:
    """Returns the exposure of a round with such a sample."""
    return chance_to_overflow(
        sampling.probability, sampling.batch_size, sampling.population_size
    )


@functools.lru_cache(maxsize=1024)
def chance_to_overflow(
    probability: float, batch_size: int, population_size: int
) -> float:
    """Returns `q P(Bin(N, q) >= B)`, rounded up: the exposure of a round.

    N is the number of records with whichever data set, so that the one that is
    added to them is covered too.

    Let `k` be the binomial's value and `K` the divergence of `B/N` from `q`.
    Stirling's bounds give `P(k = B) <= e^(-N K) sqrt(N / (2 pi B (N-B)))`. From
    there on each chance is at most `r = (N-B) q / ((B+1) (1-q))` times the one
    before: a geometric series bounds the tail.

    Args:
        probability: `q`, in (0, 1].
        batch_size: `B` >= 1.
        population_size: `N` >= 1.

    >>> chance_to_overflow(0.01, 150, 10_000)  # The exact one is 1.66e-08.
    1.69...e-08
    """
    q, most, size = probability, batch_size, population_size
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
