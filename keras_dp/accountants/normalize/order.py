"""The order of mechanisms, on which the last digits of sums depend."""

import dataclasses
from collections.abc import Mapping

from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Mechanism,
)

# Their noise and their probability tell all mechanisms of these kinds apart.
_TOLD_BY_NUMBERS = frozenset(
    {
        "Gaussian",
        "SampledGaussian",
        "SampledGaussianReplaceOne",
        "FixedSizeGaussian",
    }
)


def in_order(
    counts: Mapping[Mechanism, int],
) -> tuple[CountedMechanism, ...]:
    """Returns mechanisms in the order on which last digits depend."""
    return tuple(
        CountedMechanism(mechanism, counts[mechanism])
        for mechanism in sorted(counts, key=place)
    )


def place(mechanism: Mechanism) -> tuple[str, float, float, str]:
    """Returns by what mechanisms are ordered."""
    name = type(mechanism).__name__
    rest = "" if name in _TOLD_BY_NUMBERS else _text(mechanism)
    if not getattr(mechanism, "samples_all", True):
        rest = "classes"
    if any(
        getattr(mechanism, name, None) is not None
        for name in ("most_noise", "reached")
    ):
        rest = _text(mechanism)
    z, q = mechanism.noise_multiplier, mechanism.sampling_probability
    return name, z, q, rest


def _text(mechanism: Mechanism) -> str:
    return repr(mechanism) + repr(dataclasses.astuple(mechanism))
