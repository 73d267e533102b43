"""Rounds that hardly ever draw the record, on a grid, against other ways.

The ways are a closed form for one round, quadrature for two, and the line
integral where it is precise.
"""

import math

import mpmath as mp
import numpy as np
import pytest

from keras_dp.accountants.compose import small_losses
from keras_dp.accountants.compose.composition import Composition
from keras_dp.accountants.compose.curve import GRID
from keras_dp.accountants.loss import gaussian_profile
from keras_dp.accountants.loss.fixed_size import FixedSizeLoss
from keras_dp.accountants.loss.loss_distribution import LossDistribution
from keras_dp.accountants.loss.mixture import MixtureLoss, ReplaceOneLoss
from tests.oracle.test_accountants_few_rounds import (
    composed_by_quadrature,
    epsilon_bounds,
    log_delta_bounds,
)
from tests.oracle.test_accountants_single_round import epsilon_bounds as of_one

WIDTH = 1e-8


def law_of(noise_multiplier, q, kind) -> LossDistribution:
    if kind == "replaced":
        return ReplaceOneLoss(noise_multiplier, q)
    if kind.startswith("three"):
        shares = (1 - q, 0.7 * q, 0.2 * q, 0.1 * q)
        return MixtureLoss(noise_multiplier, shares, kind == "three added")
    if kind == "fixed size":
        return FixedSizeLoss(law_of(noise_multiplier, q, "removed"))
    return MixtureLoss(noise_multiplier, (1 - q, q), kind == "added")


def rounds_of(law, count=1) -> Composition:
    return Composition((law,), np.array([float(count)]))


def by_grid(whole, log_delta):
    return epsilon_bounds(whole, log_delta, WIDTH, GRID)


@pytest.mark.parametrize("kind", ["removed", "added"])
@pytest.mark.parametrize("noise_multiplier", [0.8, 1.0, 5.0])
@pytest.mark.parametrize("q", [1e-4, 1e-9])
def test_one_round_is_what_its_closed_form_says(
    noise_multiplier, q, kind
) -> None:
    law, log_delta = law_of(noise_multiplier, q, kind), math.log(q / 20)

    lower, upper = by_grid(rounds_of(law), log_delta)

    true = of_one(law, log_delta)
    assert lower <= true[0] <= true[1] <= upper
    assert upper - lower < 0.05 * upper


@pytest.mark.parametrize("kind", ["removed", "added"])
def test_two_rounds_are_what_quadrature_says(kind) -> None:
    law = law_of(1.0, 1e-4, kind)
    epsilon = 1e-4

    lower, upper = log_delta_bounds(rounds_of(law, 2), epsilon, WIDTH, GRID)

    true = composed_by_quadrature(law, 2, epsilon, 1)
    assert lower <= math.log(true) <= upper
    assert upper - lower < 0.03


@pytest.mark.parametrize(
    ("kind", "noise_multiplier", "q", "count"),
    [
        *(
            (kind, 1.0, *numbers)
            for kind in ("removed", "added", "replaced")
            for numbers in ((1e-5, 100), (1e-4, 2500))
        ),
        ("fixed size", 0.5, 1e-4, 1000),
    ],
)
def test_many_rounds_are_what_the_line_says(
    kind, noise_multiplier, q, count
) -> None:
    whole = rounds_of(law_of(noise_multiplier, q, kind), count)
    log_delta = math.log(1e-6)

    lower, upper = by_grid(whole, log_delta)

    line = epsilon_bounds(whole, log_delta, 1e-6)
    assert lower <= line[0] <= line[1] <= upper
    assert upper - lower < 0.03 * upper


@pytest.mark.parametrize(
    ("noise_multiplier", "epsilon"), [(1.0, 1e-5), (5.0, 1e-7)]
)
def test_one_round_of_fixed_size_has_the_delta_of_a_removed_record(
    noise_multiplier, epsilon
) -> None:
    """For epsilon >= 0: there the two have the same losses."""
    law = law_of(noise_multiplier, 1e-6, "fixed size")

    found = log_delta_bounds(rounds_of(law), epsilon, WIDTH, GRID)

    removed = law_of(noise_multiplier, 1e-6, "removed")
    true = gaussian_profile.log_delta_bounds(removed, epsilon)
    assert found[0] <= true[0] <= true[1] <= found[1]
    assert found[1] - found[0] < 0.03


