"""Converts rounds of a ledger to events of dp_accounting.

A `DpEvent` holds a noise multiplier. It holds no bound on a record and no
adjacency relation: the accountant of dp_accounting chooses the relation. Under
`replace_one` the convention of the noise multiplier differs by a factor of 2,
and with the wrong one epsilon is too small. So the relation is an argument.

The extra `dp_accounting` is imported when `to_dp_event` is called.
"""

import functools
import math
from typing import Any

import numpy as np

from keras_dp import _check
from keras_dp.accountants.coverage import spans_of
from keras_dp.accountants.groups import k_fold
from keras_dp.accountants.normalize.mechanisms import (
    AdditiveNoise,
    CountedMechanism,
    Encoding,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianGroup,
    SampledGaussianReplaceOne,
)
from keras_dp.accountants.normalize.release import released
from keras_dp.accountants.normalize.rounds import LedgerLike, Neighbours
from keras_dp.accountants.replay import Replay, replay_of
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    LaplaceNoise,
    SamplingEvent,
    Selection,
)

# More than the rounding of a few float64 operations.
_ROUND_UP = 1 + 1e-14


def to_dp_event(
    ledger: LedgerLike,
    *,
    neighbours: Neighbours | None = None,
    units: int = 1,
) -> Any:
    """Returns the rounds of a ledger as a `dp_accounting.DpEvent`.

    Guarantee: an accountant of dp_accounting that supports the event, and is
    made for the same adjacency relation, reports an upper bound on the epsilon
    of the rounds, for `units` units together.

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
    | an epoch of disjoint batches | `Gaussian`, one for the epoch | RDP, PLD |
    | correlated noise | `Gaussian`, one for the mechanism | RDP, PLD |
    | the same, classes that take turns | `PoissonSampled` of `Gaussian` | PLD |
    | encoded sums with Laplace noise, nothing sampled | `Laplace` | RDP, PLD |
    | one such sum, Poisson | `PoissonSampled` of `Laplace` | PLD |
    | sums without noise, nothing sampled | `NonPrivate` | RDP, PLD |
    | the same, Poisson | `PoissonSampled` of `Gaussian` at 0 | RDP, PLD |
    | thresholded sums, truncated samples | none: raises | |
    | a search of one plan | `RepeatAndSelect` of its rounds | RDP |
    | Gaussian sums, Poisson, for a group | `MixtureOfGaussians` | PLD |
    | the same, `replace_one`; other samples of a group | none: raises | |

    All Gaussian sums of a round become one event. Its noise multiplier is the
    standard deviation of the noise, divided by the bound on one record. Under
    `replace_one` the divisor is *twice* the bound, except for Poisson sampling.
    The `RdpAccountant` of dp_accounting needs this convention. Its
    `PLDAccountant` counts the factor of 2 itself, and so reports a larger
    epsilon than necessary.

    Noise multipliers are rounded down to 12 digits. Events of epochs and
    mechanisms come last. An event does not say who drew a sample, whether the
    caller chose a seed, or how queries are named.

    Args:
        ledger: An object with `rounds`, such as a `PrivacyLedger`, or pairs
            (Round, count).
        neighbours: The adjacency relation of the accountant that will take the
            event; by default the strongest that all rounds support.
        units: The number of units that the event protects together, >= 1. A
            unit has `rows_per_unit` records if `ledger` says so, else one.

    Raises:
        ImportError: dp_accounting is not installed.
        UnsupportedEventError: A round has no bound under the relation, or
            dp_accounting has no event for its releases or its group.
        ValueError: `neighbours` is unknown, or `units` is below 1.

    >>> from keras_dp.ledger import GaussianSum, PoissonSampling, Round
    >>> step = Round(PoissonSampling(0.01), (GaussianSum("all", 2.0, 8.0),))
    >>> event = to_dp_event([(step, 10_000)])
    >>> event.count, event.event.sampling_probability, event.event.event
    (10000, 0.01, GaussianDpEvent(noise_multiplier=4.0))
    """
    builder = _dp_accounting().DpEventBuilder()
    _check.integer_at_least(1, units=units)
    replay = replay_of(ledger)
    records = replay.rows_per_unit * units
    relation = replay.relation(neighbours)
    together = []
    for each, count in replay.rounds:
        search = released(each.queries).search
        if search is not None:
            builder.compose(_repeated(search, relation, records), count)
            continue
        if any(spans_of(each)):
            together.append((each, count))
            continue
        one = replay.of([(each, 1)])
        for mechanism, _ in _of_group(one, relation, records):
            builder.compose(_event(mechanism, each.sampling), count)
    for mechanism, count in _of_group(replay.of(together), relation, records):
        builder.compose(_event(mechanism, FullDataset()), count)
    return builder.build()


def _repeated(search: Selection, neighbours: Neighbours, records: int) -> Any:
    law = search.law
    if len(search.plans) > 1 or law.shape < 0:
        raise UnsupportedEventError(
            "`ledger` must hold searches of one plan, with a law of a shape "
            ">= 0, for dp_accounting. "
            f"Received: {len(search.plans)} plans with {law!r}. Replay the "
            "ledger with `keras_dp.accountants`."
        )
    _dp_accounting()
    from dp_accounting.dp_event import RepeatAndSelectDpEvent

    trial = to_dp_event(search.plans[0], neighbours=neighbours, units=records)
    return RepeatAndSelectDpEvent(trial, law.largest_mean, law.shape)


def _of_group(
    replay: Replay, neighbours: Neighbours, records: int
) -> tuple[CountedMechanism, ...]:
    rounds = replay.normalized(neighbours).mechanisms
    found = k_fold(rounds, records)
    if found is None:
        raise UnsupportedEventError(
            f"`ledger` must hold rounds that have an event for {records} "
            "records together: Gaussian sums over Poisson samples or the full "
            f"data set. Received: {rounds!r}. Use "
            "the epsilon of an accountant instead."
        )
    return found


def _dp_accounting() -> Any:
    with _check.needing("dp_accounting", "for its events"):
        import dp_accounting
    return dp_accounting


@functools.singledispatch
def _event(mechanism: Mechanism, sampling: SamplingEvent) -> Any:
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

    q, k = mechanism.sampling_probability, mechanism.records
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
def _(mechanism: AdditiveNoise, sampling: SamplingEvent) -> Any:
    dp = _dp_accounting()
    are_laplace = all(
        type(each.noise) is LaplaceNoise for each in mechanism.encodings
    )
    z, q = mechanism.noise_multiplier, mechanism.sampling_probability
    is_alone = z == math.inf and len(mechanism.encodings) == 1
    if not are_laplace or (q < 1 and not is_alone):
        return _event.dispatch(object)(mechanism, sampling)
    parts = [_laplace(each) for each in mechanism.encodings]
    if q < 1:
        return dp.PoissonSampledDpEvent(q, parts[0])
    if z < math.inf:
        parts.append(_event(Gaussian(z), sampling))
    return dp.ComposedDpEvent(parts) if len(parts) > 1 else parts[0]


def _laplace(encoding: Encoding) -> Any:
    """Returns the event of values whose L1 norm is bounded."""
    bounds, noise = encoding
    levels = bounds.level_array().astype(float)
    norm = float((levels @ bounds.count_array()).max()) * _ROUND_UP
    return _dp_accounting().LaplaceDpEvent(noise.scale / norm)
