"""Which adjacency relations a round supports: the one table of them.

An adjacency relation says which two data sets must be hard to tell apart. A
bound exists under a relation only if it is known how far the released sums of
a round move between two such data sets, whatever the sampling does.

Relations by strength: `add_or_remove_one` also hides how many records there
are; `replace_one` covers `zero_out`, because a record that contributes zero is
one of the records that may stand in its place.
"""

from collections.abc import Mapping
from typing import TypeAlias, get_args

from keras_dp.accountants.normalize import normalized_rounds
from keras_dp.accountants.normalize.release import Release, released
from keras_dp.accountants.normalize.rounds import LedgerLike, counted_rounds
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

Neighbours: TypeAlias = normalized_rounds.Neighbours

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
# The relations that a sampling event does not support, and why.
UNSUPPORTED: Mapping[type[SamplingEvent], Mapping[Neighbours, str]] = {
    FullDataset: {},
    PoissonSampling: {},
    PoissonUserSampling: {},
    TruncatedPoissonSampling: {},
    UnverifiedSampling: {"add_or_remove_one": _MOVES_OTHERS},
    SamplingByContents: {
        "add_or_remove_one": _MOVES_OTHERS,
        "replace_one": _DECIDES,
    },
    DisjointBatches: {"add_or_remove_one": _MOVES_OTHERS},
    CyclicPoissonSampling: {},
    FixedSizeWithoutReplacement: {
        "add_or_remove_one": _ONE_SIZE,
        "zero_out": _ONLY_REPLACED,
    },
}
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
    """Raises unless there is a bound for a round under a relation.

    Raises:
        UnsupportedEventError: There is none; the message says why, and which
            relations have one.
    """
    reason = _objections(sampling, release).get(neighbours)
    if reason:
        supported = _supported(sampling, release)
        raise UnsupportedEventError(
            f"`neighbours` must be a relation that {sampling!r} and its "
            f"queries support: {' or '.join(map(repr, supported)) or 'none'}. "
            f"Received: neighbours={neighbours!r}. {reason}"
        )


def strongest_neighbours(ledger: LedgerLike) -> Neighbours:
    """Returns the strongest relation that all rounds of a ledger support.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).

    Raises:
        UnsupportedEventError: No relation is supported by all rounds, or a
            round holds an event of an unknown class.

    >>> from keras_dp.ledger import GaussianSum, Round
    >>> query = GaussianSum("all", 1.0, 4.0)
    >>> sampled = Round(PoissonSampling(0.01), (query,))
    >>> cut_from_a_list = Round(UnverifiedSampling(), (query,))
    >>> strongest_neighbours([(sampled, 3)])
    'add_or_remove_one'
    >>> strongest_neighbours([(sampled, 3), (cut_from_a_list, 1)])
    'replace_one'
    """
    return supported_neighbours(ledger)[0]


def supported_neighbours(ledger: LedgerLike) -> tuple[Neighbours, ...]:
    """Returns the relations that all rounds support, the strongest first.

    Args:
        ledger: An object with `rounds`, or the pairs (Round, count).

    Raises:
        UnsupportedEventError: There is none, or a round holds an event of an
            unknown class.
    """
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


def chosen_neighbours(
    ledger: LedgerLike, neighbours: Neighbours | None
) -> Neighbours:
    """Returns `neighbours`, or the strongest relation if it is None."""
    check_neighbours(neighbours)
    return strongest_neighbours(ledger) if neighbours is None else neighbours


def is_amplified(
    sampling: PoissonSampling | TruncatedPoissonSampling, release: Release
) -> bool:
    """Returns whether the sampling hides who took part in a round.

    A mechanism gives away who was in the samples of its rounds.
    """
    return (
        not release.is_free and not release.spans and sampling.probability < 1
    )


def _supported(
    sampling: SamplingEvent, release: Release
) -> tuple[Neighbours, ...]:
    objections = _objections(sampling, release)
    return tuple(each for each in RELATIONS if each not in objections)


def _all(reason: str) -> Mapping[Neighbours, str]:
    return dict.fromkeys(RELATIONS, reason)


def _objections(
    sampling: SamplingEvent, release: Release
) -> Mapping[Neighbours, str]:
    """Returns the relations under which a round has no bound, and why."""
    found = UNSUPPORTED.get(type(sampling))
    if found is None:
        raise UnsupportedEventError(
            "`sampling` must be of a class that the accountants know. "
            f"Received: sampling={sampling!r}."
        )
    if release.search is not None:
        return {
            relation: reason
            for each, _ in release.search.all_rounds
            for relation, reason in _objections(
                each.sampling, released(each.queries)
            ).items()
        }
    is_gaussian = not (release.encodings or release.thresholds)
    if isinstance(sampling, CyclicPoissonSampling):
        return found if is_gaussian else _all(_CYCLIC_GAUSSIAN_ONLY)
    is_gaussian = is_gaussian and not release.spans
    if isinstance(sampling, FixedSizeWithoutReplacement) and not is_gaussian:
        return _all(_GAUSSIAN_ONLY)
    if release.encodings:
        return {"replace_one": _ONE_VECTOR, **found}
    return found
