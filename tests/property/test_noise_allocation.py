"""Laws of sharing one noise multiplier out over groups."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.dp_queries import (
    dimension_adjusted_noise,
    equal_noise,
    noise_from_shares,
    proportional_noise,
)
from keras_dp.ledger import FullDataset, GaussianSum, Round

CLIPS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.floats(1e-6, 1e6),
    min_size=1,
    max_size=12,
)
MULTIPLIERS = st.floats(1e-3, 1e3)


def dimensions(clips):
    return {
        group: 1 + len(group) * 1000 ** (i % 3) for i, group in enumerate(clips)
    }


def shares(clips):
    return {group: 0.1 + i for i, group in enumerate(clips)}


STRATEGIES = {
    "proportional": proportional_noise,
    "equal": equal_noise,
    "dimension-adjusted": lambda clips, z: dimension_adjusted_noise(
        clips, z, dimensions(clips)
    ),
    "shares": lambda clips, z: noise_from_shares(clips, z, shares(clips)),
}


def total(clips, stddevs):
    return math.hypot(*(clips[g] / stddevs[g] for g in clips)) ** -1


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
class TestEveryStrategy:
    @given(clips=CLIPS, noise_multiplier=MULTIPLIERS)
    def test_realizes_the_noise_multiplier(
        self, strategy, clips, noise_multiplier
    ) -> None:
        """`(sum (S_g / sigma_g)^2)^(-1/2) = z` up to 1e-12."""
        stddevs = strategy(clips, noise_multiplier)

        assert total(clips, stddevs) == pytest.approx(
            noise_multiplier, rel=1e-12
        )

    @given(clips=CLIPS, noise_multiplier=MULTIPLIERS)
    def test_is_what_the_accountants_see(
        self, strategy, clips, noise_multiplier
    ) -> None:
        stddevs = strategy(clips, noise_multiplier)
        sums = [GaussianSum(g, clips[g], stddevs[g]) for g in clips]

        ((mechanism, _),) = normalize([(Round(FullDataset(), sums), 1)])

        assert mechanism.noise_multiplier == pytest.approx(
            noise_multiplier, rel=2e-11
        )

    @given(clips=CLIPS, noise_multiplier=MULTIPLIERS)
    def test_scales_with_the_noise_multiplier(
        self, strategy, clips, noise_multiplier
    ) -> None:
        once = strategy(clips, noise_multiplier)
        twice = strategy(clips, 2 * noise_multiplier)

        for group in clips:
            assert twice[group] == pytest.approx(2 * once[group], rel=1e-12)


@given(clips=CLIPS, noise_multiplier=MULTIPLIERS)
def test_proportional_noise_is_that_of_the_paper(clips, noise_multiplier):
    """`sigma_g = z S_g sqrt(G)`."""
    for group, stddev in proportional_noise(clips, noise_multiplier).items():
        expected = noise_multiplier * clips[group] * math.sqrt(len(clips))
        assert stddev == pytest.approx(expected, rel=1e-12)


@given(clips=CLIPS, noise_multiplier=MULTIPLIERS)
def test_dimension_adjusted_noise_is_that_of_the_paper(clips, noise_multiplier):
    """`sigma_g = z (S_g / sqrt(d_g)) sqrt(sum_h d_h)`."""
    sizes = dimensions(clips)
    got = dimension_adjusted_noise(clips, noise_multiplier, sizes)

    for group, stddev in got.items():
        expected = (
            noise_multiplier
            * clips[group]
            / math.sqrt(sizes[group])
            * math.sqrt(sum(sizes.values()))
        )
        assert stddev == pytest.approx(expected, rel=1e-12)


@given(clips=CLIPS)
def test_shares_are_shares_of_the_cost(clips) -> None:
    wanted = shares(clips)
    stddevs = noise_from_shares(clips, 2.0, wanted)
    cost = {group: (clips[group] / stddevs[group]) ** 2 for group in clips}

    for group in clips:
        assert cost[group] / sum(cost.values()) == pytest.approx(
            wanted[group] / sum(wanted.values()), rel=1e-9
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda: proportional_noise({}, 1.0),
        lambda: proportional_noise({"a": 0.0}, 1.0),
        lambda: equal_noise({"a": 1.0}, 0.0),
        lambda: equal_noise({"a": math.inf}, 1.0),
        lambda: noise_from_shares({"a": 1.0}, 1.0, {"b": 1.0}),
        lambda: noise_from_shares({"a": 1.0}, 1.0, {"a": -1.0}),
        lambda: dimension_adjusted_noise({"a": 1.0}, 1.0, {"a": 0}),
    ],
)
def test_what_cannot_be_is_refused(call) -> None:
    with pytest.raises(ValueError, match="Received: "):
        call()
