"""How often a key that one record alone holds is released."""

import dataclasses

import pytest
from scipy import stats

from keras_dp.accountants.normalize.thresholds import chance_to_pass
from keras_dp.preprocessing import StringLookup
from keras_dp.preprocessing.vocabulary import noised_keys

# The chance that a test fails although all is well.
FALSE_ALARM = 1e-6
RECORDS = 20_000


def tail(passed, chance, count):
    """The two-sided p-value of so many that passed."""
    return stats.binomtest(passed, count, chance).pvalue


def passed(event, max_keys):
    """Returns how many of the records have a key that passes."""
    records = (
        {(record, key) for key in range(max_keys)} for record in range(RECORDS)
    )
    return len({record for record, _ in noised_keys(records, event, None)})


@pytest.mark.parametrize("max_keys", [1, 6])
def test_keys_of_one_record_pass_as_often_as_delta_says(max_keys) -> None:
    """At most with the chance of the worst number of keys."""
    event = StringLookup(0.8, 0.02, max_keys=max_keys).events()[0]
    one, weight = stats.norm(scale=0.8), max_keys**-0.5
    exact = 1 - one.cdf(event.threshold - weight) ** max_keys

    found = passed(event, max_keys)

    assert exact <= chance_to_pass(1.0, 0.8, max_keys, event.threshold) <= 0.02
    assert tail(found, exact, RECORDS) > FALSE_ALARM


def test_a_lower_threshold_is_found_out() -> None:
    """The control: a threshold 5 % lower must fail the test."""
    event = StringLookup(0.8, 0.02).events()[0]
    lower = dataclasses.replace(event, threshold=0.95 * event.threshold)

    assert tail(passed(lower, 1), 0.02, RECORDS) < FALSE_ALARM
