"""Quantiles from noised counts of a public grid."""

import numpy as np
import pytest
from hypothesis import given

from keras_dp.preprocessing import Discretization
from keras_dp.preprocessing.discretization import below_edges, root_of_sums
from tests.adapters import adapted, records_of, without_noise


class TestWithoutNoise:
    def test_a_result_by_hand(self, monkeypatch) -> None:
        without_noise(monkeypatch)
        adapter = Discretization((0, 10), 4, 1.0, cells=10)

        # Two of eight in the cells of 1, 3, 5; -7 counts in 0, 70 in 9.
        x = np.array([1.0, 1.9, 3.0, 3.5, 5.0, 5.5, -7.0, 70.0, np.nan])

        np.testing.assert_allclose(
            adapted(adapter, x).bin_boundaries, [1.5, 3.5, 5.5]
        )


@given(data=records_of(3))
def test_one_record_moves_the_release_by_at_most_the_bound(data) -> None:
    adapter = Discretization((-1, 1), 2, 1.0, cells=16)
    x = np.array(data)
    moved = adapter.bounded_sum(x) - adapter.bounded_sum(x[1:])
    root = root_of_sums(16)

    (event,) = adapter.events()
    # Differences of thirds are rounded.
    assert np.sum(np.abs(moved)) <= 1 + 1e-12
    released = np.convolve(root, moved)[:16] / np.linalg.norm(root)
    assert np.linalg.norm(released) <= event.l2_norm_bound + 1e-12


@pytest.mark.parametrize("size", [1, 2, 7, 300])
def test_the_root_times_itself_adds_up(size) -> None:
    root = root_of_sums(size)

    np.testing.assert_allclose(np.convolve(root, root)[:size], np.ones(size))


class TestTheNoise:
    # The variance of 500 numbers is known to 6.4 %; 5 times that is exceeded
    # with probability below 1e-6.
    @pytest.mark.full
    def test_is_that_of_the_matrix(self) -> None:
        root = root_of_sums(4)
        matrix = np.tril(
            [[root[abs(i - j)] for j in range(4)] for i in range(4)]
        )

        drawn = np.array([below_edges(np.zeros(4), 3.0) for _ in range(500)])

        white = np.linalg.solve(matrix, drawn.T) / np.linalg.norm(root)
        allowed = 9 * 5 * 0.064
        np.testing.assert_allclose(
            white @ white.T / 500, 9 * np.eye(4), atol=allowed
        )
        plain = drawn.T @ drawn / 500  # Control: it is not white.
        assert not np.allclose(plain, 9 * np.eye(4), atol=allowed)

    def test_never_makes_boundaries_that_decrease(self) -> None:
        layer = adapted(Discretization((0, 1), 50, 1e5), np.ones(10))
        boundaries = np.array(layer.bin_boundaries)

        assert len(boundaries) == 49
        assert np.all(np.diff(boundaries) >= 0)
        assert np.all((boundaries >= 0) & (boundaries <= 1))
