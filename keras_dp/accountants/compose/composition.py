"""Rounds together: their laws, their moments, and what makes them simpler."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_dp.accountants.arrays import Array
from keras_dp.accountants.compose.log_mgf import Moments, composed_moments
from keras_dp.accountants.compose.many_noises import Bundle, bundled
from keras_dp.accountants.loss.loss_distribution import LossLaw
from keras_dp.accountants.loss.of_normal_output import CutLaw, OutputLaw, cut

# Of delta, that the largest losses may have which are cut.
_SHARE_CUT = 1e-12


class Composition(NamedTuple):
    """Rounds in one order of each pair.

    Attributes:
        laws: Of the losses of sampled rounds.
        counts: How many rounds there are of each, shape `[laws]`.
        gaussian: `mu^2`, of all Gaussian rounds without sampling together.
        bundles: More sampled rounds, of many kinds.
        left_out: Mass of large losses that the laws lack, of all rounds.
    """

    laws: Sequence[LossLaw]
    counts: Array
    gaussian: float
    bundles: Sequence[Bundle] = ()
    left_out: float = 0.0


def moments(composition: Composition, tilts: Array) -> Moments:
    """Returns `K`, `K'` and `K''` at real `tilts`, shape `[n]`."""
    laws = weighted_laws(composition)
    return composed_moments(laws, composition.gaussian, tilts)


def log_moment_error(composition: Composition, tilt: float) -> float:
    """Returns a bound on the error of `K(tilt)`, rounding apart.

    `inf` where bundles have none.
    """
    error = sum(
        float(count) * math.exp(law.nodes(tilt, tilt, 0.0).log_error)
        for law, count in zip(composition.laws, composition.counts, strict=True)
    )
    return error + sum(
        float(bundle.errors(tilt, np.zeros(1))[0])
        for bundle in composition.bundles
    )


def weighted_laws(composition: Composition) -> list[tuple[LossLaw, float]]:
    """Returns laws and counts, those that stand for bundles included."""
    found = list(
        zip(composition.laws, composition.counts.tolist(), strict=True)
    )
    for bundle in composition.bundles:
        found += zip(bundle.laws, bundle.weights.tolist(), strict=True)
    return found


def with_bundles(composition: Composition, ratio: float) -> Composition:
    """Returns the same with many laws that differ in their noise bundled.

    Args:
        composition: Without bundles.
        ratio: Of the noise within an interval, > 1. The error of the bundles
            shrinks with it, and their cost grows.
    """
    laws, counts, bundles = bundled(composition.laws, composition.counts, ratio)
    return Composition(
        tuple(laws), np.array(counts), composition.gaussian, tuple(bundles)
    )


def without_large_losses(
    composition: Composition, log_delta: float
) -> Composition:
    """Returns the same without losses so large that they do not matter.

    They may be what keeps the line from the saddle point of all others.

    Args:
        composition: Without bundles.
        log_delta: What they do not matter for; about.
    """
    total = float(composition.counts.sum())
    if not total:
        return composition
    log_mass = log_delta + math.log(_SHARE_CUT) - math.log(total)
    laws = tuple(
        cut(law, log_mass)
        if isinstance(law, OutputLaw) and law.support[1] == math.inf
        else law
        for law in composition.laws
    )
    left_out = sum(
        count * math.exp(law.log_left_out)
        for law, count in zip(laws, composition.counts, strict=True)
        if isinstance(law, CutLaw)
    )
    return composition._replace(laws=laws, left_out=left_out)
