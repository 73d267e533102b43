"""From the rounds of a ledger to the mechanisms that accountants price.

The one place where the noise multiplier, the neighbouring relation, the
sampling event and the count of a round are put together.
"""

import dataclasses
import decimal
import functools
import math
from collections import defaultdict
from collections.abc import Collection
from typing import Literal, TypeAlias, get_args

from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    DiscreteGaussian,
    Encoding,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    OneOf,
    SampledDiscreteGaussian,
    SampledGaussian,
    SampledGaussianReplaceOne,
    WithReplacementGaussian,
)
from keras_dp.accountants.normalize.release import (
    LARGEST_NOISE_MULTIPLIER,
    Release,
    released,
)
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.accountants.normalize.trees import TreeRound, tree_costs
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    PoissonSampling,
    SamplingEvent,
    UnverifiedSampling,
)

Neighbours: TypeAlias = Literal["add_or_remove_one", "replace_one", "zero_out"]


# How far a sum moves, in units of one record's bound.
_SENSITIVITY: dict[Neighbours, float] = {
    "add_or_remove_one": 1.0,
    "replace_one": 2.0,
    "zero_out": 1.0,
}

# Adaptive clipping makes noise multipliers that differ in the last bit.
_DIGITS = decimal.Context(prec=12, rounding=decimal.ROUND_DOWN)
# Three roundings of float64.
_ROUND_UP = 1 + 4e-16


def normalize(
    ledger: LedgerLike, neighbours: Neighbours = "add_or_remove_one"
) -> tuple[CountedMechanism, ...]:
    """Returns what the rounds of `ledger` cost, equal ones counted together.

    The Gaussian sums of a round saw one sample: with `S_g` the bound and
    `sigma_g` the noise of each they are one sum with noise multiplier
    `z = (sum_g (S_g / sigma_g)^2)^(-1/2)`, amplified by sampling **once**, and
    so are encoded sums with other noise, whose moments multiply. `z` is
    rounded down to 12 digits, so that rounds that differ in the last bit
    merge.

    | Sampling | add_or_remove_one | zero_out | replace_one |
    | --- | --- | --- | --- |
    | PoissonSampling | amplified | amplified | amplified (1) |
    | FullDataset, UnverifiedSampling | full | full | full, `2S` (2) |
    | DisjointBatches | raises | once an epoch | once an epoch, `2S` (2) |
    | FixedSizeWithoutReplacement | raises | raises | amplified, `2S` (1) |
    | FixedSizeWithReplacement | raises | raises | amplified, `2S` (1) |

    1. Gaussian sums only. Rounds with a discrete Gaussian or an encoded sum
       with other noise raise: no bound is known.
    2. Rounds with an encoded sum whose noise is not Gaussian raise: what a
       replaced record moves is not bounded by one of the vectors.

    An epoch of disjoint batches costs what its most expensive round costs, as
    a record takes part in one of them, wherever in the ledger they are.
    `UnverifiedSampling` takes the caller's word that a record occurs at most
    once in the batch, and that the rest of the batch does not depend on it.

    Rounds with one `tree_id` are the leaves of one tree, wherever they are:

    | Sampling | A record's part in the tree | Other sums of the round |
    | --- | --- | --- |
    | DisjointBatches | once an epoch | once an epoch |
    | Full, Unverified, PoissonSampling | every round | not amplified |
    | FixedSize... | raises | raises |

    A tree reveals sums over several rounds together: that the record was in
    the sample of one of them is not hidden by the others. Neither the tree
    nor what else was released over these samples, which are known as far as
    the tree gives them away, may therefore be amplified. `replace_one` takes
    twice the bound for the whole tree.

    Args:
        ledger: An object with `rounds`, or the pairs of round and count.
        neighbours: Which data sets may not be told apart: those that differ
            by one record being added or removed, replaced by another, or
            replaced by one that contributes zero.

    Returns:
        Mechanisms and counts, in an order that does not depend on the order
        of the rounds. Rounds that release nothing of the data are left out.

    Raises:
        UnsupportedEventError: A round has no sound bound under `neighbours`.
        ValueError: `neighbours` or a count is not a possible one.
        TypeError: `ledger` does not hold pairs of round and count.

    Source: McMahan et al. (2018), arXiv:1812.06210v2, equation 1; trees:
    Kairouz et al. (2021), arXiv:2103.00039v3, Appendix D. We differ in the
    sensitivity if a record takes part more than once (`_trees`).

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> sums = (GaussianSum("a", 3.0, 10.0), GaussianSum("b", 4.0, 10.0))
    >>> normalize([(Round(PoissonSampling(0.01), sums), 5)])[0].mechanism
    SampledGaussian(noise_multiplier=2.0, sampling_probability=0.01)
    """
    check_neighbours(neighbours)
    counts: defaultdict[Mechanism, int] = defaultdict(int)
    epochs: defaultdict[str, set[Release]] = defaultdict(set)
    tree_rounds: list[TreeRound] = []
    for event, count in counted_rounds(ledger):
        release = released(event.queries)
        epoch = _epoch(event.sampling, neighbours)
        if release.trees:
            tree_rounds.append(TreeRound(release.trees, count, epoch))
        if epoch is not None:
            epochs[epoch].add(release._replace(trees=()))
        elif mechanism := _mechanism(event.sampling, release, neighbours):
            counts[mechanism] += count
    once = [_epoch_mechanism(each, neighbours) for each in epochs.values()]
    once += [
        _unamplified(Release(cost), neighbours)
        for cost in tree_costs(tree_rounds)
    ]
    for mechanism in once:
        if mechanism:
            counts[mechanism] += 1
    return tuple(
        CountedMechanism(mechanism, counts[mechanism])
        for mechanism in sorted(counts, key=_text)
    )


