"""How far a record moves trees of noised sums, in units of one release.

A tree over `n` rounds has a node for each complete dyadic block of rounds,
`[m 2^l, (m+1) 2^l)` within `[0, n)`; each is released once, with Gaussian
noise of its own, and what is made of the nodes (prefix sums, also the
weighted ones of Honaker) is post-processing. A record that takes part in some
rounds moves a node by at most the bound times the number of those rounds
below the node, so that its displacement, measured in noise, has the square

    (S / sigma)^2 sum_(nodes) (rounds below the node that it takes part in)^2.

Noise is Gaussian and fixed in advance, therefore a tree is one Gaussian
release with this sensitivity, whatever the records' vectors depend on.
"""

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from keras_dp.accountants.normalize.release import ratio
from keras_dp.ledger import CountedRound, Round, TreeSum


class TreeRound(NamedTuple):
    """Rounds of some trees.

    Attributes:
        trees: The releases of the round, each of another tree.
        repetitions: How many such rounds there were.
        epoch: The pass over the data in which a record takes part in one
            round at most; None if it can take part in all.
    """

    trees: tuple[TreeSum, ...]
    repetitions: int
    epoch: str | None


class _Tree(NamedTuple):
    """A whole tree: largest bound, least noise, leaves, participations."""

    sensitivity: float
    leaves: int
    participations: int

    def moved(self, participations: int) -> float:
        """Returns the square of what a record moves, in noise."""
        return self.sensitivity**2 * largest_square(self.leaves, participations)


def largest_square(leaves: int, participations: int) -> int:
    """Returns the largest sum over the nodes of (participations below)^2.

    On the level of blocks of `b = 2^l` leaves there are `n // b` nodes, each
    with at most `b` participations below it. The sum of their squares is
    largest if as many nodes as possible are full; all participations at the
    first leaves do that on all levels at once.

    Args:
        leaves: `n` >= 1, rounds of the tree.
        participations: Rounds that a record takes part in, in [0, n].

    >>> largest_square(8, 1)  # One path from a leaf to the root.
    4
    >>> largest_square(7, 7)  # 7 leaves, 3 pairs, one block of four.
    35
    """
    total = 0
    for level in range(leaves.bit_length()):
        block = 1 << level
        nodes = leaves // block
        full = min(participations // block, nodes)
        total += full * block**2
        if full < nodes:
            total += (participations - full * block) ** 2
    return total


def with_whole_trees(
    some: Iterable[tuple[Round, int]], every: Iterable[tuple[Round, int]]
) -> tuple[CountedRound, ...]:
    """Returns some rounds, and the others of their trees and mechanisms.

    A node that is released in one of these rounds also sums earlier ones. So
    they cost what their trees cost, and what their mechanisms with correlated
    noise cost.

    Args:
        some: Rounds of a ledger, such as those of one run.
        every: All rounds of the ledger, or all until then.
    """
    rounds = tuple(CountedRound(*pair) for pair in some)
    names = {
        query.span_id
        for round_, _ in rounds
        for query in round_.queries
        if query.span_id is not None
    }
    if not names:
        return rounds
    left: Counter[Round] = Counter()
    for pairs, sign in ((every, 1), (rounds, -1)):
        for round_, count in pairs:
            left[round_] += sign * count
    others: list[CountedRound] = []
    for round_, count in (+left).items():
        leaves = tuple(
            query for query in round_.queries if query.span_id in names
        )
        if leaves:
            part = dataclasses.replace(round_, queries=leaves)
            others.append(CountedRound(part, count))
    return (*rounds, *others)


def tree_sensitivities(rounds: Sequence[TreeRound]) -> list[float]:
    """Returns the sensitivities of Gaussian releases that cover all trees.

    If a tree has rounds with different bounds or noises, the largest bound and
    the least noise count: a node can hold a record's vector of one round and
    carry the noise of another.

    Trees that share no epoch of disjoint batches add by their squares, each
    with as many participations as it has epochs, and rounds of other
    samplings. Trees that share epochs can do better: in an epoch a record is
    in one round, and follows one path in each tree of that round. The most
    that this can be, summed over the epochs, bounds the trees together, by
    the triangle inequality. The smaller of the two bounds counts.

    Returns:
        `S / sigma` for each group of trees that share epochs; 0 if free, and
        `inf` if a tree has no noise.
    """
    trees = _trees(rounds)
    paths: defaultdict[str, float] = defaultdict(float)
    for each in rounds:
        if each.epoch is not None:
            path = math.fsum(
                trees[query.tree_id].moved(1) for query in each.trees
            )
            paths[each.epoch] = max(paths[each.epoch], math.sqrt(path))
    sensitivities = []
    for names, epochs, is_disjoint in _groups(rounds):
        square = math.fsum(
            trees[name].moved(trees[name].participations) for name in names
        )
        if is_disjoint:
            by_epochs = math.fsum(paths[epoch] for epoch in epochs) ** 2
            square = min(square, by_epochs)
        sensitivities.append(math.sqrt(square))
    return sensitivities


def _trees(rounds: Iterable[TreeRound]) -> Mapping[str, _Tree]:
    bounds: defaultdict[str, float] = defaultdict(float)
    stddevs: defaultdict[str, float] = defaultdict(lambda: math.inf)
    leaves: defaultdict[str, int] = defaultdict(int)
    free: defaultdict[str, int] = defaultdict(int)
    epochs: defaultdict[str, set[str]] = defaultdict(set)
    for trees, repetitions, epoch in rounds:
        for query in trees:
            name = query.tree_id
            bounds[name] = max(bounds[name], query.l2_norm_bound)
            stddevs[name] = min(stddevs[name], query.noise_stddev)
            leaves[name] += repetitions
            if epoch is None:
                free[name] += repetitions
            else:
                epochs[name].add(epoch)
    result = {}
    for name, count in leaves.items():
        participations = free[name] + len(epochs[name])
        result[name] = _Tree(
            ratio(bounds[name], stddevs[name]), count, participations
        )
    return result


def _groups(
    rounds: Iterable[TreeRound],
) -> list[tuple[set[str], set[str], bool]]:
    """Returns trees that share epochs, those, and whether nothing else is."""
    parents: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        parents.setdefault(node, node)
        while parents[node] != node:
            parents[node] = node = parents[parents[node]]
        return node

    shared = set()
    for trees, _, epoch in rounds:
        for query in trees:
            tree = root(("tree", query.tree_id))
            if epoch is None:
                shared.add(query.tree_id)
            else:
                parents[tree] = root(("epoch", epoch))
    members: defaultdict[tuple[str, str], dict[str, set[str]]]
    members = defaultdict(lambda: {"tree": set(), "epoch": set()})
    for kind, name in sorted(parents):
        members[root((kind, name))][kind].add(name)
    return [
        (each["tree"], each["epoch"], not each["tree"] & shared)
        for each in members.values()
    ]
