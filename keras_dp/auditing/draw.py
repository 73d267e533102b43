"""Tests whether the samples of a sampler follow their sampling event.

Only indices are drawn, thousands of samples of them. Each statistical test
raises a false alarm with a probability of at most about 1e-10: a tail of the
binomial distribution, over the number of records or pairs that it is asked for;
or Pearson's test on bins of which each expects 20 samples or more. What else is
counted never happens in correct samples.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.stats

from keras_dp import ledger
from keras_dp.auditing.normal_draws import FALSE_ALARM, LEAST_IN_BIN
from keras_dp.sampling import (
    Sampler,
    UserBatches,
    random_words,
)
from keras_dp.sampling.draw import Sample
from keras_dp.sampling.random_words import Randomness

Integers = npt.NDArray[np.int64]

_DRAWS = 1_000_000
# The rows of a user are drawn one user after the other.
_DRAWS_OF_USERS = 20_000
_MOST_ROUNDS = 4000
# So many units are compared pair by pair.
_MOST_IN_PAIRS = 300
_BIASED_SAMPLES = 50


def departures(samples: Sampler) -> list[str]:
    """Returns descriptions of how samples depart from their sampling event.

    The values of records are not read.
    """
    number = _DRAWS_OF_USERS if samples.unit == "user" else _DRAWS
    rounds = int(
        np.clip(number // max(1, samples.expected_sample_size), 8, _MOST_ROUNDS)
    )
    draws = list(itertools.islice(_draws(samples), rounds))
    taken = [draw.rows[draw.rows >= 0] for draw in draws]
    found = []
    if any(len(np.unique(rows)) < len(rows) for rows in taken):
        found.append("a record stands in one sample twice")
    again = [d.rows for d in itertools.islice(_draws(samples), 3)]
    if (
        not samples.seeded
        and all(
            np.array_equal(a.rows, b)
            for a, b in zip(draws, again, strict=False)
        )
        and samples.expected_sample_size < samples.population_size
    ):
        found.append("two iterators draw the same samples")
    owners = _owners(samples)
    if owners is None:
        return found
    if samples.unit != "example":
        found += _whole_units(samples, owners, draws)
    drawn = _Drawn(
        samples,
        draws,
        [np.unique(owners[rows]) for rows in taken],
        int(owners.max()) + 1,
    )
    return found + _departures(samples.sampling_of(draws[0].pass_), drawn)


def _draws(samples: Sampler) -> Iterator[Sample]:
    """Yields samples, with the places of records among those of a shard."""
    start = samples.positions.start
    for draw in samples.draws():
        rows = np.where(draw.rows >= 0, draw.rows - start, -1)
        yield draw._replace(rows=rows)


class _Drawn(NamedTuple):
    """Samples, the units in each of them, and how many units there are."""

    sampler: Sampler
    draws: list[Sample]
    units: list[Integers]
    total: int


@functools.singledispatch
def _departures(event: ledger.SamplingEvent, drawn: _Drawn) -> list[str]:
    return []


@_departures.register
def _(event: ledger.PoissonSampling, drawn: _Drawn) -> list[str]:
    q, units, count = event.probability, drawn.units, drawn.total
    found = _poisson(np.array([*map(len, units)]), count, q)
    found += _shares(units, count, q)
    found += _repeated(units, count, q)
    if 8 / count <= q <= 0.5:
        found += _limited(drawn.sampler)
    return found


@_departures.register
def _(event: ledger.TruncatedPoissonSampling, drawn: _Drawn) -> list[str]:
    found = []
    if max(map(len, drawn.units)) > event.batch_size:
        found.append("a sample holds more records than the event says")
    return found + _shares(
        drawn.units, drawn.total, event.probability, exactly=False
    )


@_departures.register
def _(event: ledger.FixedSizeWithoutReplacement, drawn: _Drawn) -> list[str]:
    found = []
    if set(map(len, drawn.units)) != {event.sample_size}:
        found.append("a sample has another size than the event says")
    share = event.sample_size / drawn.total
    return found + _shares(drawn.units, drawn.total, share)


@_departures.register
def _(event: ledger.DisjointBatches, drawn: _Drawn) -> list[str]:
    return _passes(drawn.draws)


@_departures.register
def _(event: ledger.CyclicPoissonSampling, drawn: _Drawn) -> list[str]:
    found = _passes(drawn.draws)
    # The round of its cycle in which a record takes part, counted from the end.
    classes = np.full(len(drawn.sampler.positions), -1)
    for draw in drawn.draws:
        records, own = draw.rows[draw.rows >= 0], draw.pass_.rounds_left or 0
        if not np.isin(classes[records], [-1, own]).all():
            return [*found, "a record takes part in the round of another class"]
        classes[records] = own
    return found


def _owners(samples: Sampler) -> Integers | None:
    """Returns the unit of each record of the population, if it is known."""
    count = len(samples.positions)
    if isinstance(samples, UserBatches):
        return samples.users_of_records
    if samples.unit == "example":
        return np.arange(count)
    return None


def _whole_units(
    samples: Sampler, owners: Integers, draws: list[Sample]
) -> list[str]:
    """Compares the rows of one record of the query with its unit.

    A user must take part with all records or with `records_per_user` of them.
    The rows must hold no record of another unit, and no other rows may hold a
    record of this one.
    """
    rows = samples.rows_of_record.rows
    most = getattr(samples, "records_per_user", rows)
    sizes = np.minimum(np.bincount(owners), most)
    found = set()
    for draw in draws:
        groups = draw.rows.reshape(-1, rows)
        groups = groups[(groups >= 0).any(axis=1)]
        present = groups >= 0
        # Padding has the owner of the first record that is there.
        first = np.take_along_axis(
            groups, np.argmax(present, axis=1)[:, np.newaxis], axis=1
        )
        own = owners[np.where(present, groups, first)]
        kind = samples.unit
        if (own != own[:, :1]).any():
            found.add(f"rows of one {kind} hold records of another")
        if len(np.unique(own[:, 0])) < len(own):
            found.add(f"a {kind} is in one sample twice")
        records = present.sum(axis=1)
        if (records > most).any():
            found.add(
                f"a {kind} takes part with more than {most} records, the most "
                "that it may"
            )
        if (records < sizes[own[:, 0]]).any():
            found.add(f"a {kind} takes part with some of its records only")
    return sorted(found)


def _poisson(sizes: Integers, units: int, probability: float) -> list[str]:
    """Compares the sizes of samples with those of Poisson sampling."""
    found = []
    trials = units * len(sizes)
    total = int(sizes.sum())
    chances = (
        scipy.stats.binom.cdf(total, trials, probability),
        scipy.stats.binom.sf(total - 1, trials, probability),
    )
    if min(chances) < FALSE_ALARM:
        found.append(
            f"{total / trials:.4g} of the records take part in a sample, and "
            f"{probability:.4g} in the ledger"
        )
    if _have_other_sizes(sizes, scipy.stats.binom(units, probability)):
        found.append("sizes of samples do not vary as independent draws do")
    return found


def _have_other_sizes(sizes: Integers, law: Any) -> bool:
    """Compares the numbers of samples of each size with a distribution."""
    least = LEAST_IN_BIN / len(sizes)
    edges, before = [], 0.0
    usual = np.arange(law.ppf(least), law.isf(least) + 1)
    for size, up_to in zip(usual, law.cdf(usual), strict=True):
        if up_to - before >= least and 1 - up_to >= least:
            edges.append(size)
            before = up_to
    if not edges:
        return False
    counts = np.bincount(
        np.searchsorted(edges, sizes), minlength=len(edges) + 1
    )
    chances = np.diff([0, *law.cdf(edges), 1])
    test = scipy.stats.chisquare(counts, chances * len(sizes))
    return bool(test.pvalue < FALSE_ALARM)


def _limited(samples: Sampler) -> list[str]:
    """Looks for a size that samples do not exceed, or do not fall below.

    Random words that are larger than usual make larger samples: about twice as
    large. Their sizes vary, too, unless something limits them. Of 50 samples
    of 8 records or more, not all have one size by accident: at most every
    second has the most likely size, so that the chance is below 2^-49.
    """
    system = random_words.from_operating_system
    found = []
    for choose, limit in ((np.maximum, "most"), (np.minimum, "least")):

        def words(count: int, choose: Any = choose) -> Any:
            return choose(system(count), system(count))

        given = Randomness(words, system, system)
        draws = itertools.islice(samples.draws(given), _BIASED_SAMPLES)
        sizes = {int(np.count_nonzero(draw.rows >= 0)) for draw in draws}
        if len(sizes) == 1 and max(sizes) < len(samples.positions):
            found.append(f"samples have at {limit} {max(sizes)} records")
    return found


def _repeated(
    taken: list[Integers], units: int, probability: float
) -> list[str]:
    """Looks for equal samples, and for units that are drawn together."""
    found = []
    rounds = len(taken)
    equal = units * np.log1p(-2 * probability * (1 - probability))
    never = equal + 2 * np.log(rounds) < np.log(FALSE_ALARM)
    if never and len({each.tobytes() for each in taken}) < rounds:
        found.append("one sample is drawn in several rounds")
    some = np.unique(
        np.linspace(0, units - 1, min(units, _MOST_IN_PAIRS)).astype(int)
    )
    place = np.full(units, -1)
    place[some] = np.arange(len(some))
    present = np.zeros((rounds, len(some)), np.float32)
    for row, each in zip(present, taken, strict=True):
        row[place[each][place[each] >= 0]] = 1
    together = present.T @ present
    np.fill_diagonal(together, 0)
    most = scipy.stats.binom.isf(
        FALSE_ALARM / len(some) ** 2, rounds, probability**2
    )
    if together.max() > most:
        found.append("some records are drawn together")
    return found


def _shares(
    taken: list[Integers], units: int, share: float, *, exactly: bool = True
) -> list[str]:
    """Compares how often each unit takes part with its probability.

    Unless `exactly`, units may take part less often.
    """
    rounds = len(taken)
    counts = np.bincount(np.concatenate(taken), minlength=units)
    most = scipy.stats.binom.isf(FALSE_ALARM / units, rounds, share)
    least = scipy.stats.binom.ppf(FALSE_ALARM / units, rounds, share)
    if counts.max() > most or (exactly and counts.min() < least):
        return ["some records take part more often than the event says"]
    return []


def _passes(draws: list[Sample]) -> list[str]:
    passes: dict[Any, list[Any]] = {}
    for draw in draws:
        rows = draw.rows[draw.rows >= 0]
        passes.setdefault(draw.pass_.epoch_id, []).append(rows)
    together = (np.bincount(np.concatenate(r)) for r in passes.values())
    if any(counts.max(initial=0) > 1 for counts in together):
        return ["a record stands in more than one batch of one pass"]
    return []
