"""Against dp_accounting, which the development requirements pin."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as peer

from keras_dp.accountants import RDP
from keras_dp.accountants.normalize.mechanisms import (
    FixedSizeGaussian,
    SampledGaussian,
)
from keras_dp.accountants.renyi.divergences import rdp
from keras_dp.ledger import (
    FixedSizeWithoutReplacement,
    GaussianSum,
    PoissonSampling,
    Round,
)

GRID = [
    (probability, noise)
    for probability in (1e-4, 0.01, 0.3)
    for noise in (0.6, 1.0, 8.0)
]


@pytest.mark.parametrize(("probability", "noise"), GRID)
def test_curves_agree_at_integer_orders(probability, noise) -> None:
    """Where theirs keep digits: they add terms to 1, and lose 1e-16 of it."""
    orders = np.array([2.0, 3.0, 8.0, 21.0, 64.0])
    theirs = peer._compute_rdp_poisson_subsampled_gaussian(
        probability, noise, orders
    )

    ours = rdp(SampledGaussian(noise, probability), orders)

    np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize(("probability", "noise"), GRID)
def test_ours_is_below_at_other_orders(probability, noise) -> None:
    """They take absolute values of a series that changes its sign.

    Up to ten times too large at order 1.5, where ours has 12 digits (see
    test_accountants_renyi), or infinite.
    """
    orders = np.array([1.5, 2.5, 3.5, 10.5])
    theirs = peer._compute_rdp_poisson_subsampled_gaussian(
        probability, noise, orders
    )

    ours = rdp(SampledGaussian(noise, probability), orders)

    assert np.all(ours <= theirs * (1 + 1e-11) + 1e-14)


@pytest.mark.parametrize(("probability", "noise"), GRID)
@pytest.mark.parametrize("count", [1, 1000])
@pytest.mark.parametrize("delta", [1e-3, 1e-9])
def test_ours_is_never_above(probability, noise, count, delta) -> None:
    """The same conversion, and all orders instead of their list.

    By 1e-9: what we round up. Far below only where the best order is one
    that their series cannot do.
    """
    event = dp_accounting.PoissonSampledDpEvent(
        probability, dp_accounting.GaussianDpEvent(noise)
    )
    accountant = peer.RdpAccountant()
    accountant.compose(event, count)
    query = GaussianSum("sum", 1.0, noise)
    ledger = [(Round(PoissonSampling(probability), (query,)), count)]

    ours = RDP().epsilon(ledger, delta=delta)

    theirs = accountant.get_epsilon(delta)
    assert ours <= theirs * (1 + 1e-9) + 1e-14
    assert ours >= theirs * (0.7 if theirs < 100 else 0.3)


@pytest.mark.parametrize("noise", [0.8, 1.0, 4.0])
@pytest.mark.parametrize("probability", [1e-3, 0.05])
def test_fixed_size_curves_are_no_looser(probability, noise) -> None:
    """Theirs is Theorem 27 of the same paper."""
    orders = np.arange(2.0, 40.0)
    theirs = peer._compute_rdp_sample_wor_gaussian(probability, noise, orders)

    ours = rdp(FixedSizeGaussian(noise, probability), orders)

    assert np.all(ours <= np.asarray(theirs) * (1 + 1e-9))
    assert ours[0] < 0.6 * theirs[0]


def test_fixed_size_ledgers_are_no_looser() -> None:
    """3.576 (its own answer): its noise is per `2C`."""
    event = dp_accounting.SampledWithoutReplacementDpEvent(
        10_000, 100, dp_accounting.GaussianDpEvent(1.0)
    )
    accountant = peer.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    accountant.compose(event, 1000)
    sampling = FixedSizeWithoutReplacement(100, 10_000)
    ledger = [(Round(sampling, (GaussianSum("sum", 1.0, 2.0),)), 1000)]

    ours = RDP().epsilon(ledger, delta=1e-5, neighbours="replace_one")

    assert accountant.get_epsilon(1e-5) == pytest.approx(3.576, abs=5e-4)
    assert ours < 2.34
