"""Rounds with discrete Gaussian sums and trees, to their mechanisms."""

import math

import pytest

from keras_dp.accountants import (
    AnalyticGaussian,
    StrongComposition,
    available_accountants,
)
from keras_dp.accountants.normalize.mechanisms import (
    UNREACHED,
    AdditiveNoise,
    DiscreteGaussian,
    Gaussian,
    SampledDiscreteGaussian,
    SampledGaussian,
)
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.ledger import (
    DiscreteGaussianSum,
    DisjointBatches,
    FixedSizeWithoutReplacement,
    FixedSizeWithReplacement,
    FullDataset,
    PoissonSampling,
    TreeSum,
    UnverifiedSampling,
)
from tests.replays import replays
from tests.unit.accountants.sums import (
    DISCRETE,
    GAUSSIAN,
    LAPLACE,
    RELATIONS,
    TREE,
    over,
    refused,
)


class TestDiscrete:
    @pytest.mark.parametrize("sampling", [FullDataset(), UnverifiedSampling()])
    def test_without_sampling(self, sampling) -> None:
        ledger = [over(sampling, DISCRETE, count=4)]

        assert normalize(ledger, "zero_out") == ((DiscreteGaussian(2.0), 4),)
        assert normalize(ledger, "replace_one") == ((DiscreteGaussian(1.0), 4),)

    def test_with_poisson_sampling(self) -> None:
        ledger = [over(PoissonSampling(0.1), DISCRETE, count=4)]

        assert normalize(ledger) == ((SampledDiscreteGaussian(2.0, 0.1), 4),)
        assert normalize(ledger, "zero_out") == normalize(ledger)
        refused(ledger, "replace_one")

    def test_one_multiplier_with_gaussian_sums(self) -> None:
        """(1/2)^2 + (1/4)^2 = 5/16."""
        z = 1.78885438199  # 4 / sqrt(5), cut.
        full = [over(FullDataset(), DISCRETE, GAUSSIAN)]
        sampled = [over(PoissonSampling(0.1), GAUSSIAN, DISCRETE)]

        assert normalize(full) == ((DiscreteGaussian(z), 1),)
        assert normalize(sampled) == ((SampledDiscreteGaussian(z, 0.1), 1),)

    def test_of_nothing_is_free(self) -> None:
        free = DiscreteGaussianSum("integers", 0.0, 6.0)

        assert normalize([over(FullDataset(), free)]) == ()
        assert normalize([over(PoissonSampling(0.5), free, GAUSSIAN)]) == (
            (SampledGaussian(4.0, 0.5), 1),
        )

    def test_a_batch_with_one_makes_the_epoch_discrete(self) -> None:
        epoch = DisjointBatches("e")
        ledger = [over(epoch, GAUSSIAN, count=5), over(epoch, DISCRETE)]

        assert normalize(ledger, "zero_out") == ((DiscreteGaussian(2.0), 1),)

    def test_fixed_sizes_are_refused(self) -> None:
        for neighbours in RELATIONS:
            refused(
                [over(FixedSizeWithoutReplacement(2, 9), DISCRETE)], neighbours
            )

    def test_the_profile_of_the_gaussian_is_not_claimed(self) -> None:
        ledger = [over(FullDataset(), DISCRETE)]

        for accountant in (AnalyticGaussian(), StrongComposition()):
            assert not replays(accountant, ledger)


