"""Events of dp_accounting: from the rounds of a ledger, and back.

A `DpEvent` has no adjacency relation and no bound on a record: it has a noise
multiplier, and the accountant that takes the event chooses the relation. The
two conventions below differ by a factor of 2, and whoever mixes them up reports
too small an epsilon. Therefore both functions are told the relation.

dp_accounting, the extra `dp_accounting`, is imported when it is asked for.
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
    """Returns the `dp_accounting.DpEvent` of the rounds of a ledger.

    Guarantee: an accountant of dp_accounting that supports the event, and is
    made for the same relation, reports a bound for the rounds, for `group_size`
    records together.

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
    | discrete Gaussian sums | `ZCDp` | RDP |
    | encoded sums with Laplace noise | `Laplace` | RDP, PLD |
    | sums without noise | `NonPrivate` | RDP, PLD |
    | thresholded sums, truncated samples | none: raises | |
    | `RandomAllocation` | none: raises | |
    | Gaussian sums, Poisson, for a group | `MixtureOfGaussians` | PLD |
    | the same, `replace_one`; other samples of a group | none: raises | |

    All Gaussian sums of a round are one event, whose noise multiplier is
    stddev over bound. Under `replace_one` it is stddev over *twice* the bound
    wherever nothing is drawn by Poisson sampling: their `RdpAccountant` takes
    the noise multiplier of such events to be that. Their `PLDAccountant` does
    not, and reports more than it needs to.

    Noise multipliers are rounded down to 12 digits. Epochs and trees come last.
    An event does not say who drew a sample, which seeds were chosen, or the
    names of queries.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).
        neighbours: The relation under which the event will be accounted for;
            by default the strongest that all rounds support.
        group_size: How many records the event is about together, >= 1; by
            default the `rows_per_unit` of a `PrivacyLedger`, else 1.

    Raises:
        ImportError: dp_accounting is not installed.
        UnsupportedEventError: A round has no bound under the relation, or
            no event says what was released in it.

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
    """Returns the rounds that an event of dp_accounting stands for.

    Every record is bounded by 1, and `stddev` is what the noise multiplier
    says. Samplings count as declared, not as drawn by this library. The
    rounds of a repeated composition are grouped by their kind.

    | Event | Rounds |
    | --- | --- |
    | `Gaussian`, `NonPrivate` | one of the full data set |
    | `PoissonSampled` of Gaussians | one, with all of them over one sample |
    | `SampledWithoutReplacement`, `SampledWithReplacement` | the same |
    | `SingleEpochTreeAggregation` | an epoch of disjoint batches |
    | `Composed`, `SelfComposed`, `NoOp` | those of their events |
    | any other | raises |

    Args:
        event: A `dp_accounting.DpEvent`.
        neighbours: The convention of its noise multipliers. They are stddev
            over the bound of one record, as `GaussianDpEvent` documents it; but
            with `replace_one` stddev over twice the bound wherever nothing is
            drawn by Poisson sampling, as `RdpAccountant` takes them and
            `to_dp_event` writes them.

    Returns:
        Pairs of a round and its count; `Round` events to be recorded.

    Raises:
        ImportError: dp_accounting is not installed.
        UnsupportedEventError: No round of a ledger is what the event says.
        ValueError: A number of the event is not a possible one.

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
    for each, count in _rounds(event, 1, SENSITIVITY[neighbours]):
        if merged and merged[-1].round == each:
            count += merged.pop().count
        merged.append(CountedRound(each, count))
    return tuple(merged)


def _of_group(
    rounds: tuple[CountedMechanism, ...], group_size: int
) -> tuple[CountedMechanism, ...]:
    """Returns what rounds are for so many records together.

    Raises:
        UnsupportedEventError: No mechanism says what they are for a group.
    """
    found = k_fold(rounds, group_size)
    if found is None:
        raise UnsupportedEventError(
            f"`ledger` must hold rounds whose cost for {group_size} records "
            "together an event can say: Gaussian sums, drawn by Poisson "
            f"sampling or not at all. Received: {rounds!r}. Ask "
            "`keras_dp.accountants.group_epsilon`."
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
    """Returns the event of a mechanism whose rounds were drawn like that."""
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
        # At 0 too: they know no `NonPrivateDpEvent` of a sample.
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
    # Beyond a square that float64 can hold, rho is rounded up to this.
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
        sensitivity: How many bounds of a record the noise multiplier is over,
            where nothing is drawn by Poisson sampling.
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
    """Yields the round in which an event took place over one sample."""
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

    Equal sums over one sample are one, whose bound is larger by the root of
    their number.
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
                f"Received: {event!r}."
            )


def _trees(event: Any) -> Iterator[tuple[Round, int]]:
    """Yields the rounds of trees in an epoch of which no other round is."""
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
