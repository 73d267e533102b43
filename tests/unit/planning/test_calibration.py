"""Calibration meets the target, barely."""

import math

import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.roots import least_safe
from keras_dp.errors import CalibrationError
from keras_dp.ledger import FullDataset, GaussianSum, PoissonSampling, Round
from keras_dp.planning.calibration import (
    calibrate_noise,
    calibrate_scale,
    least_that_meets,
    searched,
)
from tests.analytic_gaussian import AnalyticGaussian

MOMENTS = RDP(conversion="moments")

VALID = {
    "target_epsilon": 1.0,
    "delta": 1e-5,
    "sampling_probability": 0.01,
    "rounds": 1000,
}


def spent(accountant, noise: float, case: dict, neighbours: str) -> float:
    query = GaussianSum("sum", 1.0, noise)
    sampling = PoissonSampling(case["sampling_probability"])
    return accountant.epsilon(
        [(Round(sampling, (query,)), case["rounds"])],
        delta=case["delta"],
        neighbours=neighbours,
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("accountant", "neighbours", "changes"),
    [
        (RDP(), "add_or_remove_one", {}),
        (RDP(), "replace_one", {}),
        (RDP(), "add_or_remove_one", {"target_epsilon": 0.01}),
        (RDP(), "add_or_remove_one", {"target_epsilon": 1000.0}),
        (RDP(), "zero_out", {"rounds": 1, "delta": 1e-200}),
        (MOMENTS, "add_or_remove_one", {}),
        (AnalyticGaussian(), "replace_one", {"sampling_probability": 1.0}),
    ],
)
def test_meets_the_target_and_wastes_nothing(
    accountant, neighbours, changes
) -> None:
    """Within 1e-6, and never exceeded, not by an ulp."""
    case = VALID | changes

    noise = calibrate_noise(
        accountant=accountant, neighbours=neighbours, **case
    )

    epsilon = spent(accountant, noise, case, neighbours)
    assert epsilon <= case["target_epsilon"]
    assert epsilon >= case["target_epsilon"] * (1 - 1e-6)


def test_scales_nested_queries() -> None:
    """Two equal groups need sqrt(2) times the noise of one.

    Epsilon of each is found to 1e-7, and falls at least like the noise.
    """

    def two_groups(scale):
        queries = (
            GaussianSum("a", 1.0, scale),
            GaussianSum("b", 3.0, 3 * scale),
        )
        return [(Round(PoissonSampling(0.01), queries), 1000)]

    scale = calibrate_scale(
        two_groups, target_epsilon=1.0, delta=1e-5, accountant=RDP()
    )

    alone = calibrate_noise(accountant=RDP(), **VALID)
    assert scale == pytest.approx(math.sqrt(2) * alone, rel=2e-7)


def test_is_a_number_that_a_bound_does_not_change() -> None:
    """Noise of a sum is scale times bound; a ledger divides them again.

    Control: a scale of 17 digits comes out of it with one of 12 that is less.
    """

    def multiplier(scale, bound):
        query = GaussianSum("sum", bound, scale * bound)
        found = normalize([(Round(FullDataset(), (query,)), 1)])
        return found[0].mechanism.noise_multiplier

    scales = [
        calibrate_noise(**(VALID | {"accountant": RDP(), "rounds": rounds}))
        for rounds in (10, 100)
    ]

    for bound in (0.1, 1 / 3, 0.7, 1.1, 12345.6):
        assert all(multiplier(scale, bound) == scale for scale in scales)
        assert multiplier(math.pi, bound) < math.pi


class TestNarrowBoundsThatAreLarger:
    """The quick search must not have the last word."""

    def search(self, of):
        return least_that_meets(of, 1.0, least=-9.0, most=9.0, start=0.0)

    def epsilon(self, by, at) -> float:
        is_narrow = by.relative_width < 1e-7
        return math.exp(0.3 - at) * (1 + 1e-6 * is_narrow)

    def test_are_within_the_target(self) -> None:
        at = searched(self.epsilon, self.search, Fourier(), 1.0)

        assert 1 - 1e-6 <= self.epsilon(Fourier(), at) <= 1

    def test_control_the_quick_search_exceeds_it(self) -> None:
        at = self.search(lambda at: self.epsilon(Fourier(3e-7), at))

        assert self.epsilon(Fourier(), at) > 1


def test_a_search_ends_where_epsilon_jumps() -> None:
    """After 100 values; what it returns was computed, and is safe."""
    asked = []

    def excess(at):
        asked.append(at)
        return 1.0 if at < math.sqrt(0.3) else -1e-9

    found = least_safe(excess, 0.0, 1e6, nearest=1e-300)

    assert found in asked
    assert math.sqrt(0.3) <= found <= math.sqrt(0.3) + 0.1
    assert len(asked) <= 100


def test_a_cost_that_noise_does_not_touch_is_named() -> None:
    """The nearest possible target is in the message."""
    fixed = Round(FullDataset(), (GaussianSum("fixed", 1.0, 1.0),))
    floor = RDP().epsilon([(fixed, 1)], delta=1e-5)

    def beside(scale):
        free = Round(FullDataset(), (GaussianSum("free", 1.0, scale),))
        return [(fixed, 1), (free, 1)]

    with pytest.raises(CalibrationError) as error:
        calibrate_scale(
            beside,
            target_epsilon=floor * 0.99,
            delta=1e-5,
            accountant=RDP(),
        )
    assert f"epsilon={floor:.6g}" in str(error.value)

    scale = calibrate_scale(
        beside, target_epsilon=floor * 1.01, delta=1e-5, accountant=RDP()
    )
    assert RDP().epsilon(beside(scale), delta=1e-5) <= floor * 1.01


def test_a_target_below_what_an_accountant_can_see_raises() -> None:
    """32 moments reach no further than log(1/delta) / 32."""
    with pytest.raises(CalibrationError, match=r"0\.359"):
        calibrate_noise(
            accountant=MOMENTS,
            **(VALID | {"target_epsilon": 0.3}),
        )


def test_a_target_that_is_met_anyway_takes_the_least_noise() -> None:
    def free(scale):
        return [(Round(FullDataset(), (GaussianSum("a", 0.0, scale),)), 1)]

    assert calibrate_scale(
        free, target_epsilon=1.0, delta=1e-5
    ) == pytest.approx(1e-4)


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("target_epsilon", 0.0, ValueError),
        ("target_epsilon", math.inf, ValueError),
        ("target_epsilon", "1", TypeError),
        ("delta", 0.0, ValueError),
        ("delta", 1.0, ValueError),
        ("delta", math.nan, ValueError),
        ("sampling_probability", 1.5, ValueError),
        ("rounds", 0, ValueError),
        ("rounds", 1.5, TypeError),
        ("neighbours", "other", ValueError),
    ],
)
def test_bad_arguments_raise(name, value, kind) -> None:
    with pytest.raises(kind, match=f"`{name}`"):
        calibrate_noise(**(VALID | {name: value}))
