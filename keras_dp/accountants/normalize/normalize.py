"""From the rounds of a ledger to the mechanisms that accountants read.

The one place where the noise multiplier, the adjacency relation, the sampling
event and the count of a round are put together.
"""

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from keras_dp.accountants.normalize.correlated import CorrelatedRounds
from keras_dp.accountants.normalize.mechanisms import (
    CountedMechanism,
    Encoding,
    Exposure,
    Mechanism,
    OneOf,
    Selected,
    in_order,
    place,
)
from keras_dp.accountants.normalize.release import Release, released
from keras_dp.accountants.normalize.rounds import (
    LedgerLike,
    Neighbours,
    NormalizedRounds,
    NormalizesItself,
    counted_rounds,
    rows_per_unit_of,
)
from keras_dp.accountants.normalize.samplings import (
    check_neighbours,
    check_supported,
    sampling_of,
    strongest_neighbours,
    unamplified,
)
from keras_dp.accountants.normalize.thresholds import Threshold
from keras_dp.ledger import (
    Round,
    Selection,
)


def normalize(
    ledger: LedgerLike, neighbours: Neighbours | None = None
) -> tuple[CountedMechanism, ...]:
    """Returns the mechanisms of the rounds of `ledger`, equal ones counted.

    Rounds that release nothing of the data are left out. The order does not
    depend on the order of the rounds.

    The Gaussian sums of a round saw one sample: with `S_g` the bound and
    `sigma_g` the noise of each they are one sum with noise multiplier
    `z = (sum_g (S_g / sigma_g)^2)^(-1/2)`, amplified by sampling **once**, and
    so are encoded sums with other noise, whose moments multiply. `z` is
    rounded down to 12 digits, so that rounds that differ in the last bit
    merge.

    The table of `samplings` says what each sampling means for a record.
    `replace_one` moves a sum by twice the bound `S` of a record, but for
    `PoissonSampling`, whose mechanism has the two records one by one.
    `UnverifiedSampling` takes the caller's word that a record occurs in a batch
    at most once. An epoch of disjoint batches is as private as its least
    private round, wherever in the ledger its rounds are, because a record takes
    part in one of them.

    Rounds with one `mechanism_id` are the rows of one mechanism with correlated
    noise, wherever they are. It reveals sums over several rounds together, and
    with them who was in the sample of one of these rounds. So neither it nor
    other releases over the same samples are amplified, but for Poisson samples
    of classes that take turns: see `correlated`.

    Trials of a search share no epoch and no mechanism: each plan is normalized
    by itself.

    Source: McMahan et al. (2018), arXiv:1812.06210v2, equation 1.
    """
    return normalized(ledger, neighbours).mechanisms


def normalized(
    ledger: LedgerLike, neighbours: Neighbours | None = None
) -> NormalizedRounds:
    """Returns what `normalize` does, with the relation and the unit."""
    if isinstance(ledger, NormalizesItself):
        return ledger.normalized(neighbours)
    pairs = tuple(counted_rounds(ledger))
    check_neighbours(neighbours)
    relation = neighbours or strongest_neighbours(pairs)
    mechanisms = _mechanisms(pairs, relation)
    return NormalizedRounds(relation, mechanisms, rows_per_unit_of(ledger))


def _mechanisms(
    rounds: Iterable[tuple[Round, int]], neighbours: Neighbours
) -> tuple[CountedMechanism, ...]:
    """Adds up rounds that share no epoch of disjoint batches and no mechanism.

    Those that do are put together first.
    """
    counts: Counter[Mechanism] = Counter()
    epochs: defaultdict[str, _Epoch] = defaultdict(_Epoch)
    correlated = CorrelatedRounds()
    for event, count in rounds:
        sampling, release = event.sampling, released(event.queries)
        check_supported(sampling, release, neighbours)
        if release.search is not None:
            search = _selected(release.search, neighbours)
            if search:
                counts[search] += count
            continue
        kind = sampling_of(sampling)
        if kind.takes_turns or release.spans:
            correlated.add(sampling, release, count)
        if kind.epoch:
            epochs[kind.epoch(sampling)].add(release)
        elif not kind.takes_turns:
            for found in kind.mechanisms(sampling, release, neighbours):
                counts[found] += count
    for epoch in epochs.values():
        counts.update(epoch.mechanisms(neighbours))
    others = {name for name, epoch in epochs.items() if epoch.differs}
    for whole, times in correlated.mechanisms(neighbours, others):
        counts[whole] += times
    return in_order(counts)


@functools.lru_cache(maxsize=64)
def _selected(search: Selection, neighbours: Neighbours) -> Selected | None:
    """Returns what a search is; None if its trials release nothing."""
    plans = {_mechanisms(plan, neighbours): None for plan in search.plans}
    plans.pop((), None)
    return Selected(tuple(plans), search.law) if plans else None


class _Epoch:
    """Disjoint batches of one pass over the data: a record is in one of them.

    Rounds with the same encodings differ in their Gaussian sums alone, of
    which the one with the least noise bounds the others.
    """

    def __init__(self) -> None:
        self._sensitivities: dict[tuple[Encoding, ...], float] = {}
        self._kinds: set[tuple[float, tuple[Encoding, ...]]] = set()
        self._thresholds: set[tuple[Threshold, ...]] = set()

    def add(self, release: Release) -> None:
        before = self._sensitivities.get(release.encodings, 0.0)
        self._sensitivities[release.encodings] = max(
            before, release.sensitivity
        )
        self._kinds.add((release.sensitivity, release.encodings))
        if release.thresholds:
            self._thresholds.add(release.thresholds)

    @property
    def differs(self) -> bool:
        """Whether it matters for other releases in which round a record is."""
        return len(self._kinds) > 1

    def mechanisms(self, neighbours: Neighbours) -> Iterator[Mechanism]:
        """Yields what the epoch is; nothing if it releases nothing."""
        alternatives = [
            mechanism
            for encodings, sensitivity in self._sensitivities.items()
            if (
                mechanism := unamplified(
                    Release(sensitivity, encodings),
                    neighbours,
                )
            )
        ]
        if len(alternatives) > 1:
            yield OneOf(tuple(sorted(alternatives, key=place)))
        else:
            yield from alternatives
        if self._thresholds:
            yield Exposure(tuple(sorted(self._thresholds)))