class TestTrees:
    @pytest.mark.parametrize(
        "sampling", [FullDataset(), UnverifiedSampling(), PoissonSampling(0.1)]
    )
    def test_a_record_may_be_in_every_round(self, sampling) -> None:
        """Four rounds: 4 + 2 * 4 + 16 = 28, and 64 / 28 is z^2."""
        ledger = [over(sampling, TREE, count=4)]

        ((mechanism, count),) = normalize(ledger, "zero_out")

        assert count == 1
        assert type(mechanism) is Gaussian
        assert mechanism.noise_multiplier**2 == pytest.approx(
            64 / 28, rel=1e-11
        )
        ((twice, _),) = normalize(ledger, "replace_one")
        assert twice.noise_multiplier == pytest.approx(
            mechanism.noise_multiplier / 2, rel=1e-11
        )

    def test_nothing_over_its_samples_is_amplified(self) -> None:
        """The tree gives the sample away; other rounds are amplified."""
        sampling = PoissonSampling(0.1)
        rounds = normalize(
            [
                over(sampling, TREE, GAUSSIAN),
                over(sampling, TREE, LAPLACE),
                over(sampling, GAUSSIAN),
            ]
        )

        kinds = {type(mechanism): mechanism for mechanism, _ in rounds}
        assert kinds[SampledGaussian] == SampledGaussian(4.0, 0.1)
        assert kinds[AdditiveNoise].sampling_probability == 1.0
        assert (Gaussian(4.0), 1) in rounds

    def test_replacing_a_record_of_its_sample_is_not_amplified(self) -> None:
        rounds = normalize(
            [over(PoissonSampling(0.1), TREE, GAUSSIAN)], "replace_one"
        )

        # A record need not be in the sample.
        (other, _), (tree, _) = rounds
        assert other == Gaussian(2.0)
        assert tree == Gaussian(4.0, UNREACHED)

    def test_an_epoch_costs_a_path(self) -> None:
        """sqrt(64 / 4) for eight rounds, wherever they are written."""
        epoch = DisjointBatches("e")
        ledger = [over(epoch, TREE, count=3), over(epoch, TREE, count=5)]

        assert normalize(ledger, "zero_out") == ((Gaussian(4.0), 1),)
        assert normalize(ledger, "replace_one") == ((Gaussian(2.0), 1),)
        refused(ledger, "add_or_remove_one")

    def test_other_sums_of_an_epoch_are_priced_beside(self) -> None:
        ledger = [over(DisjointBatches("e"), TREE, GAUSSIAN, count=8)]

        assert normalize(ledger, "zero_out") == ((Gaussian(4.0), 2),)

    def test_the_largest_bound_meets_the_least_noise(self) -> None:
        """A node can hold the one and carry the other."""
        loud = TreeSum("tree", 2.0, 16.0, tree_id="t")
        ledger = [over(FullDataset(), TREE), over(FullDataset(), loud)]

        ((mechanism, _),) = normalize(ledger)

        # 2 leaves and a pair with both: 2 + 4.
        assert mechanism.noise_multiplier == pytest.approx(
            4 / math.sqrt(6), rel=1e-11
        )

    def test_one_without_a_bound_is_free(self) -> None:
        free = TreeSum("tree", 0.0, 0.0, tree_id="t")

        assert normalize([over(FullDataset(), free, count=9)]) == ()

    def test_one_without_noise_is_bare(self) -> None:
        bare = TreeSum("tree", 1.0, 0.0, tree_id="t")

        assert normalize([over(FullDataset(), bare)]) == ((Gaussian(0.0), 1),)

    def test_two_leaves_of_a_tree_in_one_round_are_refused(self) -> None:
        twin = TreeSum("twin", 1.0, 8.0, tree_id="t")
        ledger = [over(FullDataset(), TREE, twin)]

        refused(ledger, "add_or_remove_one")

    @pytest.mark.parametrize(
        "sampling",
        [FixedSizeWithoutReplacement(2, 9), FixedSizeWithReplacement(2, 9)],
    )
    def test_fixed_sizes_are_refused(self, sampling) -> None:
        for neighbours in RELATIONS:
            refused([over(sampling, TREE)], neighbours)

    def test_long_trees_are_priced(self) -> None:
        ledger = [over(FullDataset(), TREE, count=2**62)]

        ((mechanism, _),) = normalize(ledger)

        assert 0 < mechanism.noise_multiplier < 1e-17

    def test_the_analytic_accountant_replays_them(self) -> None:
        ledger = [over(PoissonSampling(0.1), TREE, GAUSSIAN, count=6)]

        assert type(available_accountants(ledger)[0]) is AnalyticGaussian