def test_control_a_removed_record_does_not_bound_samples_of_fixed_size() -> (
    None
):
    log_delta, count = math.log(1e-9), 2111

    low, high = (
        by_grid(rounds_of(law_of(2.5, 1e-9, kind), count), log_delta)
        for kind in ("removed", "fixed size")
    )

    assert low[1] < 0.9 * high[0]


KINDS = [
    *(
        small_losses._Sampled(law_of(1 / shift, q, kind), 1, (q,), shift)
        for kind in ("removed", "added", "replaced")
        for q, shift in ((0.1, 3.3), (1e-4, 1.0), (1e-9, 0.01))
    ),
    *(
        small_losses._Sampled(law, 1, law.probabilities[1:], shift)
        for q, shift in ((0.1, 1.1), (1e-4, 0.5), (1e-9, 0.01))
        for kind in ("three removed", "three added")
        if (law := law_of(1 / shift, q, kind))
    ),
]


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_have_the_losses_that_they_are_computed_for(kind) -> None:
    """(9.2) in 60 digits: within the bound, and not within 1e-5 of it."""
    most = min(kind.loss.largest, kind.loss_at(38.0 + kind.farthest))
    sizes = most * np.geomspace(1e-9, 0.999, 40)
    losses = np.concatenate([-sizes[::-1], sizes])
    outputs = kind.outputs(losses)
    off = []
    with mp.workdps(60):
        for loss, output in zip(losses, outputs, strict=True):
            if not abs(output) < 50:
                continue
            ratios = [
                1
                - mp.mpf(kind.q)
                + mp.fsum(
                    chance * mp.exp(shift * output - mp.mpf(shift) ** 2 / 2)
                    for chance, *shifts in kind.drawn
                    for shift in shifts[side : side + 1]
                )
                for side in (0, 1)
            ]
            error = mp.log(ratios[0]) - mp.log(ratios[1]) - mp.mpf(loss)
            bound = small_losses._ERROR * (abs(np.expm1(loss)) + kind.q)
            off.append(float(abs(error)) / bound)

    assert 1e-5 < max(off) <= 1


@pytest.mark.parametrize("width", [1.0, 1e-2, 1e-5])
def test_masses_are_as_precise_as_is_said(width) -> None:
    """(9.1) in 40 digits: within the bound, and not within 1e-4 of it."""
    starts = np.linspace(-37.0, 36.0, 200)
    off = []
    with mp.workdps(40):
        for start in starts:
            ends = np.array([start, start + width])
            masses, errors = small_losses._masses(ends)
            # On the smaller side: nothing cancels.
            low, high = map(mp.mpf, ends if start < 0 else -ends[::-1])
            true = mp.ncdf(high) - mp.ncdf(low)
            off.append(float(abs(true - mp.mpf(masses[1]))) / errors[1])

    assert 1e-4 < max(off) <= 1


@pytest.mark.parametrize("part", ["_above", "_below"])
def test_control_other_ends_of_cells_bound_nothing(part, monkeypatch) -> None:
    """Masses that move to one end of their cell, and losses rounded up."""
    law, log_delta = law_of(1.0, 1e-4, "removed"), math.log(5e-6)
    of_kind = getattr(small_losses, part)

    def moved(kind, step, places):
        found = of_kind(kind, step, places)
        return found._replace(first=found.first + (-1, 1)[part == "_below"])

    monkeypatch.setattr(small_losses, part, moved)
    true = of_one(law, log_delta)[0]
    grid = small_losses.bounds_near(
        rounds_of(law), true, log_delta, 1e-2, is_given=True
    )

    lower, upper = grid.log_delta(true)
    assert lower > log_delta or upper < log_delta
