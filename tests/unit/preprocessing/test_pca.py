"""Principal directions of noised sums of outer products."""

import math

import numpy as np
import pytest
from hypothesis import given

from keras_dp.preprocessing import PCA
from keras_dp.preprocessing.pca import symmetric
from keras_dp.preprocessing.release import noised
from tests.adapters import adapted, records_of, without_noise


class TestWithoutNoise:
    def test_a_result_by_hand(self, monkeypatch) -> None:
        without_noise(monkeypatch)
        # Directions (3, 4)/5 three times, and (4, -3)/5 once.
        x = np.array([[3.0, 4.0], [-6.0, -8.0], [0.3, 0.4], [40.0, -30.0]])

        kernel = np.asarray(adapted(PCA(2, 1.0), x).kernel)

        np.testing.assert_allclose(
            np.abs(kernel), [[0.6, 0.8], [0.8, 0.6]], atol=1e-5
        )

    def test_whitened_directions_vary_alike(self, monkeypatch) -> None:
        without_noise(monkeypatch)
        scales = np.array([1.0, 8.0, 2.0, 1e-6])
        x = np.random.default_rng(1).normal(size=(5000, 3, 4)) * scales

        layer = adapted(PCA(4, 2.0, whiten=True), x)

        rows = x / np.linalg.norm(x, axis=(1, 2), keepdims=True)
        y = np.asarray(layer(rows)).reshape(-1, 4)
        squares = (y**2).sum(axis=0)
        np.testing.assert_allclose(squares[:3], squares[0], rtol=1e-3)
        # The noise has eigenvalues up to this one.
        kernel = np.linalg.norm(layer.kernel, axis=0)
        longest = np.sqrt(squares[0] / (2.0 * np.sqrt(2 * 4)))
        np.testing.assert_allclose(kernel[3], longest, rtol=1e-3)
        assert kernel[0] == pytest.approx(1.0)


@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("clip", [None, 1e-3, 2.0, 1e200])
@given(data=records_of(3))
def test_one_record_moves_the_release_by_at_most_the_bound(
    clip, pixels, data
) -> None:
    adapter = PCA(2, 1.0, l2_norm_clip=clip)
    x = np.array(data)
    if pixels:
        x = np.stack([x, x[:, ::-1], x * 0.5], axis=1)
    moved = adapter.bounded_sum(x) - adapter.bounded_sum(x[1:])

    (event,) = adapter.events()
    assert np.linalg.norm(moved) <= event.l2_norm_bound
    np.testing.assert_array_equal(moved, moved.T)


def test_a_record_with_noise_of_all_digits_keeps_the_bound() -> None:
    x = np.random.default_rng(1).normal(size=(1, 500)) * 1e150

    assert 0.999 < np.linalg.norm(PCA(1, 1.0).bounded_sum(x)) <= 1.0


class TestTheNoise:
    def test_is_symmetric_with_less_off_the_diagonal(self) -> None:
        # 1000 variables have a stddev known to 2.3 %, and 499,500 to 0.1 %; 5
        # of these are exceeded with probability below 1e-6.
        noise = noised(np.zeros([1000, 1000]), 3.0, symmetric)
        above = noise[np.triu_indices(1000, 1)]

        np.testing.assert_array_equal(noise, noise.T)
        assert abs(np.std(np.diag(noise)) / 3 - 1) < 5 * 0.023
        off = np.std(above) * math.sqrt(2) / 3
        assert abs(off - 1) < 5 * 0.001
        assert abs(off / math.sqrt(2) - 1) > 5 * 0.001  # Control: the plain.
