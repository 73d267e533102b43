"""What every accountant promises, and what each adds to it."""

import math

import pytest
from scipy import stats

from keras_dp.accountants import RDP, Fourier, available_accountants
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    SamplingEvent,
)
from tests.replays import replays


def counted(
    sampling: SamplingEvent, *, noise: float = 2.0, count: int = 1
) -> list[tuple[Round, int]]:
    return [(Round(sampling, (GaussianSum("sum", 1.0, noise),)), count)]


POISSON = counted(PoissonSampling(0.01), count=500)
FULL = counted(FullDataset(), noise=20.0, count=7)
FIXED = counted(FixedSizeWithoutReplacement(10, 1000), noise=4.0, count=50)
BARE = [(Round(FullDataset(), (NonPrivateSum("sum"),)), 1)]
SILENT = counted(FullDataset(), noise=0.0)
FREE = [(Round(FullDataset(), (GaussianSum("sum", 0.0, 1.0),)), 3)]

# An accountant, ledgers it can replay under a relation, and one it cannot.
ACCOUNTANTS = [
    (
        RDP(),
        [
            (POISSON, "add_or_remove_one"),
            (POISSON, "replace_one"),
            (FULL, "zero_out"),
            (FIXED, "replace_one"),
            (POISSON + FULL, "replace_one"),
        ],
        (FIXED, "zero_out"),
    ),
    (
        RDP(conversion="moments"),
        [(POISSON, "add_or_remove_one"), (POISSON + FULL, "zero_out")],
        (FIXED, "zero_out"),
    ),
    (
        Fourier(),
        [
            (POISSON, "add_or_remove_one"),
            (POISSON, "replace_one"),
            (FULL, "zero_out"),
            (FIXED, "replace_one"),
            (POISSON + FULL, "replace_one"),
            (POISSON + FIXED, "replace_one"),
        ],
        (FIXED, "zero_out"),
    ),
]
CASES = [
    (accountant, ledger, neighbours)
    for accountant, supported, _ in ACCOUNTANTS
    for ledger, neighbours in supported
]
ALL = [accountant for accountant, _, _ in ACCOUNTANTS]


@pytest.mark.parametrize("accountant", ALL, ids=repr)
class TestContract:
    """A new accountant joins by joining ACCOUNTANTS."""

    @pytest.mark.parametrize("ledger", [[], FREE], ids=["none", "free"])
    def test_nothing_released_costs_nothing(self, accountant, ledger) -> None:
        assert accountant.epsilon(ledger, delta=1e-5) == 0
        assert accountant.epsilon(ledger, delta=0) == 0
        assert accountant.delta(ledger, epsilon=0) == 0

    @pytest.mark.parametrize("ledger", [BARE, SILENT], ids=["bare", "silent"])
    def test_a_bare_sum_is_not_private(self, accountant, ledger) -> None:
        assert accountant.epsilon(ledger, delta=0.9) == math.inf
        assert accountant.delta(ledger, epsilon=100.0) == 1

    def test_delta_of_zero_and_of_one_need_no_search(self, accountant) -> None:
        assert accountant.epsilon(FULL, delta=0) == math.inf
        assert accountant.epsilon(FULL + BARE, delta=1) == 0

    def test_delta_is_never_rounded_to_zero(self, accountant) -> None:
        """At this epsilon it is far below every float."""
        assert 0 < accountant.delta(FULL, epsilon=1e6) < 1e-300

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(("delta", each) for each in (-0.1, 1.1, math.nan, math.inf)),
            *(("delta", each) for each in ("0.1", None, True)),
            *(("epsilon", each) for each in (-0.1, math.nan, math.inf)),
            ("neighbours", "add_one"),
        ],
        ids=str,
    )
    def test_values_out_of_range_raise(self, accountant, name, value) -> None:
        """Also of an empty ledger."""
        ask = accountant.delta if name == "epsilon" else accountant.epsilon
        other = {"delta": 1e-5} if name == "neighbours" else {}

        for ledger in (FULL, []):
            with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
                ask(ledger, **other, **{name: value})


