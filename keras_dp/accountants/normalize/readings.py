"""Two mechanisms that dominate the same rounds: the smaller price holds."""

import dataclasses
from collections import Counter

from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
    SampledGaussian,
)
from keras_dp.accountants.normalize.order import in_order


def readings(
    rounds: tuple[CountedMechanism, ...],
) -> tuple[tuple[CountedMechanism, ...], ...]:
    """Returns mechanisms that dominate rounds, each by itself.

    Classes that take turns are Poisson rounds, one a cycle, and are also as
    balls in bins (see `correlated`). Which price is smaller depends on delta.

    Args:
        rounds: Mechanisms with their counts.

    Returns:
        One or two of them, in which nothing else dominates.
    """
    plain, in_bins = Counter[Mechanism](), Counter[Mechanism]()
    for mechanism, count in rounds:
        if isinstance(mechanism, SampledGaussian) and mechanism.in_bins:
            bins = mechanism.in_bins
            plain[dataclasses.replace(mechanism, in_bins=None)] += count
            cycles = -(-bins.rounds // bins.bins)
            in_bins[bins] += -(-count // cycles)
        else:
            plain[mechanism] += count
            in_bins[mechanism] += count
    if plain == in_bins:
        return (rounds,)
    return in_order(plain), in_order(in_bins)
