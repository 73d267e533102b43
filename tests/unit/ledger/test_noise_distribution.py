"""What the noise families take, what they refuse, and how they are stored."""

import dataclasses
import math

import numpy as np
import pytest

from keras_dp.errors import LedgerFormatError
from keras_dp.ledger import CoordinateBounds, EncodedSum, FullDataset, Round
from keras_dp.ledger.events.noise_families import (
    ALL,
    LaplaceNoise,
    StudentTNoise,
)
from keras_dp.ledger.rows.codec import round_from_text, text_from_round
from tests.noise_table import REFUSED, STANDARD, Untested, name_of

each_noise = pytest.mark.parametrize("noise", STANDARD, ids=name_of)
SCALES = [1e-300, 1e-20, 0.3, 1.0, 7, 1e20, 1e300]


class TestParameters:
    def test_every_family_is_in_the_table(self):
        # Laws of TensorFlow Probability have tests of their own.
        own = set(ALL.values()) - {ALL["tensorflow_probability_noise"]}

        assert {type(noise) for noise in STANDARD} == own

    @each_noise
    @pytest.mark.parametrize("scale", [0, -1.0, math.inf, math.nan])
    def test_a_scale_is_positive_and_finite(self, noise, scale):
        with pytest.raises(ValueError, match="`scale` must be finite and > 0"):
            dataclasses.replace(noise, scale=scale)

    @pytest.mark.parametrize("df", [0.5, 0.0, -3.0, math.inf, math.nan])
    def test_degrees_of_freedom_are_at_least_one(self, df):
        with pytest.raises(ValueError, match=r"`df` must be"):
            StudentTNoise(1.0, df)

    @each_noise
    @pytest.mark.parametrize("probability", [-1e-9, 1 + 1e-9, math.nan])
    def test_a_probability_is_one(self, noise, probability):
        with pytest.raises(ValueError, match="`probability` must be in"):
            noise.quantile([0.5, probability])

    @each_noise
    @pytest.mark.parametrize("scale", SCALES)
    def test_all_scales_are_fine(self, noise, scale):
        """Nothing warns, and nothing is NaN."""
        noise = dataclasses.replace(noise, scale=scale)
        x = np.array([[-1e300, -1.0, 0.0], [5e-324, 1e-300, 1e300]])

        for values in (noise.log_density(x), noise.cdf(x)):
            assert values.shape == x.shape
            assert not np.isnan(values).any()
        assert noise.quantile(x * 0 + 0.3).shape == x.shape
        assert noise.quantile(1e-300) < 0
        assert not math.isnan(noise.variance + noise.fisher_information + 1e-9)


class TestRefusals:
    @pytest.mark.parametrize("scale", [1e-100, 1.0, 1e10])
    @pytest.mark.parametrize(
        ("law", "rule"),
        REFUSED,
        ids=lambda value: getattr(value, "__name__", ""),
    )
    def test_a_law_without_it_is_refused_by_name(self, law, rule, scale):
        with pytest.raises(ValueError, match=rule) as error:
            law(scale)

        text = str(error.value)
        assert text.startswith("`standard_log_density` must be")
        assert f"Received: {law.__name__}(scale={scale!r})" in text
        assert ("at z=" in text) == (rule != "integrates to 1")

    @pytest.mark.parametrize(
        "values", [0.0, [0.0], None, "x"], ids=lambda value: repr(value)
    )
    def test_a_density_that_is_no_array_of_its_shape_is_refused(self, values):
        class Wrong(Untested):
            def standard_log_density(self, z):
                return values

        with pytest.raises(TypeError, match="`standard_log_density` must"):
            Wrong(1.0)

    def test_a_law_of_ones_own_is_taken(self):
        """Control: the check does not refuse what is not in the library."""

        class Subbotin(Untested):
            def standard_log_density(self, z):
                return -(z**1.5) - math.log(2 * math.gamma(5 / 3))

        for scale in SCALES:
            assert Subbotin(scale).scale == scale
        assert Subbotin(2.0).log_density([-2.0]) == pytest.approx(
            -1 - math.log(4 * math.gamma(5 / 3))
        )

    def test_what_is_derived_cannot_be_replaced(self):
        """Half of Gumbel's law passes, and the other half is not its mirror."""
        with pytest.raises(TypeError, match="log_density"):

            class Gumbel(LaplaceNoise):
                def log_density(self, x):
                    return -x - np.exp(-x)


class TestInALedger:
    @each_noise
    @pytest.mark.parametrize("scale", [1e-300, 0.1, 3.0])
    def test_a_round_with_each_family_survives_the_ledger(self, noise, scale):
        bounds = CoordinateBounds.from_arrays([[0.5, 0.25]], [1, 3])
        noise = dataclasses.replace(noise, scale=scale)
        before = Round(FullDataset(), (EncodedSum("r", bounds, noise),))

        text = text_from_round(before)

        after = round_from_text(text)
        assert after == before
        assert type(after.queries[0].noise) is type(noise)
        assert text_from_round(after) == text

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ('"df":9.0', '"df":0.5'),
            ('"df":9.0', '"df":"9"'),
            ('"scale":1.5', '"scale":-1.5'),
            ('"kind":"student_t_noise"', '"kind":"gumbel_noise"'),
            ('"kind":"student_t_noise"', '"kind":"laplace_noise"'),
        ],
    )
    def test_a_law_that_cannot_be_is_not_read(self, one, other):
        bounds = CoordinateBounds.from_arrays([[0.5]], [1])
        event = EncodedSum("r", bounds, StudentTNoise(1.5, 9.0))
        text = text_from_round(Round(FullDataset(), (event,)))
        assert one in text

        with pytest.raises(LedgerFormatError):
            round_from_text(text.replace(one, other))


class TestHiddenParameters:
    """Equality must see all that a law depends on: costs are kept by law."""

    def test_an_attribute_beside_the_fields_is_refused(self) -> None:
        class Wider(LaplaceNoise):
            def __init__(self, scale, factor):
                object.__setattr__(self, "factor", factor)
                super().__init__(scale)

        with pytest.raises(TypeError, match="factor"):
            Wider(1.0, 7.0)

    def test_one_that_comes_later_is_refused_by_the_event(self) -> None:
        class Plain(LaplaceNoise):
            pass

        noise = Plain(1.0)
        object.__setattr__(noise, "factor", 7.0)

        bounds = CoordinateBounds.from_arrays([[1.0]], [1])
        with pytest.raises(TypeError, match="factor"):
            EncodedSum("sum", bounds, noise)

    def test_a_field_that_is_not_compared_is_refused(self) -> None:
        @dataclasses.dataclass(frozen=True, slots=True)
        class Unseen(LaplaceNoise):
            factor: float = dataclasses.field(default=1.0, compare=False)

        with pytest.raises(TypeError, match="factor"):
            Unseen(1.0)