@pytest.mark.parametrize(("accountant", "ledger", "neighbours"), CASES)
class TestSupported:
    """What holds for every ledger that an accountant can replay."""

    @pytest.mark.full
    def test_less_delta_needs_more_epsilon(
        self, accountant, ledger, neighbours
    ) -> None:
        epsilons = [
            accountant.epsilon(ledger, delta=delta, neighbours=neighbours)
            for delta in (0.5, 1e-5, 1e-100, 1e-300)
        ]

        assert epsilons == sorted(epsilons)
        assert epsilons[-1] < math.inf

    def test_infinite_cost_wins(self, accountant, ledger, neighbours) -> None:
        mixed = ledger + BARE

        assert (
            accountant.epsilon(mixed, delta=1e-5, neighbours=neighbours)
            == math.inf
        )
        assert replays(accountant, mixed, neighbours=neighbours)


@pytest.mark.parametrize(
    ("accountant", "ledger", "neighbours"),
    [(accountant, *unsupported) for accountant, _, unsupported in ACCOUNTANTS],
)
def test_unsupported_rounds_raise(accountant, ledger, neighbours) -> None:
    with pytest.raises(UnsupportedEventError):
        accountant.epsilon(ledger, delta=1e-5, neighbours=neighbours)
    with pytest.raises(UnsupportedEventError):
        accountant.delta(FULL + ledger, epsilon=1.0, neighbours=neighbours)
    assert not replays(accountant, ledger, neighbours=neighbours)


class TestAvailableAccountants:
    @pytest.mark.parametrize(
        ("ledger", "neighbours", "kinds"),
        [
            (FULL, "replace_one", [Fourier, RDP]),
            (POISSON, "zero_out", [Fourier, RDP]),
            (FIXED, "replace_one", [Fourier, RDP]),
            (FIXED, "zero_out", []),
            (counted(DisjointBatches("epoch")), "add_or_remove_one", []),
        ],
    )
    def test_lists_what_can_replay(self, ledger, neighbours, kinds) -> None:
        found = available_accountants(ledger, neighbours=neighbours)

        assert [type(accountant) for accountant in found] == kinds
        epsilons = [
            each.epsilon(ledger, delta=1e-5, neighbours=neighbours)
            for each in found
        ]
        assert epsilons == sorted(epsilons)

    def test_an_iterator_is_read_once(self) -> None:
        assert len(available_accountants(iter(FULL))) == 2

    def test_bad_arguments_raise(self) -> None:
        with pytest.raises(ValueError, match="`neighbours`"):
            available_accountants(FULL, neighbours="other")
        with pytest.raises(TypeError, match="`ledger`"):
            available_accountants(3)


class TestRDP:
    def test_is_zero_once_the_distributions_overlap(self) -> None:
        """Total variation below delta: `(0, delta)` holds."""
        ledger = counted(PoissonSampling(1e-6), noise=100.0)

        assert RDP().epsilon(ledger, delta=1e-5) == 0
        assert RDP().delta(ledger, epsilon=0.0) < 1e-7

    @pytest.mark.parametrize("noise", [0.3, 1.0, 30.0, 1e3])
    def test_delta_covers_the_total_variation(self, noise) -> None:
        """At epsilon 0, which a bound of its own may answer."""
        ledger = counted(FullDataset(), noise=noise)

        exact = 2 * stats.norm.cdf(0.5 / noise) - 1
        assert RDP().delta(ledger, epsilon=0.0) >= exact

    def test_never_above_moments(self) -> None:
        for delta in (0.1, 1e-5, 1e-50):
            assert RDP().epsilon(POISSON, delta=delta) < RDP(
                conversion="moments"
            ).epsilon(POISSON, delta=delta)
