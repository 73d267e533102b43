"""Poisson samples that are truncated: what is kept, and what is refused."""

import numpy as np
from scipy import stats

from keras_dp.sampling import PoissonBatches

SEED = 7
FALSE_ALARM = 1e-6


def samples_of(rounds, **options):
    batches = PoissonBatches(np.arange(10), seed=SEED, **options)
    for _, batch in zip(range(rounds), batches, strict=False):
        assert batch.ends_sample
        yield batch.records[batch.mask].tolist()


def test_samples_that_fit_are_kept_whole() -> None:
    options = {"sampling_probability": 0.2, "physical_batch_size": 10}

    for whole, kept in zip(
        samples_of(200, **options),
        samples_of(200, truncate_at=10, **options),
        strict=True,
    ):
        assert whole == kept


def takes_of(rounds, **options):
    takes = np.zeros((rounds, 10), bool)
    for row, sample in zip(takes, samples_of(rounds, **options), strict=True):
        row[sample] = True
    return takes


def p_value(takes, q, most):
    """Records take part as often as the event says (exact, Bonferroni)."""
    sizes = np.minimum(np.arange(11), most)
    share = float(stats.binom.pmf(np.arange(11), 10, q) @ sizes) / 10
    counts = takes.sum(axis=0)
    found = [stats.binomtest(int(c), len(takes), share).pvalue for c in counts]
    return min(found) * 10


def test_records_are_kept_alike() -> None:
    takes = takes_of(4000, sampling_probability=0.5, truncate_at=4)

    assert p_value(takes, 0.5, 4) > FALSE_ALARM


def test_the_check_sees_that_the_first_are_kept() -> None:
    """Control: a sample that is cut off keeps what comes first."""
    takes = takes_of(4000, sampling_probability=0.5)
    for row in takes:
        row[np.flatnonzero(row)[4:]] = False

    assert p_value(takes, 0.5, 4) < FALSE_ALARM
