"""Each point of the curve is what its prefix of the ledger costs."""

import importlib

import numpy as np
import pytest

from keras_dp.accountants import RDP, AnalyticGaussian, StrongComposition
from keras_dp.accountants.normalize.normalize import RoundsTogether
from keras_dp.errors import UnsupportedEventError
from keras_dp.ledger import (
    DiscreteGaussianSum,
    DisjointBatches,
    FixedSizeWithReplacement,
    FullDataset,
    GaussianSum,
    NonPrivateSum,
    PoissonSampling,
    PrivacyLedger,
    Round,
    TreeSum,
)
from keras_dp.planning.epsilon_curve import epsilon_curve

DELTA = 1e-5


def step(sampling, noise=4.0, *others):
    return Round(sampling, (GaussianSum("sum", 1.0, noise), *others))


def tree(tree_id, sampling):
    return Round(sampling, (TreeSum("tree", 1.0, 8.0, tree_id),))


POISSON = [
    (step(PoissonSampling(0.02)), 100),
    (step(PoissonSampling(0.02), 3.0), 1),
    (step(FullDataset(), 50.0), 7),
    (step(PoissonSampling(0.02)), 40),
]
EPOCHS = [
    (step(DisjointBatches(f"epoch {i // 10}"), 5.0 - (7 * i % 10) / 10), 1)
    for i in range(40)
]
MIXED_EPOCH = [
    (step(DisjointBatches("a"), 6.0), 3),
    (Round(DisjointBatches("a"), (DiscreteGaussianSum("b", 1.0, 9.0),)), 2),
    (step(DisjointBatches("b"), 6.0), 3),
    (step(DisjointBatches("a"), 4.0), 3),
    (step(FullDataset(), 50.0), 7),
]
TREES = [
    (tree("t", DisjointBatches("a")), 8),
    (step(DisjointBatches("a"), 2.0), 3),
    (step(DisjointBatches("c"), 2.0), 3),
    (tree("t", DisjointBatches("b")), 8),
    (tree("u", PoissonSampling(0.1)), 5),
    (step(FullDataset(), 50.0), 7),
]


def prefix(ledger, rounds):
    left, found = rounds, []
    for each, count in ledger:
        if left:
            found.append((each, min(left, count)))
            left -= min(left, count)
    return found


@pytest.mark.parametrize("points", [1, 7, 30])
@pytest.mark.parametrize(
    ("ledger", "neighbours"),
    [
        (POISSON, "add_or_remove_one"),
        (POISSON, "replace_one"),
        (EPOCHS, "zero_out"),
        (MIXED_EPOCH, "replace_one"),
        (TREES, "zero_out"),
    ],
)
def test_points_are_what_the_first_rounds_cost(
    ledger, neighbours, points
) -> None:
    """Unless it would fall: then what comes later bounds what was before."""
    total = sum(count for _, count in ledger)
    arguments = {"delta": DELTA, "neighbours": neighbours}

    curve = epsilon_curve(ledger, points=points, accountant=RDP(), **arguments)

    assert curve.rounds[-1] == total
    assert 1 <= curve.rounds.size <= points
    assert np.all(np.diff(curve.rounds) > 0)
    assert np.all(np.diff(curve.epsilons) >= 0)
    alone = [
        RDP().epsilon(prefix(ledger, rounds), **arguments)
        for rounds in curve.rounds.tolist()
    ]
    np.testing.assert_allclose(
        curve.epsilons, np.minimum.accumulate(alone[::-1])[::-1], rtol=1e-14
    )
    assert curve.epsilons[-1] == RDP().epsilon(ledger, **arguments)


def test_points_are_even() -> None:
    ledger = [(step(FullDataset()), 1000)]

    even = epsilon_curve(ledger, delta=DELTA, points=4)

    assert even.rounds.tolist() == [250, 500, 750, 1000]


def test_an_empty_ledger_has_no_points() -> None:
    curve = epsilon_curve([], delta=DELTA)

    assert curve.rounds.size == curve.epsilons.size == 0


def test_takes_ledgers_and_iterators() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")
    ledger.record(FullDataset(), [GaussianSum("sum", 1.0, 4.0)], count=9)

    one = epsilon_curve(ledger, delta=DELTA)
    other = epsilon_curve(iter(ledger.rounds), delta=DELTA)

    assert one.epsilons.tolist() == other.epsilons.tolist()


def test_is_infinite_from_the_first_bare_sum_on() -> None:
    bare = Round(FullDataset(), (NonPrivateSum("loss"),))
    ledger = [(step(FullDataset()), 2), (bare, 1), (step(FullDataset()), 1)]

    curve = epsilon_curve(ledger, delta=DELTA)

    assert np.isfinite(curve.epsilons).tolist() == [True, True, False, False]


def test_normalizes_equal_rounds_once_for_each_point(monkeypatch) -> None:
    """20,000 rows of one kind: once for each point, not for each row."""
    module = importlib.import_module("keras_dp.planning.epsilon_curve")
    added = []

    class Counting(RoundsTogether):
        def add(self, event, count) -> None:
            added.append(count)
            super().add(event, count)

    monkeypatch.setattr(module, "RoundsTogether", Counting)

    curve = epsilon_curve(
        iter([(step(FullDataset()), 1)] * 20_000),
        delta=DELTA,
        points=100,
        accountant=AnalyticGaussian(),
    )

    assert curve.rounds.size == 100
    assert added == [200] * 99  # And all of them for the last one.


def test_rounds_without_a_bound_raise() -> None:
    integers = DiscreteGaussianSum("sum", 1.0, 4.0)
    drawn = Round(FixedSizeWithReplacement(1, 10), (integers,))

    with pytest.raises(UnsupportedEventError):
        epsilon_curve([(step(FullDataset()), 9), (drawn, 1)], delta=DELTA)
    with pytest.raises(UnsupportedEventError):
        epsilon_curve(POISSON, delta=DELTA, accountant=AnalyticGaussian())


@pytest.mark.parametrize(
    ("name", "value"),
    [("points", 0), ("delta", 1.5), ("neighbours", "x")],
)
def test_bad_arguments_raise(name, value) -> None:
    arguments = {"delta": DELTA, "accountant": StrongComposition()}

    with pytest.raises(ValueError, match=f"`{name}`"):
        epsilon_curve(POISSON, **(arguments | {name: value}))
