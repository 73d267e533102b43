"""From the rounds of a ledger to the mechanisms that accountants price.

The one place where the noise multiplier, the neighbouring relation, the
sampling event and the count of a round are put together.
"""

import decimal
import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, Protocol, TypeAlias, get_args

from keras_dp import _check
from keras_dp.accountants.mechanisms import (
    CountedMechanism,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianReplaceOne,
)
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    SamplingEvent,
    SumQueryEvent,
    UnverifiedSampling,
)

Neighbours: TypeAlias = Literal["add_or_remove_one", "replace_one", "zero_out"]


class HasRounds(Protocol):
    """A ledger: `rounds` holds pairs of a round and its count."""

    @property
    def rounds(self) -> Iterable[tuple[Round, int]]:
        """The rounds and how often each took place."""


LedgerLike: TypeAlias = HasRounds | Iterable[tuple[Round, int]]

# How far a sum moves, in units of one record's bound.
_SENSITIVITY: dict[Neighbours, float] = {
    "add_or_remove_one": 1.0,
    "replace_one": 2.0,
    "zero_out": 1.0,
}

# Adaptive clipping makes noise multipliers that differ in the last bit.
_DIGITS = decimal.Context(prec=12, rounding=decimal.ROUND_DOWN)

# Beyond it 1/z^2 would underflow, and a release that costs would cost nothing;
# below its reciprocal 1/z^2 would overflow, and the release counts as bare.
_LARGEST_NOISE_MULTIPLIER = 1e100


def normalize(
    ledger: LedgerLike, neighbours: Neighbours = "add_or_remove_one"
) -> tuple[CountedMechanism, ...]:
    """Returns what the rounds of `ledger` cost, equal ones counted together.

    The Gaussian sums of a round saw one sample: with `S_g` the bound and
    `sigma_g` the noise of each they are one sum with noise multiplier
    `z = (sum_g (S_g / sigma_g)^2)^(-1/2)`, amplified by sampling **once**.
    `z` is rounded down to 12 digits, so that rounds that differ in the last
    bit merge.

    | Sampling | add_or_remove_one | zero_out | replace_one |
    | --- | --- | --- | --- |
    | PoissonSampling | amplified | amplified | amplified |
    | FullDataset, UnverifiedSampling | full | full | full, `2S` |
    | DisjointBatches | raises | once an epoch | once an epoch, `2S` |
    | FixedSizeWithoutReplacement | raises | raises | amplified, `2S` |
    | FixedSizeWithReplacement | raises | raises | raises |

    An epoch of disjoint batches costs what its most expensive round costs, as
    a record takes part in one of them, wherever in the ledger they are.
    `UnverifiedSampling` takes the caller's word that a record occurs at most
    once in the batch, and that the rest of the batch does not depend on it.

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

    Source: McMahan et al. (2018), arXiv:1812.06210v2, equation 1.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> sums = (GaussianSum("a", 3.0, 10.0), GaussianSum("b", 4.0, 10.0))
    >>> normalize([(Round(PoissonSampling(0.01), sums), 5)])[0].mechanism
    SampledGaussian(noise_multiplier=2.0, sampling_probability=0.01)
    """
    check_neighbours(neighbours)
    counts: defaultdict[Mechanism, int] = defaultdict(int)
    epochs: defaultdict[str, float] = defaultdict(float)
    for event, count in _pairs(ledger):
        cost = math.hypot(*(_cost(query) for query in event.queries))
        epoch = _epoch(event.sampling, neighbours)
        if epoch is not None:
            epochs[epoch] = max(epochs[epoch], cost)
        elif mechanism := _mechanism(event.sampling, cost, neighbours):
            counts[mechanism] += count
    for cost in epochs.values():
        if mechanism := _unamplified(cost, neighbours):
            counts[mechanism] += 1
    return tuple(
        CountedMechanism(mechanism, counts[mechanism])
        for mechanism in sorted(counts, key=repr)
    )


def check_neighbours(neighbours: Neighbours) -> None:
    """Raises unless `neighbours` names a relation."""
    if neighbours not in get_args(Neighbours):
        raise ValueError(
            f"`neighbours` must be one of {get_args(Neighbours)}. "
            f"Received: neighbours={neighbours!r}."
        )


