"""Do samples follow the law that their event states?"""

import itertools
from typing import Any

import numpy as np
import scipy.stats

from keras_dp import ledger
from keras_dp.auditing.replay.noise import FALSE_ALARM
from keras_dp.sampling import Sampler

_DRAWS = 200_000
_MOST_ROUNDS = 400


def departures(samples: Sampler) -> list[str]:
    """Returns how the draws of a sampler depart from its event, in words.

    No record is read.

    Args:
        samples: Draws as for a training.
    """
    rounds = int(
        np.clip(_DRAWS // max(1, samples.expected_sample_size), 8, _MOST_ROUNDS)
    )
    draws = list(itertools.islice(samples.draws(), rounds))
    taken = [draw.rows[draw.rows >= 0] for draw in draws]
    found = []
    if any(len(np.unique(rows)) < len(rows) for rows in taken):
        found.append("a record stands in one sample twice")
    again = [d.rows for d in itertools.islice(samples.draws(), 3)]
    if (
        not samples.seeded
        and all(
            np.array_equal(a.rows, b)
            for a, b in zip(draws, again, strict=False)
        )
        and samples.expected_sample_size < samples.population_size
    ):
        found.append("two iterators draw the same samples")
    event: Any = samples.sampling_of(draws[0].of)
    sizes = np.array([len(rows) for rows in taken])
    if isinstance(event, ledger.PoissonSampling):
        found += _poisson(samples, event.probability, taken)
    elif isinstance(event, ledger.TruncatedPoissonSampling):
        if sizes.max() > event.batch_size:
            found.append("a sample holds more records than the event says")
    elif isinstance(event, ledger.FixedSizeWithoutReplacement):
        if set(sizes) != {event.sample_size}:
            found.append("a sample has another size than the event says")
    elif isinstance(event, ledger.DisjointBatches):
        found += _disjoint(draws)
    return found


def _poisson(samples: Sampler, probability: float, taken: Any) -> list[str]:
    """Compares sizes and shares of records with independent coins."""
    layout = samples.microbatches
    units = len(samples.positions)
    if layout is not None or samples.unit == "user":
        return []  # Rows are drawn together.
    found = []
    sizes = np.array([len(rows) for rows in taken])
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
    variance = units * probability * (1 - probability)
    if variance > 5:
        spread = np.sum(np.square(sizes - units * probability)) / variance
        chance = scipy.stats.chi2.cdf(spread, len(sizes))
        if min(chance, 1 - chance) < FALSE_ALARM:
            found.append("sizes of samples do not vary as independent draws do")
    counts = np.bincount(np.concatenate(taken), minlength=units)
    most = scipy.stats.binom.isf(FALSE_ALARM / units, len(sizes), probability)
    least = scipy.stats.binom.ppf(FALSE_ALARM / units, len(sizes), probability)
    if counts.max() > most or counts.min() < least:
        found.append("some records take part more often than others")
    return found


def _disjoint(draws: Any) -> list[str]:
    passes: dict[Any, list[Any]] = {}
    for draw in draws:
        rows = draw.rows[draw.rows >= 0]
        passes.setdefault((draw.of.number, draw.of.low), []).append(rows)
    together = [np.concatenate(rows) for rows in passes.values()]
    if any(len(np.unique(rows)) < len(rows) for rows in together):
        return ["a record stands in two batches of one pass"]
    return []
