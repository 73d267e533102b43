"""What every accountant promises, and what each adds to it."""

import dataclasses
import math
import re
from typing import NamedTuple

import pytest

from keras_dp import accountants
from keras_dp.accountants import RDP, Fourier
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    SamplingEvent,
)
from tests.replays import replays

MESSAGE = re.compile(r"`\w+` must .* Received: .*", re.DOTALL)


def counted(
    sampling: SamplingEvent, *, noise: float = 2.0, count: int = 1
) -> list[tuple[Round, int]]:
    return [(Round(sampling, (GaussianSum("sum", 1.0, noise),)), count)]


POISSON = counted(PoissonSampling(0.01), count=500)
FULL = counted(FullDataset(), noise=20.0, count=7)
FIXED = counted(FixedSizeWithoutReplacement(10, 1000), noise=4.0, count=50)
BARE = [(Round(FullDataset(), (NonPrivateSum("sum"),)), 1)]
NOISELESS = counted(PoissonSampling(0.5), noise=0.0)

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

    def test_nothing_released_costs_nothing(self, accountant) -> None:
        free = [(Round(FullDataset(), (GaussianSum("sum", 0.0, 1.0),)), 3)]

        for ledger in ([], free):
            assert accountant.epsilon(ledger, delta=1e-5) == 0
            assert accountant.epsilon(ledger, delta=0) == 0
            assert accountant.delta(ledger, epsilon=0) == 0

    def test_a_bare_sum_is_not_private(self, accountant) -> None:
        assert accountant.epsilon(BARE, delta=1e-5) == math.inf
        assert accountant.delta(BARE, epsilon=100.0) == 1

    def test_a_bare_sum_beside_others_is_not_private(self, accountant) -> None:
        assert accountant.epsilon(FULL + BARE, delta=1e-5) == math.inf

    def test_noise_of_zero_is_not_private(self, accountant) -> None:
        ledger = counted(FullDataset(), noise=0.0)

        assert accountant.epsilon(ledger, delta=0.9) == math.inf
        assert accountant.delta(ledger, epsilon=1.0) == 1

    def test_delta_of_zero_needs_an_infinite_epsilon(self, accountant) -> None:
        assert accountant.epsilon(FULL, delta=0) == math.inf

    def test_delta_of_one_allows_everything(self, accountant) -> None:
        assert accountant.epsilon(FULL + BARE, delta=1) == 0

    def test_delta_is_never_rounded_to_zero(self, accountant) -> None:
        """At this epsilon it is far below every float."""
        assert 0 < accountant.delta(FULL, epsilon=1e6) < 1e-300

    @pytest.mark.parametrize("delta", [-0.1, 1.1, math.nan, math.inf])
    def test_delta_out_of_range_raises(self, accountant, delta) -> None:
        with pytest.raises(ValueError, match="`delta`") as error:
            accountant.epsilon(FULL, delta=delta)
        assert MESSAGE.fullmatch(str(error.value))

    @pytest.mark.parametrize("delta", ["0.1", None, True])
    def test_delta_that_is_no_number_raises(self, accountant, delta) -> None:
        with pytest.raises(TypeError, match="`delta`"):
            accountant.epsilon(FULL, delta=delta)

    @pytest.mark.parametrize("epsilon", [-0.1, math.nan, math.inf])
    def test_epsilon_out_of_range_raises(self, accountant, epsilon) -> None:
        with pytest.raises(ValueError, match="`epsilon`") as error:
            accountant.delta(FULL, epsilon=epsilon)
        assert MESSAGE.fullmatch(str(error.value))

    def test_unknown_neighbours_raise(self, accountant) -> None:
        with pytest.raises(ValueError, match="`neighbours`") as error:
            accountant.epsilon(FULL, delta=1e-5, neighbours="add_one")
        assert MESSAGE.fullmatch(str(error.value))

    def test_arguments_are_checked_before_an_empty_ledger(
        self, accountant
    ) -> None:
        with pytest.raises(ValueError, match="`delta`"):
            accountant.epsilon([], delta=2)
        with pytest.raises(ValueError, match="`neighbours`"):
            accountant.delta([], epsilon=1, neighbours="other")

    def test_is_a_stateless_value(self, accountant) -> None:
        assert accountant == dataclasses.replace(accountant)
        assert hash(accountant) == hash(dataclasses.replace(accountant))
        assert not hasattr(accountant, "__dict__")
        assert isinstance(accountant, accountants.Accountant)
        assert accountant.name


@pytest.mark.parametrize(("accountant", "ledger", "neighbours"), CASES)
class TestSupported:
    """What holds for every ledger that an accountant can replay."""

    @pytest.mark.full
    def test_epsilon_and_delta_are_inverse(
        self, accountant, ledger, neighbours
    ) -> None:
        """Up to 1e-7: both searches stop within 1e-8 of their minimum.

        Bounds that an attack does not reach are less precise than that.
        """
        epsilon = accountant.epsilon(ledger, delta=1e-6, neighbours=neighbours)
        delta = accountant.delta(ledger, epsilon=epsilon, neighbours=neighbours)

        assert 0 < epsilon < math.inf
        is_exact = accountant != Fourier() or ledger in (POISSON, FULL)
        assert delta == pytest.approx(1e-6, rel=1e-7 if is_exact else 1e-3)

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

    @pytest.mark.full
    def test_a_ledger_object_is_read_by_its_rounds(
        self, accountant, ledger, neighbours
    ) -> None:
        class CountedRound(NamedTuple):
            event: Round
            times: int

        class Ledger:
            rounds = tuple(CountedRound(*pair) for pair in ledger)

        arguments = {"delta": 1e-5, "neighbours": neighbours}
        assert accountant.epsilon(Ledger(), **arguments) == accountant.epsilon(
            ledger, **arguments
        )

    def test_an_infinite_cost_wins(
        self, accountant, ledger, neighbours
    ) -> None:
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
    with pytest.raises(UnsupportedEventError) as error:
        accountant.epsilon(ledger, delta=1e-5, neighbours=neighbours)
    with pytest.raises(UnsupportedEventError):
        accountant.delta(FULL + ledger, epsilon=1.0, neighbours=neighbours)

    assert MESSAGE.fullmatch(str(error.value))
    assert not replays(accountant, ledger, neighbours=neighbours)


def test_names_differ() -> None:
    assert len({accountant.name for accountant in ALL}) == len(ALL)


def test_all_lists_what_there_is() -> None:
    for name in accountants.__all__:
        assert hasattr(accountants, name)
