"""Converts rounds of a ledger to events of dp_accounting, and back.

A `DpEvent` holds a noise multiplier. It holds no bound on a record and no
adjacency relation: the accountant of dp_accounting chooses the relation. Under
`replace_one` the convention of the noise multiplier differs by a factor of 2,
and with the wrong one epsilon is too small. Both functions therefore take the
relation.

The functions import dp_accounting, the extra `dp_accounting`, when they are
called.
"""

import functools
import math
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np

from keras_dp import _check
from keras_dp.accountants.attacks.group_privacy import k_fold
from keras_dp.accountants.normalize.adjacency import (
    SENSITIVITY,
    Neighbours,
    check_neighbours,
    chosen_neighbours,
)
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    DiscreteGaussian,
    Encoding,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
    WithReplacementGaussian,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.release import released
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CountedRound,
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    GaussianSum,
    LaplaceNoise,
    NonPrivateSum,
    PoissonSampling,
    RandomAllocation,
    Round,
    SamplingEvent,
    SumQueryEvent,
    TreeSum,
)

# More than the rounding of a few float64 operations.
_ROUND_UP = 1 + 1e-14


def to_dp_event(
    ledger: LedgerLike,
    *,
    neighbours: Neighbours | None = None,
    group_size: int | None = None,
) -> Any:
    """Returns the rounds of a ledger as a `dp_accounting.DpEvent`.

    Guarantee: an accountant of dp_accounting that supports the event, and is
    made for the same adjacency relation, reports an upper bound on the epsilon
    of the rounds, for `group_size` records together.

    | `neighbours` | `NeighboringRelation` |
    | --- | --- |
    | `add_or_remove_one` | `ADD_OR_REMOVE_ONE`, their default |
    | `replace_one` | `REPLACE_ONE` |
    | `zero_out` | `REPLACE_SPECIAL` |

    | Rounds | Event | Accountants |
    | --- | --- | --- |
    | Gaussian sums, nothing sampled | `Gaussian` | RDP, PLD |
    | Gaussian sums, Poisson | `PoissonSampled` of `Gaussian` | RDP, PLD |
    | the same, `replace_one` | the same | PLD |
    | Gaussian sums, fixed size | `SampledWithoutReplacement` | RDP |
    | with replacement | `SampledWithReplacement` | none of version 0.6 |
    | an epoch of disjoint batches | `Gaussian`, one for the epoch | RDP, PLD |
    | a tree | `Gaussian`, one for the tree | RDP, PLD |
    | discrete Gaussian sums, nothing sampled | `ZCDp` | RDP |
    | encoded sums with Laplace noise, nothing sampled | `Laplace` | RDP, PLD |
    | one such sum, Poisson | `PoissonSampled` of `Laplace` | PLD |
    | sums without noise, nothing sampled | `NonPrivate` | RDP, PLD |
    | the same, Poisson | `PoissonSampled` of `Gaussian` at 0 | RDP, PLD |
    | discrete Gaussian sums, Poisson | none: raises | |
    | thresholded sums, truncated samples | none: raises | |
    | `RandomAllocation` | none: raises | |
    | Gaussian sums, Poisson, for a group | `MixtureOfGaussians` | PLD |
    | the same, `replace_one`; other samples of a group | none: raises | |

    All Gaussian sums of a round become one event. Its noise multiplier is the
    standard deviation of the noise, divided by the bound on one record. Under
    `replace_one` the divisor is *twice* the bound, except for Poisson sampling.
    The `RdpAccountant` of dp_accounting needs this convention. Its
    `PLDAccountant` counts the factor of 2 itself, and so reports a larger
    epsilon than necessary.

    Noise multipliers are rounded down to 12 digits. Events of epochs and trees
    come last. An event does not say who drew a sample, whether the caller chose
    a seed, or how queries are named.

    Args:
        ledger: An object with `rounds`, such as a `PrivacyLedger`, or pairs
            (Round, count).
        neighbours: The adjacency relation of the accountant that will take the
            event; by default the strongest that all rounds support.
        group_size: The number of records that the event protects together,
            >= 1; by default the `rows_per_unit` of a `PrivacyLedger`, else 1.

    Raises:
        ImportError: dp_accounting is not installed.
        UnsupportedEventError: A round has no bound under the relation, or
            dp_accounting has no event for its releases or its group.
        ValueError: `neighbours` is unknown, or `group_size` is below 1.

    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 2.0, 8.0),))
    >>> event = to_dp_event([(step, 10_000)])
    >>> event.count, event.event.sampling_probability, event.event.event
    (10000, 0.01, GaussianDpEvent(noise_multiplier=4.0))
    """
    builder = _dp_accounting().DpEventBuilder()
    if group_size is None:
        header = getattr(ledger, "header", None)
        group_size = 1 if header is None else header.rows_per_unit
    _check.integer_at_least(1, group_size=group_size)
    pairs = tuple(counted_rounds(ledger))
    relation = chosen_neighbours(pairs, neighbours)
    together = []
    for each, count in pairs:
        is_epoch = isinstance(each.sampling, DisjointBatches | RandomAllocation)
        if is_epoch or released(each.queries).trees:
            together.append((each, count))
            continue
        one = normalize([(each, 1)], relation)
        for mechanism, _ in _of_group(one, group_size):
            builder.compose(_event(mechanism, each.sampling), count)
    for mechanism, count in _of_group(
        normalize(together, relation), group_size
    ):
        builder.compose(_event(mechanism, FullDataset()), count)
    return builder.build()


