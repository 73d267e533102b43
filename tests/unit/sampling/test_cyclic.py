"""Classes that take turns: who is in which round, and what is refused."""

import itertools

import numpy as np
from scipy import stats

from keras_dp.sampling import CyclicPoissonBatches

FALSE_ALARM = 1e-6


def samples_of(batches, count):
    """Returns the records of the first samples."""
    return [
        np.sort(draw.rows[draw.rows >= 0])
        for draw in itertools.islice(batches.draws(), count)
    ]


class TestClasses:
    def test_are_sampled_with_their_probability(self) -> None:
        batches = CyclicPoissonBatches(
            np.arange(2000), classes=4, sampling_probability=0.3
        )

        samples = samples_of(batches, 8)

        of_class = [set(samples[c]) | set(samples[c + 4]) for c in range(4)]
        for one, two in itertools.combinations(of_class, 2):
            assert not one & two
        taken = sum(map(len, samples))
        law = stats.binom(2 * 2000, 0.3)
        assert min(law.cdf(taken), law.sf(taken - 1)) > FALSE_ALARM
        wrong = stats.binom(2 * 2000, 0.3 * 1.25)
        assert min(wrong.cdf(taken), wrong.sf(taken - 1)) < FALSE_ALARM

    def test_are_uniform_and_drawn_anew_by_each_iterator(self) -> None:
        batches = CyclicPoissonBatches(np.arange(9000), classes=3)

        one, two = samples_of(batches, 3), samples_of(batches, 3)

        for samples in (one, two):
            assert stats.chisquare([*map(len, samples)]).pvalue > FALSE_ALARM
        both = len(np.intersect1d(one[0], two[0]))
        law = stats.binom(9000, 1 / 9)
        assert min(law.cdf(both), law.sf(both - 1)) > FALSE_ALARM


class TestEvents:
    def test_differ_between_iterators(self) -> None:
        batches = CyclicPoissonBatches(np.arange(9), classes=2, seed=1)

        one, two = (
            batches.sampling_of(next(batches.draws()).pass_) for _ in range(2)
        )

        assert one.draw_id != two.draw_id
