"""What one ledger holds that another does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_dp.ledger import FullDataset, GaussianSum, PrivacyLedger, Round
from keras_dp.reporting import difference

A, B, C = (
    Round(FullDataset(), (GaussianSum(name, 1.0, 4.0),)) for name in "abc"
)


@pytest.mark.parametrize(
    ("first", "second", "common", "only_first", "only_second"),
    [
        ([], [], 0, [], []),
        ([(A, 3)], [(A, 3)], 3, [], []),
        ([(A, 3)], [(A, 1), (A, 2)], 3, [], []),
        ([], [(A, 3)], 0, [], [(A, 3)]),
        ([(A, 3)], [(A, 5), (B, 1)], 3, [], [(A, 2), (B, 1)]),
        ([(A, 3), (B, 1)], [(A, 3)], 3, [(B, 1)], []),
        ([(A, 3), (B, 1)], [(A, 2), (B, 2)], 2, [(A, 1)], [(B, 1)]),
        ([(A, 1), (B, 1)], [(B, 1), (A, 1)], 0, [], []),
        (
            [(A, 2), (B, 1), (A, 1)],
            [(A, 2), (C, 1), (A, 1)],
            2,
            [(B, 1)],
            [(C, 1)],
        ),
    ],
)
def test_is_found(first, second, common, only_first, only_second) -> None:
    found = difference(first, second)

    assert found.common == common
    assert found.first_total == sum(count for _, count in first)
    assert found.second_total == sum(count for _, count in second)
    assert [*found.only_in_first] == only_first
    assert [*found.only_in_second] == only_second
    assert found.is_extension == (common == found.first_total)


LEDGERS = st.lists(
    st.tuples(st.sampled_from([A, B]), st.integers(1, 3)), max_size=5
)


@given(LEDGERS, LEDGERS)
def test_agrees_with_lists_of_single_rounds(first, second) -> None:
    ones = [each for each, count in first for _ in range(count)]
    twos = [each for each, count in second for _ in range(count)]

    found = difference(first, second)

    assert found.is_extension == (twos[: len(ones)] == ones)
    assert ones[: found.common] == twos[: found.common]
    assert ones[: found.common + 1] != twos[: found.common + 1] or (
        found.common == min(len(ones), len(twos))
    )
    for kinds, more, less in (
        (found.only_in_first, ones, twos),
        (found.only_in_second, twos, ones),
    ):
        assert dict(kinds) == {
            each: more.count(each) - less.count(each)
            for each in (A, B)
            if more.count(each) > less.count(each)
        }


def test_of_ledgers_that_grow() -> None:
    ledger = PrivacyLedger.in_memory(dataset="d")
    ledger.record(FullDataset(), A.queries, 3)
    before = ledger.rounds
    ledger.record(FullDataset(), A.queries, 2)

    found = difference(before, ledger)

    assert found.is_extension
    assert found.only_in_second == ((A, 2),)