def from_dp_event(
    event: Any, *, neighbours: Neighbours = "add_or_remove_one"
) -> tuple[CountedRound, ...]:
    """Returns the rounds of an event of dp_accounting.

    The bound of a sum is 1. Where a sum is repeated n times over one sample,
    one sum with the bound sqrt(n) stands for them. The standard deviation of
    the noise follows from the noise multiplier. All samples are marked as
    declared, because this library did not draw them. In a repeated composition,
    equal rounds come together.

    | Event | Rounds |
    | --- | --- |
    | `Gaussian`, `NonPrivate` | one of the full data set |
    | `PoissonSampled` of these | one, with all of them over one sample |
    | `SampledWithoutReplacement`, `SampledWithReplacement` | the same |
    | `SingleEpochTreeAggregation` | an epoch of disjoint batches |
    | `Composed`, `SelfComposed` | the rounds of their events |
    | `NoOp`, a sampling probability of 0 | none |
    | any other | raises |

    Args:
        event: A `dp_accounting.DpEvent`.
        neighbours: The adjacency relation, which sets the convention of the
            noise multipliers. They are the standard deviation, divided by the
            bound on one record, as `GaussianDpEvent` documents it. With
            `replace_one` the divisor is twice the bound, except for Poisson
            sampling, as `RdpAccountant` reads them and `to_dp_event` writes
            them.

    Returns:
        Pairs of a round and its count, which a ledger can record.

    Raises:
        ImportError: dp_accounting is not installed.
        TypeError: A count of the event is not an integer.
        UnsupportedEventError: A round of a ledger cannot hold the event.
        ValueError: A number of the event is out of its range, or `neighbours`
            is unknown.

    >>> import dp_accounting as dp
    >>> step = dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(4.0))
    >>> ((found, count),) = from_dp_event(dp.SelfComposedDpEvent(step, 100))
    >>> found.queries
    (GaussianSum(name='sum/0', l2_norm_bound=1.0, noise_stddev=4.0),)
    >>> found.sampling, count
    (PoissonSampling(probability=0.01, drawn_by_library=False), 100)
    """
    check_neighbours(neighbours)
    merged: list[CountedRound] = []
    try:
        for each, count in _rounds(event, 1, SENSITIVITY[neighbours]):
            if merged and merged[-1].round == each:
                count += merged.pop().count
            merged.append(CountedRound(each, count))
    except RecursionError:
        raise ValueError(
            "`event` must not be nested so deeply. Received: a "
            f"{type(event).__name__}. Compose its events in one list."
        ) from None
    return tuple(merged)


def _of_group(
    rounds: tuple[CountedMechanism, ...], group_size: int
) -> tuple[CountedMechanism, ...]:
    """Returns the mechanisms of rounds for a group of records.

    Raises:
        UnsupportedEventError: A round has no mechanism for a group.
    """
    found = k_fold(rounds, group_size)
    if found is None:
        raise UnsupportedEventError(
            f"`ledger` must hold rounds that have an event for {group_size} "
            "records together: Gaussian sums over Poisson samples or the full "
            f"data set. Received: {rounds!r}. Use "
            "`keras_dp.accountants.group_epsilon` instead."
        )
    return found


