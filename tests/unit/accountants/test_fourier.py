"""What the Fourier accountant adds to the contract."""

import math

import numpy as np
import pytest
from scipy import special, stats

from keras_dp.accountants import RDP, Bounds, Fourier
from keras_dp.accountants.compose import (
    composition,
    integral,
    line,
    line_moments,
    small_losses,
)
from keras_dp.accountants.loss import loss_distribution
from keras_dp.accountants.loss.mixture import MixtureLoss
from keras_dp.errors import TooSlowError, UnsupportedEventError
from keras_dp.ledger import (
    CoordinateBounds,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
    SamplingEvent,
    SumQueryEvent,
)
from keras_dp.ledger.events.noise_families import LaplaceNoise
from tests.replays import replays


def counted(
    sampling: SamplingEvent, *queries: SumQueryEvent, count: int = 1
) -> list[tuple[Round, int]]:
    return [(Round(sampling, queries), count)]


def gaussian(noise: float) -> GaussianSum:
    return GaussianSum("sum", 1.0, noise)


ABADI = counted(PoissonSampling(0.01), gaussian(4.0), count=10_000)
FULL = counted(FullDataset(), gaussian(2.0), count=3)
FEW = counted(PoissonSampling(0.05), gaussian(0.8), count=3)
ONE = counted(PoissonSampling(0.2), gaussian(1.0))


@pytest.mark.parametrize("ledger", [ABADI, FULL, FEW, ONE])
@pytest.mark.parametrize("delta", [0.01, 1e-5, 1e-30])
class TestBounds:
    def test_are_as_near_as_is_promised(self, ledger, delta) -> None:
        """The upper one is epsilon; looser bounds contain the tighter."""
        tight = Fourier().epsilon_bounds(ledger, delta=delta)
        loose = Fourier(1e-3).epsilon_bounds(ledger, delta=delta)

        assert isinstance(tight, Bounds)
        assert tight.upper == Fourier().epsilon(ledger, delta=delta)
        assert 0 < tight.lower <= tight.upper <= tight.lower * (1 + 1e-8)
        assert loose.lower <= tight.upper
        assert loose.upper >= tight.lower
        assert loose.upper <= loose.lower * (1 + 1e-3)


class TestEdges:
    def test_epsilon_is_zero_from_some_delta_on(self) -> None:
        least = Fourier().delta_bounds(FEW, epsilon=0.0)

        assert Fourier().epsilon(FEW, delta=least.upper * (1 + 1e-12)) == 0
        assert Fourier().epsilon(FEW, delta=least.lower * 0.5) > 0

    def test_a_bare_sum_has_no_bounds(self) -> None:
        bare = counted(FullDataset(), NonPrivateSum("sum"))

        assert Fourier().epsilon_bounds(bare, delta=0.5) == (math.inf, math.inf)
        assert Fourier().delta_bounds(bare, epsilon=3.0) == (1, 1)

    def test_nothing_released_costs_nothing(self) -> None:
        assert Fourier().epsilon_bounds([], delta=0.0) == (0, 0)
        assert Fourier().delta_bounds([], epsilon=0.0) == (0, 0)

    def test_delta_of_zero_and_of_one(self) -> None:
        assert Fourier().epsilon_bounds(ABADI, delta=0) == (0, math.inf)
        assert Fourier().epsilon_bounds(ABADI, delta=1) == (0, 0)

    @pytest.mark.parametrize("wrong", [0, -1e-9, math.nan])
    def test_relative_width_is_checked(self, wrong) -> None:
        with pytest.raises(ValueError, match="`relative_width` must"):
            Fourier(relative_width=wrong)

    @pytest.mark.full
    @pytest.mark.parametrize(
        ("probability", "noise", "count", "delta"),
        [
            pytest.param(1e-8, 0.1, 1, 1e-5, marks=pytest.mark.standard),
            (1e-8, 1e4, 10**6, 1e-300),
            (1e-300, 1e90, 1, 1e-300),
            (0.999, 1e4, 10, 1e-12),
            (1 - 1e-16, 1.0, 10, 1e-12),
            (0.5, 0.1, 2**62, 1e-5),
            (0.01, 1e-90, 2**62, 1e-5),
            (1e-3, 1e5, 10**12, 0.999),
        ],
    )
    @pytest.mark.parametrize("neighbours", ["zero_out", "replace_one"])
    def test_extreme_rounds_cost_no_more_than_by_moments(
        self, probability, noise, count, delta, neighbours
    ) -> None:
        """Where they are out of reach that is the bound; without a warning."""
        ledger = counted(
            PoissonSampling(probability), gaussian(noise), count=count
        )

        lower, upper = Fourier().epsilon_bounds(
            ledger, delta=delta, neighbours=neighbours
        )

        full = counted(FullDataset(), gaussian(noise), count=count)
        moments, unsampled = (
            RDP().epsilon(each, delta=delta, neighbours=neighbours)
            for each in (ledger, full)
        )
        assert 0 <= lower <= upper <= moments * (1 + 1e-9) < math.inf
        assert moments <= unsampled * (1 + 1e-6)  # By this they round up.