def check_neighbours(neighbours: Neighbours) -> None:
    """Raises unless `neighbours` names a relation."""
    if neighbours not in get_args(Neighbours):
        raise ValueError(
            f"`neighbours` must be one of {get_args(Neighbours)}. "
            f"Received: neighbours={neighbours!r}."
        )


@functools.singledispatch
def _epoch(sampling: SamplingEvent, neighbours: Neighbours) -> str | None:
    """Returns the pass over the data in which a record occurs once, if any."""
    return None


@_epoch.register
def _(sampling: DisjointBatches, neighbours: Neighbours) -> str:
    if neighbours == "add_or_remove_one":
        raise UnsupportedEventError(
            "`neighbours` must be 'zero_out' or 'replace_one' for "
            f"DisjointBatches. Received: neighbours={neighbours!r}. Adding or "
            "removing a record moves other records between the batches, so "
            "that more than one batch changes."
        )
    return sampling.epoch_id


@functools.singledispatch
def _mechanism(
    sampling: SamplingEvent, release: Release, neighbours: Neighbours
) -> Mechanism | None:
    """Returns what a round is, its trees apart; None if that is free."""
    raise UnsupportedEventError(
        "`sampling` must be of a class that the accountants know. "
        f"Received: sampling={sampling!r}."
    )


@_mechanism.register(FullDataset)
@_mechanism.register(UnverifiedSampling)
def _(
    sampling: SamplingEvent, release: Release, neighbours: Neighbours
) -> Mechanism | None:
    return _unamplified(release, neighbours)


@_mechanism.register
def _(
    sampling: PoissonSampling, release: Release, neighbours: Neighbours
) -> Mechanism | None:
    if release.is_free or release.trees or sampling.probability == 1:
        return _unamplified(release, neighbours)
    cost, probability = release.cost, sampling.probability
    if neighbours == "replace_one":
        _check_gaussian(release, sampling, neighbours)
        return SampledGaussianReplaceOne(_noise_multiplier(cost), probability)
    if release.encodings:
        return _additive(release, probability)
    kind = SampledDiscreteGaussian if release.is_discrete else SampledGaussian
    return kind(_noise_multiplier(cost), probability)