def _dp_accounting() -> Any:
    try:
        import dp_accounting
    except ImportError as error:
        raise ImportError(
            "dp_accounting must be installed for its events: "
            "pip install keras_dp[dp_accounting]"
        ) from error
    return dp_accounting


@functools.singledispatch
def _event(mechanism: Mechanism, sampling: SamplingEvent) -> Any:
    """Returns the event of a mechanism.

    Args:
        mechanism: The mechanism of one round, or of one epoch.
        sampling: How the sample of the round was drawn.

    Raises:
        UnsupportedEventError: dp_accounting has no event for the mechanism.
    """
    raise UnsupportedEventError(
        "`ledger` must hold releases that dp_accounting has an event for. "
        f"Received: {mechanism!r}, drawn by {sampling!r}. Replay the ledger "
        "with `keras_dp.accountants`."
    )


@_event.register
def _(mechanism: Gaussian, sampling: SamplingEvent) -> Any:
    dp = _dp_accounting()
    if mechanism.noise_multiplier == 0:
        return dp.NonPrivateDpEvent()
    return dp.GaussianDpEvent(mechanism.noise_multiplier)


@_event.register(SampledGaussian)
@_event.register(SampledGaussianReplaceOne)
def _(
    mechanism: SampledGaussian | SampledGaussianReplaceOne,
    sampling: SamplingEvent,
) -> Any:
    dp = _dp_accounting()
    return dp.PoissonSampledDpEvent(
        mechanism.sampling_probability,
        # At 0 too: dp_accounting takes no `NonPrivateDpEvent` over a sample.
        dp.GaussianDpEvent(mechanism.noise_multiplier),
    )


