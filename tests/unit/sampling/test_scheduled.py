"""Poisson samples whose probability follows a schedule."""

import numpy as np
import pytest
from scipy import stats

from keras_dp.ledger import PoissonSampling
from keras_dp.sampling import FixedMicrobatches, PoissonBatches
from keras_dp.sampling.sampler import Pass

FALSE_ALARM = 1e-6
FACTORS = [1.0, 2.0, 2.0, 0.5]


def batches(factors=FACTORS, **changes):
    options = {
        "sampling_probability": 0.1,
        "probability_schedule": factors,
        "scheduled_rounds": len(factors),
        "seed": 5,
        **changes,
    }
    return PoissonBatches(np.arange(300), **options)


def sizes(iterators):
    """Returns the size of each sample, `[iterators, rounds]`."""
    sampler = batches()
    return np.array(
        [
            [np.count_nonzero(draw.rows >= 0) for draw in sampler.draws()]
            for _ in range(iterators)
        ]
    )


def p_value(counts, factors):
    """Samples are as large as the schedule says (exact, Bonferroni)."""
    trials = 300 * len(counts)
    return len(factors) * min(
        stats.binomtest(int(count), trials, 0.1 * factor).pvalue
        for count, factor in zip(counts.sum(axis=0), factors, strict=True)
    )


def test_samples_have_the_sizes_of_their_rounds() -> None:
    assert p_value(sizes(200), FACTORS) > FALSE_ALARM


@pytest.mark.parametrize(
    "wrong", [[1.0] * 4, [2.0, 2.0, 0.5, 1.0], [1.0, 2.0, 2.0, 0.55]]
)
def test_the_check_above_can_fail(wrong) -> None:
    """Control: constant, one round ahead, and a tenth more in one round."""
    assert p_value(sizes(200), wrong) < FALSE_ALARM


def test_the_ledger_gets_the_probability_of_each_round() -> None:
    planned = [PoissonSampling(q, drawn_by_library=True) for q in (0.1, 0.2)]
    sampler = batches()

    assert sampler.planned(3) == [(planned[0], 1), (planned[1], 2)]
    assert sampler.planned(1, Pass(0, 0, 2)) == [(planned[1], 1)]
    of = [of for batch, of in sampler.rounds_of_passes() if batch.ends_sample]
    assert [sampler.sampling_of(each).probability for each in of] == [
        0.1,
        0.2,
        0.2,
        0.05,
    ]


def test_each_iterator_has_all_rounds_of_its_own() -> None:
    sampler = batches()

    both = [[tuple(d.rows[d.rows >= 0]) for d in sampler.draws()] for _ in "ab"]

    assert [len(draws) for draws in both] == [4, 4]
    assert both[0] != both[1]


def test_sizes_are_those_of_factor_1() -> None:
    plain = PoissonBatches(np.arange(300), sampling_probability=0.1)

    for name in (
        "expected_sample_size",
        "physical_batch_size",
        "rounds_per_epoch",
        "sampling_event",
    ):
        assert getattr(batches(), name) == getattr(plain, name)
    assert "from 0.1 to 0.05 in 4 rounds" in repr(batches())


def test_more_rounds_than_it_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^`scheduled_rounds` must be at"):
        batches().planned(5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factors": [1.0, 11.0]}, "`probability_schedule` times"),
        ({"factors": [1.0, 1e-18]}, "`probability_schedule` times"),
        ({"factors": [1.0, 0.0]}, "`probability_schedule` must be finite"),
        ({"scheduled_rounds": 5}, "`probability_schedule` must have a factor"),
        ({"truncate_at": 50}, "`probability_schedule` must be None"),
        (
            {"microbatches": FixedMicrobatches(4)},
            "`probability_schedule` must be None",
        ),
    ],
)
def test_schedules_that_cannot_be_are_refused(changes, message) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        batches(**changes)


@pytest.mark.parametrize(
    "missing", ["probability_schedule", "scheduled_rounds"]
)
def test_a_schedule_has_a_length(missing) -> None:
    with pytest.raises(TypeError, match="must be given both or not at all"):
        batches(**{missing: None})


def test_shards_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^`probability_schedule` must be"):
        batches().shard(0, 2)
