"""The table of sampling events: what each means for the price of a round.

An adjacency relation says which two data sets must be hard to tell apart. A
bound exists under a relation only if it is known how far the released sums of
a round move between two such data sets, whatever the sampling does.

Relations by strength: `add_or_remove_one` also hides how many records there
are; `replace_one` covers `zero_out`, because a record that contributes zero is
one of the records that may stand in its place.
"""

import decimal
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from keras_dp.accountants.normalize.mechanisms import (
    UNREACHED,
    AdditiveNoise,
    Exposure,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    SampledGaussian,
    SampledGaussianReplaceOne,
    Slack,
)
from keras_dp.accountants.normalize.release import Release, released
from keras_dp.accountants.normalize.rounds import (
    LedgerLike,
    Neighbours,
    counted_rounds,
)
from keras_dp.accountants.normalize.truncation import (
    full_or_not_of,
    reached_by,
    truncation_exposure,
)
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    CyclicPoissonSampling,
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FullDataset,
    PoissonSampling,
    PoissonUserSampling,
    SamplingByContents,
    SamplingEvent,
    TruncatedPoissonSampling,
    UnverifiedSampling,
)

# Adaptive clipping makes noise multipliers that differ in the last bit.
_DIGITS = decimal.Context(prec=12, rounding=decimal.ROUND_DOWN)
# Bounds that differ by rounding alone.
_CLOSE = 1 + 5e-12
# Three roundings of float64.
_ROUND_UP = 1 + 4e-16

# The strongest first.
RELATIONS: tuple[Neighbours, ...] = get_args(Neighbours)
# How far a sum moves, in units of one record's bound.
SENSITIVITY: Mapping[Neighbours, float] = {
    "add_or_remove_one": 1.0,
    "replace_one": 2.0,
    "zero_out": 1.0,
}

_MOVES_OTHERS = (
    "Adding or removing a record moves other records between the batches, so "
    "that more than one record's part in a sum changes."
)
_DECIDES = (
    "What a record holds may decide in which batch other records stand, or how "
    "long these are, so that a replaced record changes several sums."
)
_ONE_SIZE = "The samples do not exist for one record more or less."
_ONLY_REPLACED = "A bound is known for a replaced record only."
# Why what was released can take relations away.
_GAUSSIAN_ONLY = (
    "For samples of a fixed size a bound is known for Gaussian sums only: not "
    "for other or correlated noise, and not for thresholds."
)
_CYCLIC_GAUSSIAN_ONLY = (
    "Where classes take turns, a bound is known for Gaussian sums only, also "
    "with correlated noise: not for other noise and thresholds."
)
_ONE_VECTOR = (
    "A replaced record can move an encoded sum further than one of the "
    "preselected vectors, and no bound is known for that."
)


def cyclic(
    probability: float,
    lower: float,
    upper: float,
    neighbours: Neighbours,
) -> Mechanism:
    """Returns a cycle of a Poisson sample, one class a round.

    A record whose class is a secret reaches `lower`, or 0. None exceeds
    `upper`, > 0.
    """
    least, most = _noise_multiplier(upper), _most_noise(lower, upper)
    if neighbours == "replace_one":
        return SampledGaussianReplaceOne(least, probability, most)
    return SampledGaussian(least, probability, False, most)


def gaussian_between(
    lower: float, upper: float, neighbours: Neighbours
) -> Gaussian:
    """Returns a Gaussian, given bounds on its sensitivity to one record more.

    Two data sets reach `lower`, or 0; none exceed `upper`, > 0.
    """
    distance = SENSITIVITY[neighbours]
    return Gaussian(
        _noise_multiplier(upper * distance),
        _most_noise(lower * distance, upper * distance),
    )


def unamplified(release: Release, neighbours: Neighbours) -> Mechanism | None:
    """Returns the mechanism of a release that no sampling amplifies."""
    if release.is_free:
        return None
    if release.encodings:
        return _additive(release, probability=1.0)
    return Gaussian(
        _noise_multiplier(release.sensitivity * SENSITIVITY[neighbours])
    )


