"""One round without its spans: sampling and release become a mechanism."""

import decimal
import functools
import math

from keras_dp.accountants.normalize.adjacency import (
    SENSITIVITY,
    Neighbours,
    is_amplified,
)
from keras_dp.accountants.normalize.mechanisms import (
    UNREACHED,
    AdditiveNoise,
    Exposure,
    FixedSizeGaussian,
    Gaussian,
    Mechanism,
    Overflow,
    SampledGaussian,
    SampledGaussianReplaceOne,
    Slack,
)
from keras_dp.accountants.normalize.release import Release
from keras_dp.accountants.normalize.truncation import (
    reached_by,
    told_of,
    truncation_exposure,
)
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    PoissonSampling,
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


@functools.singledispatch
def mechanism_of(
    sampling: SamplingEvent, release: Release, neighbours: Neighbours
) -> Mechanism | None:
    """Returns the mechanism of a round without its spans; None if it is free.

    Args:
        sampling: How the sample was drawn.
        release: The release over it; `adjacency.check_supported` has
            found a bound for both together.
        neighbours: The adjacency relation.
    """
    raise UnsupportedEventError(
        "`sampling` must be of a class that the accountants know. "
        f"Received: sampling={sampling!r}."
    )


@mechanism_of.register(FullDataset)
@mechanism_of.register(UnverifiedSampling)
def _(
    sampling: SamplingEvent, release: Release, neighbours: Neighbours
) -> Mechanism | None:
    return unamplified(release, neighbours)


@mechanism_of.register(PoissonSampling)
@mechanism_of.register(TruncatedPoissonSampling)
def _(
    sampling: PoissonSampling | TruncatedPoissonSampling,
    release: Release,
    neighbours: Neighbours,
) -> Mechanism | None:
    if not is_amplified(sampling, release):
        return unamplified(release, neighbours)
    sensitivity, q = release.sensitivity, sampling.probability
    if release.encodings and neighbours != "replace_one":
        return _additive(release, q)
    z, reached = _noise_multiplier(sensitivity), None
    if isinstance(sampling, TruncatedPoissonSampling):
        reached = reached_by(sampling)
    if neighbours == "replace_one":
        return SampledGaussianReplaceOne(z, q, reached=reached)
    return SampledGaussian(z, q, reached=reached)


@mechanism_of.register
def _(
    sampling: FixedSizeWithoutReplacement,
    release: Release,
    neighbours: Neighbours,
) -> Mechanism | None:
    if release.is_free or sampling.sample_size == sampling.population_size:
        return unamplified(release, neighbours)
    return FixedSizeGaussian(
        _noise_multiplier(release.sensitivity * SENSITIVITY[neighbours]),
        sampling.sample_size / sampling.population_size,
    )


def exposure_of(sampling: SamplingEvent, release: Release) -> Exposure | None:
    """Returns the slack of thresholds beside the mechanism of a round."""
    if not release.thresholds:
        return None
    if isinstance(
        sampling, PoissonSampling | TruncatedPoissonSampling
    ) and is_amplified(sampling, release):
        return Exposure((release.thresholds,), sampling.probability)
    return Exposure((release.thresholds,))


def overflow_of(
    sampling: SamplingEvent,
    release: Release,
    neighbours: Neighbours,
    mechanism: Mechanism | None,
) -> Slack | None:
    """Returns the slack of a sample that is truncated; `None` without any.

    Thresholds may have slack of their own in the rest of its outcomes.
    """
    if not isinstance(sampling, TruncatedPoissonSampling) or (
        release.is_free and not release.spans
    ):
        return None
    chance = truncation_exposure(sampling)
    if not chance:
        return None
    if (
        release.thresholds
        or release.spans
        or not isinstance(
            mechanism, SampledGaussian | SampledGaussianReplaceOne
        )
    ):
        return Slack(chance)
    return Overflow(chance, told=told_of(sampling, mechanism, neighbours))


def cyclic(
    probability: float,
    lower: float,
    upper: float,
    neighbours: Neighbours,
) -> Mechanism:
    """Returns a cycle of a Poisson sample, one class a round.

    Args:
        probability: Chance of a record, in (0, 1).
        lower: A record whose class is a secret reaches it, or 0.
        upper: No record exceeds it, > 0.
        neighbours: The adjacency relation.
    """
    least, most = _noise_multiplier(upper), _most_noise(lower, upper)
    if neighbours == "replace_one":
        return SampledGaussianReplaceOne(least, probability, most)
    return SampledGaussian(least, probability, False, most)


def gaussian_between(
    lower: float, upper: float, neighbours: Neighbours
) -> Gaussian:
    """Returns a Gaussian, given two bounds on its sensitivity.

    Args:
        lower: Two data sets that differ by one record more reach it, or 0.
        upper: No such data sets exceed it, > 0.
        neighbours: The adjacency relation.
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
