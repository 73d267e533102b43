"""Laws of sharing one noise multiplier out over groups."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import FullDataset, GaussianSum, Round
from keras_dp.optimizers.group_plan import stddevs_of_groups

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


def noise(strategy):
    """Returns a strategy as a function of clips and the noise multiplier."""
    return lambda clips, z: stddevs_of_groups(
        clips, z, dimensions(clips), strategy
    )


STRATEGIES = {
    "proportional": noise("proportional"),
    "equal": noise("equal"),
    "dimension-adjusted": noise("dimension_adjusted"),
    "shares": lambda clips, z: noise(shares(clips))(clips, z),
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
    for group, stddev in STRATEGIES["proportional"](
        clips, noise_multiplier
    ).items():
        expected = noise_multiplier * clips[group] * math.sqrt(len(clips))
        assert stddev == pytest.approx(expected, rel=1e-12)


@given(clips=CLIPS, noise_multiplier=MULTIPLIERS)
def test_dimension_adjusted_noise_is_that_of_the_paper(clips, noise_multiplier):
    """`sigma_g = z (S_g / sqrt(d_g)) sqrt(sum_h d_h)`."""
    sizes = dimensions(clips)
    got = STRATEGIES["dimension-adjusted"](clips, noise_multiplier)

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
    stddevs = noise(wanted)(clips, 2.0)
    cost = {group: (clips[group] / stddevs[group]) ** 2 for group in clips}

    for group in clips:
        assert cost[group] / sum(cost.values()) == pytest.approx(
            wanted[group] / sum(wanted.values()), rel=1e-9
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda: noise("proportional")({"a": 0.0}, 1.0),
        lambda: noise("equal")({"a": 1.0}, 0.0),
        lambda: noise("equal")({"a": math.inf}, 1.0),
        lambda: noise({"b": 1.0})({"a": 1.0}, 1.0),
        lambda: noise({"a": -1.0})({"a": 1.0}, 1.0),
        lambda: noise("of all")({"a": 1.0}, 1.0),
    ],
)
def test_what_cannot_be_is_refused(call) -> None:
    with pytest.raises(ValueError, match="Received: "):
        call()