def _additive(release: Release, probability: float) -> AdditiveNoise:
    z = (
        _noise_multiplier(release.sensitivity)
        if release.sensitivity
        else math.inf
    )
    return AdditiveNoise(z, probability, release.encodings)


def _most_noise(lower: float, upper: float) -> float | None:
    if upper <= lower * _CLOSE:
        return None
    return min(_ROUND_UP / lower, UNREACHED) if lower else UNREACHED


def _noise_multiplier(sensitivity: float) -> float:
    """Returns `1 / sensitivity`, rounded down to 12 digits.

    A number that is one of 12 digits but for the rounding of the division
    stays what it is.
    """
    if sensitivity > UNREACHED:
        return 0.0
    return float(_DIGITS.create_decimal_from_float(1 / sensitivity * _ROUND_UP))


def _not_sampled(
    sampling: SamplingEvent, release: Release, neighbours: Neighbours
) -> Iterator[Mechanism]:
    if found := unamplified(release, neighbours):
        yield found
    if release.thresholds:
        yield Exposure((release.thresholds,))


def _poisson(
    sampling: PoissonSampling | TruncatedPoissonSampling,
    release: Release,
    neighbours: Neighbours,
    reached: float | None = None,
) -> Iterator[Mechanism]:
    # A mechanism gives away who was in the samples of its rounds.
    if release.is_free or release.spans or sampling.probability == 1:
        yield from _not_sampled(sampling, release, neighbours)
        return
    q = sampling.probability
    if release.encodings:
        yield _additive(release, q)
    else:
        z = _noise_multiplier(release.sensitivity)
        if neighbours == "replace_one":
            yield SampledGaussianReplaceOne(z, q, reached=reached)
        else:
            yield SampledGaussian(z, q, reached=reached)
    if release.thresholds:
        yield Exposure((release.thresholds,), q)


def _truncated(
    sampling: TruncatedPoissonSampling, release: Release, neighbours: Neighbours
) -> Iterator[Mechanism]:
    found = full_or_not = None
    for found in _poisson(sampling, release, neighbours, reached_by(sampling)):
        yield found
    chance = truncation_exposure(sampling)
    if not chance or (release.is_free and not release.spans):
        return
    # Thresholds have slack of their own in the rest of its outcomes.
    if isinstance(found, SampledGaussian | SampledGaussianReplaceOne):
        full_or_not = full_or_not_of(sampling, found, neighbours)
    yield Slack(chance, full_or_not)


def _fixed_size(
    sampling: FixedSizeWithoutReplacement,
    release: Release,
    neighbours: Neighbours,
) -> Iterator[Mechanism]:
    if release.is_free or sampling.sample_size == sampling.population_size:
        yield from _not_sampled(sampling, release, neighbours)
        return
    yield FixedSizeGaussian(
        _noise_multiplier(release.sensitivity * SENSITIVITY[neighbours]),
        sampling.sample_size / sampling.population_size,
    )


class Sampling(NamedTuple):
    """How accountants read the rounds with a sampling event.

    Attributes:
        mechanisms: Yields what a round is without its spans, from the event,
            the release and the relation; nothing if it is free.
        refused: The relations without a bound, and why.
        epoch: Names the epoch in which a record is in one round; `None` if the
            rounds are no part of one.
        takes_turns: Whether the rounds are cycles of classes; see `correlated`.
        gaussian_only: Why only Gaussian sums have a bound; empty if all do.
    """

    mechanisms: Callable[[Any, Release, Neighbours], Iterator[Mechanism]]
    refused: Mapping[Neighbours, str] = {}
    epoch: Callable[[Any], str] | None = None
    takes_turns: bool = False
    gaussian_only: str = ""


