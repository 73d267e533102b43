"""Interpolation in the noise: against every round by itself."""

import numpy as np
import pytest

from keras_dp.accountants import Fourier
from keras_dp.accountants.compose.composition import composed
from keras_dp.accountants.compose.line.points import log_ratios, paths
from keras_dp.accountants.compose.many_noises import families
from keras_dp.accountants.loss.log_moments import log_moments
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    GaussianSum,
    PoissonSampling,
    Round,
)

TOLERANCE = 1e-13


def mixtures(noises, q, is_added):
    return [MixtureLoss(z, (1 - q, q), is_added) for z in noises.tolist()]


LOSSES = {
    "removed": mixtures(np.linspace(0.8, 1.6, 80), 0.01, False),
    "added": mixtures(np.linspace(0.8, 1.6, 80), 0.01, True),
    "hardly sampled": mixtures(np.linspace(1, 1.02, 60), 1e-4, False),
    "far apart": mixtures(np.geomspace(0.7, 40, 400), 1e-3, False),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("tilt", [0.8, 9.0])
class TestSums:
    """The sum over the rounds is within its error of the true one."""

    def test_of_real_moments(self, name, tilt) -> None:
        losses = LOSSES[name]
        counts = 1.0 + np.arange(len(losses)) % 3
        tilts = np.array([tilt / 3, tilt])

        (family,) = families(losses, counts)
        total, errors = np.zeros(2), np.zeros(2)
        size = 0
        for interval in family.intervals(tilt, TOLERANCE):
            logs = np.array([log_moments(x, tilts) for x in interval.losses])
            more, off = interval.total(logs, 1e-15 + 0 * logs, TOLERANCE)
            total, errors = total + more, errors + off
            size += len(interval.losses)

        true = counts @ np.array([log_moments(x, tilts) for x in losses])
        assert size < len(losses) or tilt > 1
        assert np.all(np.abs(total - true) <= errors + 1e-14 * np.abs(true))
        assert np.all(errors <= 1e-9 * np.maximum(1, np.abs(true)))

    @pytest.mark.full
    def test_on_a_line(self, name, tilt) -> None:
        losses = LOSSES[name]
        counts = np.ones(len(losses))
        step, size = 30.0, 200

        together, errors = log_ratios(
            paths(composed(losses, counts), tilt, step * size), step, size
        )
        alone = np.zeros(size, dtype=complex)
        for loss in losses:
            more, _ = log_ratios(
                paths(composed([loss], np.ones(1)), tilt, step * size),
                step,
                size,
            )
            alone += more

        # The means that are subtracted are not the same.
        turns = np.exp(together - together.real - alone + alone.real)
        mean = np.angle(turns[1]) / step
        change = np.expm1(together - alone - 1j * mean * step * np.arange(size))
        big = alone.real > -25
        assert np.abs(change[big]).max() <= 1e-9
        assert np.all(
            np.abs(np.expm1((together - alone).real)) <= errors + 1e-10
        )


def test_a_polynomial_of_too_wide_an_interval_is_told_by_its_error() -> None:
    """The control: with fewer points the stated error grows, and is true."""
    losses = LOSSES["removed"]
    (interval,) = families(losses, np.ones(80))[0].intervals(4.0, 1e-4)
    tilts = np.array([4.0])

    logs = np.array([log_moments(x, tilts) for x in interval.losses])
    total, error = interval.total(logs, 0 * logs, 1e-4)
    true = sum(log_moments(x, tilts) for x in losses)

    assert 1e-12 < error[0] < 1e-4
    assert abs(total - true)[0] <= error[0]


@pytest.mark.full
@pytest.mark.parametrize(
    ("sampling", "neighbours"),
    [
        (PoissonSampling(1e-3), "add_or_remove_one"),
        (FixedSizeWithoutReplacement(10, 1000), "replace_one"),
        (PoissonSampling(1e-3), "replace_one"),
        (FixedSizeWithReplacement(10, 1000), "replace_one"),
    ],
)
def test_noises_in_any_order_lie_between_the_least_and_the_largest(
    sampling, neighbours
) -> None:
    noises = np.random.default_rng(0).permutation(np.linspace(2, 2.2, 120))

    def bounds(values):
        return Fourier().epsilon_bounds(
            [
                (Round(sampling, (GaussianSum("sum", 1.0, float(z)),)), 1)
                for z in values
            ],
            delta=1e-6,
            neighbours=neighbours,
            relative_width=1e-4,
        )

    found = bounds(noises)
    more, less = bounds(np.full(120, 2.0)), bounds(np.full(120, 2.2))
    assert less.lower <= found.lower <= found.upper <= more.upper
    assert found.upper > less.upper