@_event.register
def _(mechanism: SampledGaussianGroup, sampling: SamplingEvent) -> Any:
    _dp_accounting()
    from dp_accounting.dp_event import MixtureOfGaussiansDpEvent

    q, k = mechanism.sampling_probability, mechanism.group_size
    shares = np.array(
        [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
    )
    return MixtureOfGaussiansDpEvent(
        mechanism.noise_multiplier,
        [float(j) for j in range(k + 1)],
        (shares / shares.sum()).tolist(),
    )


@_event.register
def _(
    mechanism: FixedSizeGaussian, sampling: FixedSizeWithoutReplacement
) -> Any:
    dp = _dp_accounting()
    return dp.SampledWithoutReplacementDpEvent(
        sampling.population_size,
        sampling.sample_size,
        dp.GaussianDpEvent(mechanism.noise_multiplier),
    )


@_event.register
def _(mechanism: WithReplacementGaussian, sampling: SamplingEvent) -> Any:
    dp = _dp_accounting()
    return dp.SampledWithReplacementDpEvent(
        mechanism.population_size,
        mechanism.sample_size,
        dp.GaussianDpEvent(mechanism.noise_multiplier),
    )


@_event.register
def _(mechanism: DiscreteGaussian, sampling: SamplingEvent) -> Any:
    return _discrete(mechanism.noise_multiplier)


@_event.register
def _(mechanism: AdditiveNoise, sampling: SamplingEvent) -> Any:
    dp = _dp_accounting()
    others = [each for each in mechanism.encodings if not _is_laplace(each)]
    z, q = mechanism.noise_multiplier, mechanism.sampling_probability
    is_alone = z == math.inf and len(mechanism.encodings) == 1
    if others or (q < 1 and not is_alone):
        return _event.dispatch(object)(mechanism, sampling)
    parts = [_laplace(each) for each in mechanism.encodings]
    if q < 1:
        return dp.PoissonSampledDpEvent(q, parts[0])
    if mechanism.is_discrete:
        parts.append(_discrete(z))
    elif z < math.inf:
        parts.append(_event(Gaussian(z), sampling))
    return dp.ComposedDpEvent(parts) if len(parts) > 1 else parts[0]


def _discrete(noise_multiplier: float) -> Any:
    """Returns the event of a discrete Gaussian, which is zCDP."""
    dp = _dp_accounting()
    # If the square is beyond float64, rho is rounded up to this.
    rho = math.ulp(0.0)
    if noise_multiplier < 1e-150:
        return dp.NonPrivateDpEvent()
    if noise_multiplier < 1e150:
        rho = 0.5 / noise_multiplier**2 * _ROUND_UP
    return dp.ZCDpEvent(rho)


def _is_laplace(encoding: Encoding) -> bool:
    return type(encoding.noise) is LaplaceNoise


def _laplace(encoding: Encoding) -> Any:
    """Returns the event of values whose L1 norm is bounded."""
    bounds, noise = encoding
    levels = bounds.level_array().astype(float)
    norm = float((levels @ bounds.count_array()).max()) * _ROUND_UP
    return _dp_accounting().LaplaceDpEvent(noise.scale / norm)


def _rounds(
    event: Any, count: int, sensitivity: float
) -> Iterator[tuple[Round, int]]:
    """Yields the rounds of an event that took place `count` times.

    Args:
        event: A `DpEvent`.
        count: >= 1.
        sensitivity: The divisor in the noise multiplier, in units of the bound
            on one record, except for Poisson sampling, where it is 1.
    """
    dp = _dp_accounting()
    match event:
        case dp.NoOpDpEvent():
            return
        case dp.ComposedDpEvent():
            for each in event.events:
                yield from _rounds(each, count, sensitivity)
        case dp.SelfComposedDpEvent():
            if repetitions := _checked(event.count):
                repeated = count * repetitions
                yield from _rounds(event.event, repeated, sensitivity)
        case dp.SingleEpochTreeAggregationDpEvent():
            for _ in range(count):
                yield from _trees(event)
        case dp.PoissonSampledDpEvent():
            if event.sampling_probability == 0:
                return
            sampling = PoissonSampling(event.sampling_probability)
            yield from _round(sampling, event.event, count, 1.0)
        case dp.SampledWithoutReplacementDpEvent():
            fixed = FixedSizeWithoutReplacement(
                event.sample_size, event.source_dataset_size
            )
            yield from _round(fixed, event.event, count, sensitivity)
        case dp.SampledWithReplacementDpEvent():
            drawn = FixedSizeWithReplacement(
                event.sample_size, event.source_dataset_size
            )
            yield from _round(drawn, event.event, count, sensitivity)
        case _:
            yield from _round(FullDataset(), event, count, sensitivity)


def _round(
    sampling: SamplingEvent, event: Any, count: int, sensitivity: float
) -> Iterator[tuple[Round, int]]:
    """Yields the round of an event over one sample, if it has any sum."""
    sums = tuple(_sums(event, 1, sensitivity))
    named = tuple(
        NonPrivateSum(f"sum/{index}")
        if stddev is None
        else GaussianSum(f"sum/{index}", bound, stddev)
        for index, (bound, stddev) in enumerate(sums)
    )
    if named:
        yield Round(sampling, named), count


def _sums(
    event: Any, repetitions: int, sensitivity: float
) -> Iterator[tuple[float, float | None]]:
    """Yields bounds and stddevs of sums over one sample; `None` is no noise.

    One sum stands for n equal sums over one sample. Its bound is larger by
    sqrt(n).
    """
    dp = _dp_accounting()
    match event:
        case dp.NoOpDpEvent():
            return
        case dp.ComposedDpEvent():
            for each in event.events:
                yield from _sums(each, repetitions, sensitivity)
        case dp.SelfComposedDpEvent():
            if again := _checked(event.count):
                yield from _sums(event.event, repetitions * again, sensitivity)
        case dp.NonPrivateDpEvent():
            yield 1.0, None
        case dp.GaussianDpEvent():
            bound = math.sqrt(repetitions)
            if bound * bound < repetitions:
                bound = math.nextafter(bound, math.inf)
            yield bound, event.noise_multiplier * sensitivity
        case _:
            raise UnsupportedEventError(
                "`event` must be one that a round of a ledger can hold: "
                "Gaussian sums, sampled once or not at all, and trees. "
                f"Received: {_check.shown(event)}. Account for it with "
                "dp_accounting."
            )


def _trees(event: Any) -> Iterator[tuple[Round, int]]:
    """Yields the rounds of trees, in a new epoch."""
    steps = event.step_counts
    epoch = DisjointBatches(f"dp_accounting-{secrets.token_hex(8)}")
    for leaves in steps if isinstance(steps, list | tuple) else [steps]:
        if _checked(leaves):
            tree = f"dp_accounting-{secrets.token_hex(8)}"
            node: SumQueryEvent = TreeSum(
                "sum/0", 1.0, event.noise_multiplier, tree
            )
            yield Round(epoch, (node,)), int(leaves)


def _checked(count: int) -> int:
    _check.integer_at_least(0, count=count)
    return int(count)
