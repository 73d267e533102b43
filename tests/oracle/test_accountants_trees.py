"""Trees against every pattern of participation, and against a peer."""

import itertools
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as peer

from keras_dp.accountants import RDP
from keras_dp.accountants.normalize.normalize import normalize
from keras_dp.accountants.normalize.tree_sensitivity import largest_square
from keras_dp.ledger import DisjointBatches, FullDataset, Round, TreeSum


def tree_matrix(leaves: int) -> np.ndarray:
    """Nodes x rounds: what each node of the tree sums, from the definition."""
    rows = [
        [start <= leaf < start + size for leaf in range(leaves)]
        for size in (2**level for level in range(leaves.bit_length()))
        for start in range(0, leaves - size + 1, size)
    ]
    return np.array(rows, dtype=float)


def patterns(epochs):
    """All ways to take part: any round without an epoch, one of each epoch."""
    rounds = range(len(epochs))
    choices = [
        [None, *(i for i in rounds if epochs[i] == epoch)]
        for epoch in sorted({epoch for epoch in epochs if epoch is not None})
    ] + [[None, i] for i in rounds if epochs[i] is None]
    for chosen in itertools.product(*choices):
        yield {i for i in chosen if i is not None}


def largest_displacement(trees, epochs) -> float:
    """The largest displacement of a record, over all patterns.

    Unit vectors, all in one direction: entries of the matrix are >= 0, so that
    no other vectors of length 1 move the nodes further.
    """
    matrices = {name: tree_matrix(trees.count(name)) for name in set(trees)}
    places = {
        name: [i for i, each in enumerate(trees) if each == name]
        for name in matrices
    }
    return max(
        math.sqrt(
            sum(
                np.sum((matrix @ [i in pattern for i in places[name]]) ** 2)
                for name, matrix in matrices.items()
            )
        )
        for pattern in patterns(epochs)
    )


def stated(trees, epochs) -> float:
    """One Gaussian that covers all: squares of groups add."""
    rounds = [
        (
            Round(
                FullDataset() if epoch is None else DisjointBatches(epoch),
                (TreeSum("sum", 1.0, 1.0, tree_id=name),),
            ),
            1,
        )
        for name, epoch in zip(trees, epochs, strict=True)
    ]
    return math.sqrt(
        sum(
            count / mechanism.noise_multiplier**2
            for mechanism, count in normalize(rounds, "zero_out")
        )
    )


@pytest.mark.parametrize("leaves", range(1, 12))
def test_the_largest_square_is_that_of_all_subsets(leaves) -> None:
    matrix = tree_matrix(leaves)
    found = dict.fromkeys(range(leaves + 1), 0)
    for subset in itertools.product([0, 1], repeat=leaves):
        count = sum(subset)
        square = int(np.sum((matrix @ subset) ** 2))
        found[count] = max(found[count], square)

    for participations, square in found.items():
        assert largest_square(leaves, participations) == square


@pytest.mark.parametrize(
    ("leaves", "depth"), [(1, 1), (2, 2), (3, 2), (4, 3), (1023, 10)]
)
def test_one_participation_is_a_path(leaves, depth) -> None:
    assert largest_square(leaves, 1) == depth


@pytest.mark.parametrize(
    ("trees", "epochs"),
    [
        ("aaaaaaa", [None] * 7),  # In every round.
        ("aaaaaa", ["e"] * 6),  # One epoch.
        ("aaaabbbb", [*"eeee", *"ffff"]),  # A tree for each epoch.
        ("aaabbbbb", ["e"] * 8),  # Two trees in one epoch.
        ("abababab", ["e"] * 8),
        ("aabb", ["e", "e", None, None]),
    ],
)
def test_the_cost_is_the_largest_displacement(trees, epochs) -> None:
    """Where it is known exactly."""
    assert stated(trees, epochs) == pytest.approx(
        largest_displacement(trees, epochs), rel=1e-9
    )


@pytest.mark.parametrize(
    ("trees", "epochs"),
    [
        ("aaaaaaaa", [*"eeee", *"ffff"]),
        ("aaaaaaaa", [*"efefefef"]),
        ("aaaaaaaaa", [*"eeefffggg"]),
        ("aaabbbccc", [*"eeffggeef"]),
        ("aabbaabb", [*"eeeeffff"]),
        ("abababab", [*"eeee", *"ffff"]),
        ("aaaabbbb", [*"eee", *"fff", *"gg"]),
        ("aaaaaa", ["e", "e", None, "f", "f", None]),
        ("aabbcc", ["e", "f", "f", "g", None, "g"]),
    ],
)
def test_the_cost_is_never_below_the_largest_displacement(
    trees, epochs
) -> None:
    """And at most 1.5 of it: the order of the rounds is not made use of."""
    largest = largest_displacement(trees, epochs)

    most = 1.5 * largest * (1 + 1e-9)
    assert largest * (1 - 1e-12) <= stated(trees, epochs) <= most


def test_several_epochs_cost_more_than_squares() -> None:
    """Control: adding up squares of paths is below the truth."""
    largest = largest_displacement("aaaaaaaa", [*"eeee", *"ffff"])

    assert math.sqrt(2 * largest_square(8, 1)) < 0.9 * largest


def test_random_layouts_are_covered() -> None:
    rng = np.random.default_rng(20261121)
    for _ in range(60):
        size = int(rng.integers(1, 9))
        trees = "".join(rng.choice(list("abc"), size))
        epochs = [[None, *"efg"][i] for i in rng.integers(0, 4, size)]

        largest = largest_displacement(trees, epochs)

        assert stated(trees, epochs) >= largest * (1 - 1e-12)


@pytest.mark.parametrize("steps", [1, 7, 8, 1000])
@pytest.mark.parametrize("noise", [1.0, 8.0])
def test_one_epoch_agrees_with_dp_accounting(steps, noise) -> None:
    """Theirs takes the best of a list of orders: at most 1 % above."""
    accountant = peer.RdpAccountant(
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    )
    event = dp_accounting.SingleEpochTreeAggregationDpEvent(noise, steps)
    accountant.compose(event)
    query = TreeSum("gradients", 1.0, noise, tree_id="tree")
    ledger = [(Round(DisjointBatches("epoch"), (query,)), steps)]

    ours = RDP().epsilon(ledger, delta=1e-5, neighbours="zero_out")

    theirs = accountant.get_epsilon(1e-5)
    assert theirs * 0.99 <= ours <= theirs * (1 + 1e-9)


def test_a_tree_without_epochs_costs_a_record_in_every_round() -> None:
    """Three rounds: three leaves and one pair with 2 of them, 3 + 4 = 7."""
    query = TreeSum("gradients", 1.0, math.sqrt(7), tree_id="tree")

    whole = RDP().epsilon([(Round(FullDataset(), (query,)), 3)], delta=1e-5)

    single = TreeSum("gradients", 1.0, 1.0, tree_id="other")
    once = RDP().epsilon([(Round(FullDataset(), (single,)), 1)], delta=1e-5)
    assert whole == pytest.approx(once, rel=1e-9)
