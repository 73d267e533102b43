"""Calibration meets the target, barely."""

import math
import re

import pytest

from keras_dp.accountants import (
    RDP,
    AnalyticGaussian,
    Moments,
    StrongComposition,
    calibrate_noise,
    calibrate_scale,
)
from keras_dp.errors import CalibrationError, UnsupportedEventError
from keras_dp.ledger import FullDataset, GaussianSum, PoissonSampling, Round

MESSAGE = re.compile(r"`\w+` must .* Received: .*", re.DOTALL)
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


@pytest.mark.parametrize(
    ("accountant", "neighbours", "changes"),
    [
        (RDP(), "add_or_remove_one", {}),
        (RDP(), "replace_one", {}),
        (RDP(), "add_or_remove_one", {"target_epsilon": 0.01}),
        (RDP(), "add_or_remove_one", {"target_epsilon": 1000.0}),
        (RDP(), "zero_out", {"rounds": 1, "delta": 1e-200}),
        (Moments(), "add_or_remove_one", {}),
        (StrongComposition(), "replace_one", {}),
        (AnalyticGaussian(), "replace_one", {"sampling_probability": 1.0}),
    ],
)
def test_meets_the_target_and_wastes_nothing(
    accountant, neighbours, changes
) -> None:
    """Within 1e-6: noise is found to 1e-8, and epsilon moves a few times that.

    Never exceeded, not by an ulp.
    """
    case = VALID | changes

    noise = calibrate_noise(
        accountant=accountant, neighbours=neighbours, **case
    )

    epsilon = spent(accountant, noise, case, neighbours)
    assert epsilon <= case["target_epsilon"]
    assert epsilon >= case["target_epsilon"] * (1 - 1e-6)


def test_uses_rdp_by_default() -> None:
    assert calibrate_noise(**VALID) == calibrate_noise(
        accountant=RDP(), **VALID
    )


def test_scales_nested_queries() -> None:
    """Two equal groups need sqrt(2) times the noise of one; to 1e-8."""

    def two_groups(scale):
        queries = (
            GaussianSum("a", 1.0, scale),
            GaussianSum("b", 3.0, 3 * scale),
        )
        return [(Round(PoissonSampling(0.01), queries), 1000)]

    scale = calibrate_scale(two_groups, target_epsilon=1.0, delta=1e-5)

    assert scale == pytest.approx(
        math.sqrt(2) * calibrate_noise(**VALID), rel=1e-8
    )


def test_a_cost_that_noise_does_not_touch_is_named() -> None:
    """The nearest possible target is in the message."""
    fixed = Round(FullDataset(), (GaussianSum("fixed", 1.0, 1.0),))
    floor = RDP().epsilon([(fixed, 1)], delta=1e-5)

    def beside(scale):
        free = Round(FullDataset(), (GaussianSum("free", 1.0, scale),))
        return [(fixed, 1), (free, 1)]

    with pytest.raises(CalibrationError) as error:
        calibrate_scale(beside, target_epsilon=floor * 0.99, delta=1e-5)
    assert MESSAGE.fullmatch(str(error.value))
    assert f"epsilon={floor:.6g}" in str(error.value)

    scale = calibrate_scale(beside, target_epsilon=floor * 1.01, delta=1e-5)
    assert RDP().epsilon(beside(scale), delta=1e-5) <= floor * 1.01


def test_a_target_below_what_an_accountant_can_see_raises() -> None:
    """32 moments reach no further than log(1/delta) / 32."""
    with pytest.raises(CalibrationError, match=r"0\.359"):
        calibrate_noise(
            accountant=Moments(), **(VALID | {"target_epsilon": 0.3})
        )


def test_a_target_that_is_met_anyway_takes_the_least_noise() -> None:
    def free(scale):
        return [(Round(FullDataset(), (GaussianSum("a", 0.0, scale),)), 1)]

    assert calibrate_scale(
        free, target_epsilon=1.0, delta=1e-5
    ) == pytest.approx(1e-4)


def test_an_accountant_that_cannot_replay_raises() -> None:
    with pytest.raises(UnsupportedEventError):
        calibrate_noise(accountant=AnalyticGaussian(), **VALID)


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
    with pytest.raises(kind, match=f"`{name}`") as error:
        calibrate_noise(**(VALID | {name: value}))
    assert MESSAGE.fullmatch(str(error.value))