def _pairs(ledger: LedgerLike) -> Iterator[tuple[Round, int]]:
    pairs = getattr(ledger, "rounds", ledger)
    if not isinstance(pairs, Iterable):
        raise TypeError(
            "`ledger` must have rounds, or hold pairs (Round, count). "
            f"Received: ledger={ledger!r}."
        )
    for pair in pairs:
        if not (
            isinstance(pair, tuple)
            and len(pair) == 2
            and isinstance(pair[0], Round)
        ):
            raise TypeError(
                "`ledger` must have rounds, or hold pairs (Round, count). "
                f"Received: {pair!r} in ledger."
            )
        _check.integer_at_least(1, count=pair[1])
        yield pair[0], int(pair[1])


@functools.singledispatch
def _cost(query: SumQueryEvent) -> float:
    """Returns `S / sigma`, the reciprocal of a noise multiplier."""
    raise UnsupportedEventError(
        "`queries` must be of a class that the accountants know. "
        f"Received: query={query!r}. Its cost is unknown, so that the ledger "
        "can only be priced by a version that knows it."
    )


@_cost.register
def _(query: GaussianSum) -> float:
    if query.l2_norm_bound == 0:
        return 0.0
    if query.noise_stddev == 0:
        return math.inf
    return max(
        query.l2_norm_bound / query.noise_stddev,
        1 / _LARGEST_NOISE_MULTIPLIER,
    )


@_cost.register
def _(query: NonPrivateSum) -> float:
    return math.inf


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
    sampling: SamplingEvent, cost: float, neighbours: Neighbours
) -> Mechanism | None:
    """Returns what a round with this `S / sigma` is, None if it is free."""
    raise UnsupportedEventError(
        "`sampling` must be of a class that the accountants know. "
        f"Received: sampling={sampling!r}."
    )


@_mechanism.register(FullDataset)
@_mechanism.register(UnverifiedSampling)
def _(
    sampling: SamplingEvent, cost: float, neighbours: Neighbours
) -> Mechanism | None:
    return _unamplified(cost, neighbours)


@_mechanism.register
def _(
    sampling: PoissonSampling, cost: float, neighbours: Neighbours
) -> Mechanism | None:
    if cost == 0 or sampling.probability == 1:
        return _unamplified(cost, neighbours)
    kind = (
        SampledGaussianReplaceOne
        if neighbours == "replace_one"
        else SampledGaussian
    )
    return kind(_noise_multiplier(cost), sampling.probability)


@_mechanism.register
def _(
    sampling: FixedSizeWithoutReplacement, cost: float, neighbours: Neighbours
) -> Mechanism | None:
    if neighbours != "replace_one":
        raise UnsupportedEventError(
            "`neighbours` must be 'replace_one' for "
            "FixedSizeWithoutReplacement, whose samples do not exist for one "
            f"record more or less. Received: neighbours={neighbours!r}."
        )
    if cost == 0 or sampling.sample_size == sampling.population_size:
        return _unamplified(cost, neighbours)
    return FixedSizeGaussian(
        _noise_multiplier(cost * _SENSITIVITY[neighbours]),
        sampling.sample_size / sampling.population_size,
    )


@_mechanism.register
def _(
    sampling: FixedSizeWithReplacement, cost: float, neighbours: Neighbours
) -> Mechanism | None:
    raise UnsupportedEventError(
        "`sampling` must not be FixedSizeWithReplacement: a record can be "
        "drawn several times in one round, and no accountant of this version "
        f"has a bound for that. Received: sampling={sampling!r}."
    )


def _unamplified(cost: float, neighbours: Neighbours) -> Mechanism | None:
    if cost == 0:
        return None
    return Gaussian(_noise_multiplier(cost * _SENSITIVITY[neighbours]))


def _noise_multiplier(cost: float) -> float:
    """Returns `1 / cost`, rounded down to 12 digits."""
    if cost > _LARGEST_NOISE_MULTIPLIER:
        return 0.0
    return float(_DIGITS.create_decimal_from_float(1 / cost))
