"""Several things that dominate the same rounds: the smallest price holds."""

import dataclasses
from collections import Counter

from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
    Overflow,
    SampledGaussian,
    Slack,
)
from keras_dp.accountants.normalize.order import in_order


def readings(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[tuple[CountedMechanism, ...], ...]:
    """Returns mechanisms that dominate rounds, each tuple by itself.

    Classes that take turns are Poisson rounds, one a cycle, and are also as
    balls in bins (see `correlated`). Truncated samples take a part of delta, or
    are of less noise where they are full (see `truncation`). Which price is
    smaller depends on delta.

    Args:
        rounds: Mechanisms with their counts.

    Returns:
        At least one tuple, in none of which there is a choice.
    """
    if not any(_has_choice(mechanism) for mechanism, _ in rounds):
        return (rounds,)
    found = (
        of(each)
        for each in (_plain(rounds), _in_bins(rounds))
        for of in (_of_slack, _without_slack)
    )
    return tuple(dict.fromkeys(found))


def _has_choice(mechanism: Mechanism) -> bool:
    return isinstance(mechanism, Overflow) or (
        isinstance(mechanism, SampledGaussian) and mechanism.in_bins is not None
    )


def _plain(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    found = Counter[Mechanism]()
    for mechanism, count in rounds:
        if isinstance(mechanism, SampledGaussian):
            mechanism = dataclasses.replace(mechanism, in_bins=None)
        found[mechanism] += count
    return in_order(found)


def _in_bins(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    found = Counter[Mechanism]()
    for mechanism, count in rounds:
        if isinstance(mechanism, SampledGaussian) and mechanism.in_bins:
            bins = mechanism.in_bins
            cycles = -(-bins.rounds // bins.bins)
            found[bins] += -(-count // cycles)
        else:
            found[mechanism] += count
    return in_order(found)


def _of_slack(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    """Returns truncated samples that take what they take of delta."""
    found = Counter[Mechanism]()
    for mechanism, count in rounds:
        if isinstance(mechanism, Overflow):
            mechanism = Slack(mechanism.delta_p)
        found[mechanism] += count
    return in_order(found)


def _without_slack(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[CountedMechanism, ...]:
    """Returns truncated samples as rounds that tell whether they are full."""
    found = Counter[Mechanism](dict(rounds))
    for mechanism, count in rounds:
        if isinstance(mechanism, Overflow):
            found[mechanism.told.whole] -= count
            found[mechanism.told] += count
            del found[mechanism]
    return in_order(+found)