# The one table of sampling events.
SAMPLINGS: Mapping[type[SamplingEvent], Sampling] = {
    FullDataset: Sampling(_not_sampled),
    PoissonSampling: Sampling(_poisson),
    PoissonUserSampling: Sampling(_poisson),
    TruncatedPoissonSampling: Sampling(_truncated),
    UnverifiedSampling: Sampling(
        _not_sampled, {"add_or_remove_one": _MOVES_OTHERS}
    ),
    SamplingByContents: Sampling(
        _not_sampled,
        {"add_or_remove_one": _MOVES_OTHERS, "replace_one": _DECIDES},
    ),
    DisjointBatches: Sampling(
        _not_sampled,
        {"add_or_remove_one": _MOVES_OTHERS},
        epoch=lambda sampling: str(sampling.epoch_id),
    ),
    CyclicPoissonSampling: Sampling(
        _not_sampled, takes_turns=True, gaussian_only=_CYCLIC_GAUSSIAN_ONLY
    ),
    FixedSizeWithoutReplacement: Sampling(
        _fixed_size,
        {"add_or_remove_one": _ONE_SIZE, "zero_out": _ONLY_REPLACED},
        gaussian_only=_GAUSSIAN_ONLY,
    ),
}


def sampling_of(event: SamplingEvent) -> Sampling:
    """Returns how the rounds of a sampling event are read."""
    found = SAMPLINGS.get(type(event))
    if found is None:
        raise UnsupportedEventError(
            "`sampling` must be of a class that the accountants know. "
            f"Received: sampling={event!r}."
        )
    return found


def check_neighbours(neighbours: Neighbours | None) -> None:
    """Raises unless `neighbours` names a relation, or is None."""
    if neighbours is not None and neighbours not in RELATIONS:
        raise ValueError(
            f"`neighbours` must be one of {RELATIONS}, or None for the "
            "strongest that all rounds support. "
            f"Received: neighbours={neighbours!r}."
        )


def check_supported(
    sampling: SamplingEvent, release: Release, neighbours: Neighbours
) -> None:
    """Raises with a reason unless a round has a bound under a relation."""
    reason = _objections(sampling, release).get(neighbours)
    if reason:
        supported = _supported(sampling, release)
        raise UnsupportedEventError(
            f"`neighbours` must be a relation that {sampling!r} and its "
            f"queries support: {' or '.join(map(repr, supported)) or 'none'}. "
            f"Received: neighbours={neighbours!r}. {reason}"
        )


def strongest_neighbours(ledger: LedgerLike) -> Neighbours:
    """Returns the strongest relation that all rounds of a ledger support."""
    return supported_neighbours(ledger)[0]


def supported_neighbours(ledger: LedgerLike) -> tuple[Neighbours, ...]:
    """Returns the relations that all rounds support, the strongest first."""
    left = RELATIONS
    for event, _ in counted_rounds(ledger):
        release = released(event.queries)
        if not _objections(event.sampling, release):
            continue
        supported = _supported(event.sampling, release)
        both = tuple(each for each in left if each in supported)
        if not both:
            raise UnsupportedEventError(
                "`ledger` must have an adjacency relation that all its rounds "
                f"support. Received: {event.sampling!r}, which with its "
                f"queries supports {supported!r}, after rounds that support "
                f"{left!r}."
            )
        left = both
    return left


def _supported(
    sampling: SamplingEvent, release: Release
) -> tuple[Neighbours, ...]:
    objections = _objections(sampling, release)
    return tuple(each for each in RELATIONS if each not in objections)


def _objections(
    sampling: SamplingEvent, release: Release
) -> Mapping[Neighbours, str]:
    """Returns the relations under which a round has no bound, and why."""
    kind = sampling_of(sampling)
    if release.search is not None:
        return {
            relation: reason
            for each, _ in release.search.all_rounds
            for relation, reason in _objections(
                each.sampling, released(each.queries)
            ).items()
        }
    is_gaussian = not (release.encodings or release.thresholds)
    # Correlated noise of other samples spans rounds with one cost.
    is_gaussian &= kind.takes_turns or not release.spans
    if kind.gaussian_only and not is_gaussian:
        return dict.fromkeys(RELATIONS, kind.gaussian_only)
    if release.encodings:
        return {"replace_one": _ONE_VECTOR, **kind.refused}
    return kind.refused
