"""Pairs on a grid of losses against the closed form of one round."""

import math

import numpy as np
import pytest

from keras_dp.accountants.compose.grid import pessimistic
from keras_dp.accountants.compose.grid.pessimistic import Span, grid_pairs
from keras_dp.accountants.compose.single_round import log_delta_bounds
from keras_dp.accountants.loss.mixture import MixtureLaw


def law_of(noise_multiplier, probability, is_added) -> MixtureLaw:
    return MixtureLaw(
        noise_multiplier, (1 - probability, probability), is_added
    )


# Laws with a near-atom at either end, without one, and wide and narrow ones.
LAWS = [
    law_of(noise_multiplier, probability, is_added)
    for noise_multiplier, probability in [
        (0.3, 1e-5),
        (1.0, 0.01),
        (1.0, 0.5),
        (0.5, 0.9),
        (3.0, 1.0),
        (0.3, 1.0),
    ]
    for is_added in (False, True)
]


@pytest.mark.parametrize("step", [0.3, 0.03, 0.003])
@pytest.mark.parametrize("law", LAWS)
def test_pairs_on_the_grid_are_above_and_below_the_law(law, step) -> None:
    """Profiles at 400 epsilons, of either sign; to 1e-13 of rounding.

    For negative ones by the symmetry of both orders.
    """
    least, most = law.support
    span = Span(max(least, -12.0), min(most, 12.0))
    pairs = grid_pairs(law, 1.0, 0.0, span, step)
    places = pairs.first + np.arange(pairs.above.size)
    losses = pairs.offset + step * places
    other = MixtureLaw(
        law.noise_multiplier, law.probabilities, not law.is_added
    )

    found = []
    for epsilon in np.linspace(-3.0, 6.0, 400):
        gain = np.exp(-losses) * np.maximum(0, -np.expm1(epsilon - losses))
        above = float(pairs.above @ gain) + pairs.infinite
        below = float(pairs.below @ gain)
        if epsilon >= 0:
            true = math.exp(log_delta_bounds(law, epsilon)[1])
        else:
            mirrored = math.exp(log_delta_bounds(other, -epsilon)[1])
            true = -math.expm1(epsilon) + math.exp(epsilon) * mirrored
        assert below <= true * (1 + 1e-11) + 1e-13
        assert true <= above * (1 + 1e-11) + 1e-13
        found.append((below, true, above))

    # Second order: the step squared, but where a near-atom is spread.
    below, true, above = np.array(found).T
    assert (above - true).max() <= step
    assert (above - below).max() <= 8 * step


@pytest.mark.parametrize("is_added", [False, True])
def test_both_pairs_are_off_by_the_second_order_of_the_step(is_added) -> None:
    """A tenth of the step, a hundredth of the distance, to a third."""
    law = law_of(1.0, 0.5, is_added)
    largest = []
    for step in (1e-2, 1e-3):
        span = Span(max(law.support[0], -25.0), min(law.support[1], 25.0))
        pairs = grid_pairs(law, 1.0, 0.0, span, step)
        places = pairs.first + np.arange(pairs.above.size)
        losses = pairs.offset + step * places
        distances = []
        # At points of the grid the pair above is exact.
        for epsilon in np.linspace(0.3, 0.32, 41):
            gain = np.exp(-losses) * np.maximum(0, -np.expm1(epsilon - losses))
            true = math.exp(log_delta_bounds(law, epsilon)[1])
            above, below = float(pairs.above @ gain), float(pairs.below @ gain)
            distances.append([above - true, true - below])
        largest.append(np.max(distances, axis=0))

    ratios = largest[0] / largest[1]
    assert np.all((ratios > 30) & (ratios < 300))


def test_negative_weights_are_moved_so_that_the_profile_falls() -> None:
    """Against the profile of the weights before, at 200 ratios."""
    step, tilt = 0.1, 0.5
    losses = step * np.arange(9)
    weights = np.array([1.0, 2.0, -0.5, 3.0, 2.0, -0.2, -0.1, 2.0, 1.0])
    moved = weights.copy()

    is_done = pessimistic._repaired(moved, step, math.exp((1 + tilt) * step))

    def profile(values, ratio):
        under_q = values * np.exp(-(1 + tilt) * losses)
        return float(under_q @ np.maximum(0, np.exp(losses) - ratio))

    assert is_done
    assert moved.min() >= 0
    for ratio in np.linspace(0.0, 3.0, 200):
        assert profile(moved, ratio) <= profile(weights, ratio) + 1e-12


def test_a_negative_last_weight_is_not_repaired() -> None:
    """There a profile would be negative, which no measure has."""
    assert not pessimistic._repaired(np.array([1.0, 1.0, -1.0]), 0.1, 1.1)
