"""Means and variances of clipped features, from noised sums."""

import keras
import numpy as np
import pytest
from hypothesis import given

from keras_dp.preprocessing import Normalization
from tests.adapters import adapted, records_of, without_noise


def statistics(layer):
    return np.asarray(layer.input_mean), np.asarray(layer.input_variance)


class TestWithoutNoise:
    def test_a_result_by_hand(self, monkeypatch) -> None:
        without_noise(monkeypatch)

        mean, variance = statistics(
            adapted(
                Normalization((0, 8), 1.0),
                np.array([[0.0, 4.0], [8.0, 4.0], [99.0, 1.0], [5.0, 3.0]]),
            )
        )

        # 99 counts as 8: the first is that of 0, 8, 8, 5.
        np.testing.assert_allclose(mean, [5.25, 3.0], rtol=1e-6)
        np.testing.assert_allclose(variance, [10.6875, 1.5], rtol=1e-6)

    @pytest.mark.parametrize("axis", [-1, None, 1, (1, -1), (1, 2, 3), (-1, 1)])
    @pytest.mark.parametrize("denominator", [None, 50])
    def test_it_is_that_of_keras(self, axis, denominator, monkeypatch) -> None:
        without_noise(monkeypatch)
        x = np.random.default_rng(1).uniform(0, 255, (50, 2, 3, 4))
        theirs = keras.layers.Normalization(axis=axis)
        theirs.adapt(x)

        ours = adapted(
            Normalization((0, 255), 3.0, axis=axis, denominator=denominator), x
        )

        np.testing.assert_allclose(ours(x), theirs(x), atol=1e-4)


@pytest.mark.parametrize("axis", [-1, None, (1, 2)])
@pytest.mark.parametrize("denominator", [None, 7.0])
@given(data=records_of(4))
def test_one_record_moves_the_sum_by_at_most_the_bound(
    axis, denominator, data
) -> None:
    adapter = Normalization((-3, 5), 2.0, axis=axis, denominator=denominator)
    x = np.reshape(data, (-1, 2, 2))
    whole, shape = adapter.bounded_sum(x)
    others, _ = adapter.bounded_sum(x[1:])

    (event,) = adapter.events()
    assert np.linalg.norm(whole - others) <= event.l2_norm_bound
    assert others.shape == whole.shape
    assert shape == {-1: (2,), None: (), (1, 2): (2, 2)}[axis]


@pytest.mark.parametrize("denominator", [None, 100_000.0])
def test_the_bound_is_reached(denominator) -> None:
    """Both at the ends and at the centre of the range: it wastes nothing."""
    adapter = Normalization((-1, 1), 1.0, denominator=denominator)

    for value in (-1.0, 0.0, 1.0):
        alone, _ = adapter.bounded_sum(np.full((1, 50), value))
        assert np.linalg.norm(alone) == pytest.approx(1.0, rel=1e-5)


class TestTheNoise:
    # Means of 400 features, with a stddev known to 3.5 %; a bound of 5 of these
    # is exceeded with probability below 1e-6.
    def measured(self, noise_multiplier: float) -> float:
        layer = adapted(
            Normalization((-1, 1), noise_multiplier, denominator=1000.0),
            np.zeros((1000, 400)),
        )
        return float(np.std(np.asarray(layer.input_mean)))

    def test_is_what_the_event_says(self) -> None:
        expected = 2.0 * np.sqrt(9 / 8 * 400) / 1000

        assert abs(self.measured(2.0) / expected - 1) < 5 * 0.035
        assert abs(self.measured(1.0) / expected - 1) > 5 * 0.035  # Control.

    def test_never_makes_a_layer_that_cannot_be_used(self) -> None:
        layer = adapted(Normalization((0, 1), 1e6), np.ones((2, 50)))
        mean, variance = statistics(layer)

        assert np.all((mean >= 0) & (mean <= 1))
        assert np.all((variance >= 0.5**2 * 1e-4 * 0.999) & (variance <= 0.25))
        assert np.all(np.isfinite(layer(np.ones((2, 50)))))
