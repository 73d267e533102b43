"""Preselected vectors against draws that are sorted, one by one."""

import numpy as np
import pytest
from scipy import stats

from keras_dp.dp_queries.discrete.preselected_vectors import (
    PreselectedVectors,
    block_sizes,
)
from keras_dp.ledger.events.noise_families import (
    GaussianNoise,
    LaplaceNoise,
    StudentTNoise,
)

FALSE_ALARM = 1e-6
FAMILIES = [
    GaussianNoise(1.0),
    StudentTNoise(0.5, 3.0),
    LaplaceNoise(2.0),
    StudentTNoise(1.0, 1.0),
]


def expanded(recipe):
    bounds = recipe.bounds()
    levels = bounds.level_array().astype(np.float64)
    return np.repeat(levels, bounds.count_array(), axis=1)


def sorted_draws(law, count, size, seed=0):
    """Returns magnitudes of draws, decreasing, `[count, size]`, of norm 1."""
    u = np.random.default_rng(seed).random([count, size])
    draws = -np.sort(-np.abs(law.quantile(u)), axis=1)
    return draws / np.linalg.norm(draws, axis=1, keepdims=True)


class TestVectors:
    @pytest.mark.parametrize("law", FAMILIES, ids=repr)
    @pytest.mark.parametrize("levels", [1, 2, 17, 64, 300])
    def test_have_the_norm_and_fall(self, law, levels):
        recipe = PreselectedVectors(law, 20, 300, l2_norm=1.5, levels=levels)

        vectors = expanded(recipe)

        assert vectors.shape == (20, 300)
        assert (np.diff(vectors, axis=1) <= 0).all()
        norms = np.linalg.norm(vectors, axis=1)
        # Rounded up to float32: never below, up to float64 rounding.
        assert (norms >= 1.5 * (1 - 1e-15)).all()
        assert (norms <= 1.5 * (1 + 2**-23)).all()
        assert recipe.bounds().count_array().size <= levels

    @pytest.mark.full
    @pytest.mark.parametrize("law", FAMILIES, ids=repr)
    def test_with_a_level_each_are_draws_of_the_law(self, law):
        """Magnitudes lost their scale: their ratios are compared.

        Of ten draws, ratios to the largest follow no simple law, but the same
        as those of draws sorted by NumPy; each of nine ratios is tested.
        """
        recipe = PreselectedVectors(law, 4000, 10, l2_norm=1.0, floor=0.0)
        mine, theirs = expanded(recipe), sorted_draws(law, 4000, 10)
        for rank in range(1, 10):
            one, two = (
                np.log(each[:, rank] / each[:, 0]) for each in (mine, theirs)
            )
            assert stats.ks_2samp(one, two).pvalue > FALSE_ALARM

    def test_of_another_law_would_be_seen(self):
        """Control."""
        law, other = GaussianNoise(1.0), LaplaceNoise(1.0)
        recipe = PreselectedVectors(law, 4000, 10, l2_norm=1.0, floor=0.0)
        mine, theirs = expanded(recipe), sorted_draws(other, 4000, 10)
        one, two = (np.log(each[:, 4] / each[:, 0]) for each in (mine, theirs))

        assert stats.ks_2samp(one, two).pvalue < FALSE_ALARM

    def test_below_the_floor_are_zero_before_the_norm_is_made(self):
        plain, floored = (
            PreselectedVectors(
                GaussianNoise(1.0), 5, 100, 1.0, floor=floor, levels=100
            )
            for floor in (0.0, 0.5)
        )
        raw, cut = expanded(plain), expanded(floored)
        zero = cut == 0

        # A third of a Gaussian is within half a standard deviation.
        assert (zero.sum(axis=1) > 20).all()
        assert (zero.sum(axis=1) < 60).all()
        assert (raw > 0).all()
        # What is left was stretched, to the same norm.
        ratios = np.where(zero, np.nan, cut / raw)
        assert (np.nanmin(ratios, axis=1) > 1.001).all()
        np.testing.assert_allclose(
            np.nanmax(ratios, axis=1), np.nanmin(ratios, axis=1), rtol=1e-6
        )

    def test_are_the_same_every_time(self):
        """The words are Philox's; what becomes of them is good to an ulp."""
        recipe = PreselectedVectors(GaussianNoise(1.0), 3, 50, 1.0, levels=5)

        np.testing.assert_allclose(
            recipe.bounds().level_array()[:, :3],
            [
                [0.31489626, 0.269798, 0.18736148],
                [0.29461014, 0.25501013, 0.19228184],
                [0.39850435, 0.30360627, 0.17269589],
            ],
            rtol=1e-6,
        )


class TestBlocks:
    @pytest.mark.parametrize("size", [1, 2, 3, 10, 257, 10**6, 10**9])
    @pytest.mark.parametrize("levels", [1, 2, 3, 10, 256, 1000])
    def test_cover_all_coordinates(self, size, levels):
        counts = block_sizes(size, levels)

        assert counts.sum() == size
        assert counts.min() >= 1
        assert 1 <= counts.size <= levels
        if levels >= size:
            assert counts.size == size

    def test_are_short_where_magnitudes_are_large(self):
        counts = block_sizes(100, 10)

        assert counts.tolist() == [1, 2, 3, 7, 9, 13, 14, 16, 17, 18]


class TestConfiguration:
    def test_with_a_floor_above_all_draws_is_refused(self):
        recipe = PreselectedVectors(GaussianNoise(1.0), 1, 10, 1.0, floor=99.0)

        with pytest.raises(ValueError, match="`floor` must be below"):
            recipe.bounds()