class TestRounds:
    def test_a_fixed_size_lies_between_attack_and_bound(self) -> None:
        """N = 10^4, B = 100, sigma = 2 S, T = 1000: 1.828 to 2.199.

        The attack is Poisson's pair with twice the bound, which therefore is
        no bound for a sample of fixed size.
        """
        ledger = counted(
            FixedSizeWithoutReplacement(100, 10_000), gaussian(2.0), count=1000
        )
        poisson = counted(PoissonSampling(0.01), gaussian(1.0), count=1000)

        lower, upper = Fourier().epsilon_bounds(
            ledger, delta=1e-5, neighbours="replace_one"
        )

        assert lower == pytest.approx(1.828237, abs=1e-5)
        assert upper == pytest.approx(2.198910, abs=1e-5)
        assert Fourier().epsilon(poisson, delta=1e-5) < upper
        assert upper < RDP().epsilon(
            ledger, delta=1e-5, neighbours="replace_one"
        )

    @pytest.mark.standard
    @pytest.mark.parametrize("vectors", [[[0.5]], [[0.6, 0.1], [0.4, 0.3]]])
    def test_encoded_sums_with_other_noise_name_rdp(self, vectors) -> None:
        bounds = CoordinateBounds.from_arrays(vectors, [1] * len(vectors[0]))
        ledger = counted(
            PoissonSampling(0.1),
            EncodedSum("encoded", bounds, LaplaceNoise(1.0)),
        )

        assert replays(RDP(), ledger)
        assert not replays(Fourier(), ledger)
        with pytest.raises(UnsupportedEventError, match="Use `RDP`"):
            Fourier().epsilon(ledger, delta=1e-5)

    def test_a_count_is_free(self) -> None:
        """A billion rounds take no more points than ten thousand."""
        many = counted(PoissonSampling(1e-4), gaussian(30.0), count=10**9)

        lower, upper = Fourier().epsilon_bounds(many, delta=1e-5)

        assert upper < lower * (1 + 1e-8)
        assert upper < RDP().epsilon(many, delta=1e-5)


@pytest.mark.standard
class TestManyRounds:
    """More kinds of rounds than are looked at one by one."""

    @pytest.mark.full
    def test_agree_with_the_same_rounds_one_by_one(self) -> None:
        """Rounds of next to no loss change nothing."""
        noises = np.linspace(0.8, 1.3, 79).tolist()
        few = [
            (Round(PoissonSampling(0.01), (gaussian(noise),)), 3)
            for noise in noises
        ]
        dust = [(Round(PoissonSampling(0.01), (gaussian(1e7),)), 1)] + [
            (Round(PoissonSampling(0.01), (gaussian(1e7 + i),)), 1)
            for i in range(1, 5)
        ]

        one_by_one = Fourier().epsilon_bounds(few, delta=1e-6)
        together = Fourier().epsilon_bounds(few + dust, delta=1e-6)

        assert together.lower <= one_by_one.upper * (1 + 1e-9)
        assert together.upper >= one_by_one.lower


class TestMethods:
    """Which method answered is said, and none hides a defect of another."""

    @pytest.mark.parametrize(
        ("ledger", "method"),
        [(FULL, "closed form"), (ONE, "closed form"), (ABADI, "line integral")],
    )
    def test_bounds_say_which_method_they_are_of(self, ledger, method) -> None:
        assert Fourier().epsilon_bounds(ledger, delta=1e-5).method == method
        assert Fourier().delta_bounds(ledger, epsilon=0.5).method == method

    def test_a_gap_between_attack_and_bound_is_explained(self) -> None:
        fixed = counted(
            FixedSizeWithoutReplacement(10, 100), gaussian(2.0), count=5
        )

        bounds = Fourier().epsilon_bounds(
            fixed, delta=1e-5, neighbours="replace_one"
        )

        assert bounds.method.startswith("line integral")
        assert "lower bound is an attack" in bounds.method

    def test_noise_out_of_reach_is_said_to_be_bounded_by_moments(self) -> None:
        quiet = counted(PoissonSampling(0.01), gaussian(1e10), count=5)

        bounds = Fourier().epsilon_bounds(quiet, delta=1e-15)

        assert bounds.lower == 0
        assert bounds.method == "Rényi divergence"

    @pytest.mark.parametrize(
        "error", [IndexError, KeyError, ZeroDivisionError, ValueError]
    )
    def test_no_defect_of_integrals_is_hidden(self, monkeypatch, error) -> None:
        """RDP would have answered 1.0354 in the place of 0.946867."""

        def broken(*arguments):
            raise error

        monkeypatch.setattr(integral, "place_near", broken)

        with pytest.raises(error):
            Fourier().epsilon(ABADI, delta=1e-5)
        with pytest.raises(error):
            Fourier().delta(ABADI, epsilon=1.0)

    @pytest.mark.standard
    def test_a_long_line_leaves_a_grid_or_moments(self, monkeypatch) -> None:
        def too_slow(*arguments, **named):
            raise TooSlowError

        monkeypatch.setattr(integral, "place_near", too_slow)

        bounds = Fourier().epsilon_bounds(ABADI, delta=1e-5)

        assert bounds.lower < 0.946867 < bounds.upper < 1.01 * bounds.lower
        assert bounds.method == "convolution of likelihood ratios"

        monkeypatch.setattr(small_losses, "bounds_near", too_slow)

        bounds = Fourier().epsilon_bounds(ABADI, delta=1e-5)

        assert bounds.lower == 0
        assert bounds.upper == pytest.approx(1.0354, abs=1e-4)
        assert bounds.method != "line integral"


