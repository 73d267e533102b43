"""Ledgers that are replayed by both libraries: both say the same."""

import dp_accounting as dp
import pytest
from dp_accounting import NeighboringRelation

from keras_dp.accountants import RDP, Fourier
from keras_dp.interchange import to_dp_event
from keras_dp.ledger import (
    CoordinateBounds,
    DisjointBatches,
    EncodedSum,
    FixedSizeWithoutReplacement,
    FullDataset,
    GaussianSum,
    LaplaceNoise,
    PoissonSampling,
    Round,
    UnverifiedSampling,
)

DELTA = 1e-5
THEIRS = {
    "add_or_remove_one": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
    "zero_out": NeighboringRelation.REPLACE_SPECIAL,
}
SUM = GaussianSum("gradients", 3.0, 6.0)
PAIR = SUM, GaussianSum("norms", 0.5, 2.0)
LEDGERS = {
    "full": [(Round(FullDataset(), (SUM,)), 4)],
    "poisson": [(Round(PoissonSampling(0.02), PAIR), 500)],
    "mixed": [
        (Round(PoissonSampling(0.02), (SUM,)), 300),
        (Round(FullDataset(), PAIR), 2),
        (Round(PoissonSampling(0.05), PAIR), 40),
    ],
    "unverified": [(Round(UnverifiedSampling(), (SUM,)), 4)],
    "epochs": [
        (Round(DisjointBatches("1"), (SUM,)), 100),
        (Round(DisjointBatches("2"), PAIR), 100),
    ],
    "fixed size": [
        (Round(FixedSizeWithoutReplacement(100, 10_000), (SUM,)), 1000),
        (Round(FullDataset(), (SUM,)), 1),
    ],
}
RELATIONS = {
    "full": [*THEIRS],
    "poisson": [*THEIRS],
    "mixed": [*THEIRS],
    "unverified": ["replace_one", "zero_out"],
    "epochs": ["replace_one", "zero_out"],
    "fixed size": ["replace_one"],
}
CASES = [(name, each) for name in LEDGERS for each in RELATIONS[name]]


def their_epsilon(kind, event, neighbours):
    """Returns what an accountant says; None if it does not know the event."""
    accountant = kind(neighboring_relation=THEIRS[neighbours])
    if not accountant.supports(event):
        return None
    return accountant.compose(event).get_epsilon(DELTA)


@pytest.mark.parametrize(("name", "neighbours"), CASES)
def test_their_renyi_bounds_are_ours(name, neighbours) -> None:
    ledger = LEDGERS[name]
    event = to_dp_event(ledger, neighbours=neighbours)
    theirs = their_epsilon(dp.rdp.RdpAccountant, event, neighbours)
    if theirs is None:  # Poisson samples of which a record is replaced.
        assert neighbours == "replace_one"
        return

    ours = RDP().epsilon(ledger, delta=DELTA, neighbours=neighbours)

    # They have other orders, and a looser divergence at a fixed size.
    assert ours <= theirs * (1 + 1e-9)
    assert ours >= (0.5 if name == "fixed size" else 0.98) * theirs


@pytest.mark.parametrize(
    ("name", "neighbours"),
    [
        ("full", "add_or_remove_one"),
        ("poisson", "add_or_remove_one"),
        ("poisson", "replace_one"),
        ("poisson", "zero_out"),
        ("mixed", "add_or_remove_one"),
        ("epochs", "zero_out"),
    ],
)
def test_their_distributions_are_ours(name, neighbours) -> None:
    ledger = LEDGERS[name]
    event = to_dp_event(ledger, neighbours=neighbours)
    theirs = their_epsilon(dp.pld.PLDAccountant, event, neighbours)

    ours = Fourier().epsilon(ledger, delta=DELTA, neighbours=neighbours)
    assert theirs == pytest.approx(ours, rel=1e-3)


@pytest.mark.parametrize("probability", [1.0, 0.1])
def test_laplace_sums_agree(probability) -> None:
    """One coordinate, where the L1 norm is all there is."""
    bounds = CoordinateBounds.from_arrays([[1.0]], [1])
    query = EncodedSum("encoded", bounds, LaplaceNoise(3.0))
    ledger = [(Round(PoissonSampling(probability), (query,)), 10)]
    event = to_dp_event(ledger)

    exact = their_epsilon(dp.pld.PLDAccountant, event, "add_or_remove_one")

    ours = RDP().epsilon(ledger, delta=DELTA)
    assert 0.8 * ours < exact < ours
    if probability == 1:
        renyi = their_epsilon(dp.rdp.RdpAccountant, event, "add_or_remove_one")
        assert ours == pytest.approx(renyi, rel=0.01)