@_mechanism.register
def _(
    sampling: FixedSizeWithoutReplacement,
    release: Release,
    neighbours: Neighbours,
) -> Mechanism | None:
    if neighbours != "replace_one":
        raise UnsupportedEventError(
            "`neighbours` must be 'replace_one' for "
            "FixedSizeWithoutReplacement, whose samples do not exist for one "
            f"record more or less. Received: neighbours={neighbours!r}."
        )
    _check_gaussian(release, sampling, neighbours)
    if release.is_free or sampling.sample_size == sampling.population_size:
        return _unamplified(release, neighbours)
    return FixedSizeGaussian(
        _noise_multiplier(release.cost * _SENSITIVITY[neighbours]),
        sampling.sample_size / sampling.population_size,
    )


@_mechanism.register
def _(
    sampling: FixedSizeWithReplacement, release: Release, neighbours: Neighbours
) -> Mechanism | None:
    if neighbours != "replace_one":
        raise UnsupportedEventError(
            "`neighbours` must be 'replace_one' for FixedSizeWithReplacement, "
            "whose draws change with the number of records. "
            f"Received: neighbours={neighbours!r}."
        )
    _check_gaussian(release, sampling, neighbours)
    if release.is_free:
        return None
    cost = release.cost * _SENSITIVITY[neighbours]
    if sampling.population_size == 1:  # Drawn every time.
        return Gaussian(_noise_multiplier(cost * sampling.sample_size))
    return WithReplacementGaussian(
        _noise_multiplier(cost), sampling.sample_size, sampling.population_size
    )


def _check_gaussian(
    release: Release, sampling: SamplingEvent, neighbours: Neighbours
) -> None:
    """Raises unless all is Gaussian sums, as the bound for a sample needs."""
    if release.is_discrete or release.encodings or release.trees:
        raise UnsupportedEventError(
            "`queries` must be Gaussian sums where a record is replaced in a "
            "sample: no bound is known for other noise, or for trees. "
            f"Received: sampling={sampling!r}, neighbours={neighbours!r}."
        )


def _epoch_mechanism(
    releases: Collection[Release], neighbours: Neighbours
) -> Mechanism | None:
    """Returns what an epoch is: a record is in one of these rounds."""
    costs: defaultdict[tuple[Encoding, ...], float] = defaultdict(float)
    for release in releases:
        encodings = release.encodings
        costs[encodings] = max(costs[encodings], release.cost)
    is_discrete = any(release.is_discrete for release in releases)
    alternatives = [
        mechanism
        for encodings, cost in costs.items()
        if (
            mechanism := _unamplified(
                Release(cost, is_discrete, encodings), neighbours
            )
        )
    ]
    if len(alternatives) > 1:
        return OneOf(tuple(sorted(alternatives, key=_text)))
    return alternatives[0] if alternatives else None


def _unamplified(release: Release, neighbours: Neighbours) -> Mechanism | None:
    if release.is_free:
        return None
    if release.encodings:
        if neighbours == "replace_one":
            raise UnsupportedEventError(
                "`neighbours` must not be 'replace_one' for an encoded sum "
                "whose noise is not Gaussian: no bound is known. Received: "
                f"neighbours={neighbours!r}, encodings={release.encodings!r}."
            )
        return _additive(release, probability=1.0)
    kind = DiscreteGaussian if release.is_discrete else Gaussian
    return kind(_noise_multiplier(release.cost * _SENSITIVITY[neighbours]))


def _additive(release: Release, probability: float) -> AdditiveNoise:
    z = _noise_multiplier(release.cost) if release.cost else math.inf
    return AdditiveNoise(z, probability, release.encodings, release.is_discrete)


def _noise_multiplier(cost: float) -> float:
    """Returns `1 / cost`, rounded down to 12 digits.

    A number that is one of 12 digits but for the rounding of the division
    stays what it is.
    """
    if cost > LARGEST_NOISE_MULTIPLIER:
        return 0.0
    return float(_DIGITS.create_decimal_from_float(1 / cost * _ROUND_UP))


def _text(mechanism: Mechanism) -> tuple[str, str]:
    return repr(mechanism), repr(dataclasses.astuple(mechanism))