def test_one_line_answers_where_it_is_short(monkeypatch) -> None:
    """It is as good at the root as where the bound by moments expects it."""
    lines_at, made = integral.lines_at, []

    def counting(*arguments):
        made.append(arguments)
        return lines_at(*arguments)

    monkeypatch.setattr(integral, "lines_at", counting)
    for count in (63, 1_000, 10_000):
        made.clear()

        Fourier().epsilon(
            counted(PoissonSampling(0.0157), gaussian(1.0), count=count),
            delta=1e-5,
        )

        assert len(made) == 1


def test_answers_do_not_depend_on_earlier_questions() -> None:
    def epsilon(count: int) -> float:
        ledger = counted(PoissonSampling(0.0157), gaussian(1.0), count=count)
        return Fourier().epsilon(ledger, delta=1e-5)

    caches = (
        composition._log_moments,
        loss_distribution.moments_of_loss,
        line._decay,
        line_moments._tilted,
    )
    counts = range(63, 1_000, 126)
    alone = []
    for count in counts:
        for cache in caches:
            cache.cache_clear()
        alone.append(epsilon(count))

    assert [epsilon(count) for count in reversed(counts)] == alone[::-1]


@pytest.mark.parametrize(("noise", "units"), [(0.11, 20), (0.2, 40)])
def test_groups_with_little_noise_have_a_bound(noise, units) -> None:
    """Moments are out of reach. Not to sample costs no less."""
    ledger = counted(PoissonSampling(0.3), gaussian(noise), count=2)
    most = (units / noise) ** 2
    u = np.linspace(-9, units / noise + 9, 3001)[:, None]
    moved = np.arange(units + 1) / noise
    chances = stats.binom.logpmf(np.arange(units + 1), units, 0.3)
    loss = special.logsumexp(chances + moved * (u - moved / 2), axis=1)
    one = np.exp(loss + stats.norm.logpdf(u[:, 0])) * (u[1, 0] - u[0, 0])
    epsilon = 0.3 * most
    over = epsilon - np.add.outer(loss, loss)
    true = -np.sum(np.multiply.outer(one, one) * np.expm1(np.minimum(over, 0)))

    found = Fourier().delta_bounds(ledger, epsilon=epsilon, units=units)
    above = Fourier().epsilon_bounds(ledger, delta=1e-5, units=units)

    assert 1e-6 < true <= found.upper < 1
    assert above.method == "closed form without sampling"
    assert most / 2 < above.upper < 1.2 * most


def schedule(probability, noises):
    return [
        (Round(PoissonSampling(probability), (gaussian(noise),)), 1)
        for noise in noises
    ]


CORNERS = [
    pytest.param(
        schedule(1e-4, np.linspace(2, 1, 100).tolist()),
        marks=pytest.mark.standard,
    ),
    counted(PoissonSampling(1e-3), gaussian(1.0), count=2),
    counted(PoissonSampling(1e-3), gaussian(1.0), count=10),
    counted(PoissonSampling(1e-4), gaussian(1.0), count=100),
    counted(PoissonSampling(1e-5), gaussian(0.3), count=10_000),
]


def test_the_largest_loss_keeps_the_digits_of_a_small_probability() -> None:
    assert MixtureLoss(1.0, (1 - 1e-17, 1e-17), is_added=True).largest == 1e-17


@pytest.mark.parametrize(
    ("probability", "noise", "count", "delta"),
    [(1e-4, 100.0, 2, 1e-30), (9.3e-6, 46.9, 462, 7.7e-46)],
)
def test_deltas_out_of_reach_of_moments_are_answered_by_a_grid(
    probability, noise, count, delta
) -> None:
    """Moments grow without bound where such a delta would have its tilt."""
    ledger = counted(PoissonSampling(probability), gaussian(noise), count=count)

    bounds = Fourier().epsilon_bounds(ledger, delta=delta)

    assert 0 < bounds.lower < bounds.upper <= 1.01 * bounds.lower
    assert bounds.upper <= RDP().epsilon(ledger, delta=delta)
    assert bounds.method == "convolution of likelihood ratios"


@pytest.mark.full
@pytest.mark.parametrize("ledger", CORNERS)
def test_few_rounds_that_hardly_sample_are_narrow(ledger) -> None:
    """A share of 1e-6, where delta is dominated by a few large losses."""
    lower, upper = Fourier().epsilon_bounds(ledger, delta=1e-8)

    assert 0 < lower <= upper <= lower * (1 + 1e-6)
