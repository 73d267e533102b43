"""Groups of records: k-fold pairs, and the textbook bound without them."""

import math

import pytest

from keras_dp.accountants import RDP, Fourier
from keras_dp.accountants import groups as module
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    FixedSizeGaussian,
    Gaussian,
    SampledGaussian,
    SampledGaussianGroup,
)
from keras_dp.ledger import (
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    Round,
)
from tests.analytic_gaussian import AnalyticGaussian

MOMENTS = RDP(conversion="moments")

QUERY = GaussianSum("sum", 1.0, 4.0)
STEP = Round(PoissonSampling(0.01), (QUERY,))
FULL = Round(FullDataset(), (QUERY,))
BARE = Round(FullDataset(), (NonPrivateSum("loss"),))


class TestThePair:
    def test_of_unsampled_sums_has_a_kth_of_the_noise(self) -> None:
        """Exactly: rounded down by an ulp, then 1e-12."""
        quarter = Round(FullDataset(), (GaussianSum("sum", 1.0, 1.0),))
        accountant = AnalyticGaussian()

        epsilon = accountant.epsilon([(FULL, 3)], units=4, delta=1e-5)
        delta = accountant.delta([(FULL, 3)], units=4, epsilon=2.0)

        alone = accountant.epsilon([(quarter, 3)], delta=1e-5)
        assert accountant.group([(FULL, 3)], None, 4).is_pair
        assert alone <= epsilon <= alone * (1 + 1e-12)
        alone = accountant.delta([(quarter, 3)], epsilon=2.0)
        assert alone <= delta <= alone * (1 + 1e-11)

    def test_of_an_epoch_has_its_records_in_one_batch(self) -> None:
        batches = [
            (Round(DisjointBatches("epoch"), (GaussianSum("a", 1.0, z),)), 1)
            for z in (2.0, 3.0)
        ]
        single = Round(FullDataset(), (GaussianSum("a", 1.0, 1.0),))

        found = AnalyticGaussian().epsilon(
            batches, units=2, delta=1e-5, neighbours="zero_out"
        )

        alone = AnalyticGaussian().epsilon([(single, 1)], delta=1e-5)
        assert found == pytest.approx(alone, rel=1e-11)

    def test_of_mechanisms(self) -> None:
        rounds = (
            CountedMechanism(Gaussian(3.0), 2),
            CountedMechanism(SampledGaussian(2.0, 0.1), 7),
        )

        (gaussian, two), group = module.k_fold(rounds, 3)

        assert two == 2
        assert 1 - 1e-15 <= gaussian.noise_multiplier < 1
        assert group == (SampledGaussianGroup(2.0, 0.1, 3), 7)

    def test_is_not_known_for_a_replaced_record_of_a_sample(self) -> None:
        rounds = (
            CountedMechanism(Gaussian(3.0), 2),
            CountedMechanism(FixedSizeGaussian(2.0, 0.1), 1),
        )

        assert module.k_fold(rounds, 2) is None
        assert module.k_fold(rounds, 1) is rounds


class TestTheTextbookBound:
    LEDGER = ((STEP, 1000),)

    @pytest.mark.parametrize("size", [2, 5])
    def test_is_the_least_that_suffices(self, size) -> None:
        """`(k e, d (e^(k e) - 1) / (e^e - 1))` for the pair `(e, d)` of one."""
        accountant = MOMENTS
        found = accountant.epsilon(self.LEDGER, units=size, delta=1e-5)

        share = found / size
        delta = accountant.delta(self.LEDGER, epsilon=share)
        growth = math.expm1(size * share) / math.expm1(share)
        # The search tells epsilons apart to 1e-9, and delta falls like
        # e^(-32 share) at most.
        assert 1e-5 * (1 - 1e-6) <= delta * growth <= 1e-5 * (1 + 1e-12)

    def test_of_delta_is_the_inverse_of_that_of_epsilon(self) -> None:
        group = MOMENTS.group(self.LEDGER, None, 3)

        assert group.delta(group.epsilon(1e-6)) == pytest.approx(1e-6, rel=1e-6)

    def test_is_infinite_beyond_the_least_floats(self) -> None:
        """Not a guess."""
        query = GaussianSum("sum", 1.0, 0.05)
        drawn = Round(FixedSizeWithoutReplacement(10, 1000), (query,))

        group = RDP().group([(drawn, 100)], "replace_one", 100)

        assert not group.is_pair
        assert group.epsilon(1e-5) == math.inf

    def test_gives_up_where_delta_has_a_floor(self, monkeypatch) -> None:
        """Numerical bounds do not fall to 0, and the search must end."""
        asked = []

        def floored(epsilon):
            asked.append(epsilon)
            return max(1e-18, math.exp(-epsilon))

        monkeypatch.setattr(RDP, "profile_of", lambda *rounds: floored)

        assert MOMENTS.epsilon(self.LEDGER, units=5, delta=1e-5) == math.inf
        assert 0 < len(asked) < 60


@pytest.mark.parametrize(
    ("ledger", "delta", "epsilon"),
    [
        ([], 0.0, 0.0),
        ([(FULL, 1)], 0.0, math.inf),
        ([(FULL, 1)], 1.0, 0.0),
        ([(BARE, 1)], 1e-5, math.inf),
        ([(BARE, 1)], 1.0, 0.0),
    ],
)
@pytest.mark.parametrize("has_pair", [True, False])
def test_ends(monkeypatch, has_pair, ledger, delta, epsilon) -> None:
    if not has_pair:
        monkeypatch.setattr(module, "k_fold", lambda *_: None)

    group = Fourier().group(ledger, None, 3)

    assert group.is_pair == has_pair
    assert group.epsilon(delta) == epsilon


@pytest.mark.parametrize("has_pair", [True, False])
def test_ends_of_delta(monkeypatch, has_pair) -> None:
    if not has_pair:
        monkeypatch.setattr(module, "k_fold", lambda *_: None)

    assert Fourier().delta([(BARE, 1)], units=3, epsilon=1.0) == 1
    assert Fourier().delta([], units=3, epsilon=1.0) < 1e-299


@pytest.mark.parametrize(
    ("name", "value"), [("units", 0), ("delta", 1.5), ("delta", -1.0)]
)
def test_bad_arguments_raise(name, value) -> None:
    arguments = {"units": 2, "delta": 1e-5} | {name: value}

    with pytest.raises(ValueError, match=f"`{name}`"):
        Fourier().epsilon([(FULL, 1)], **arguments)
    with pytest.raises(ValueError, match="`epsilon`"):
        Fourier().delta([(FULL, 1)], units=2, epsilon=-1.0)
