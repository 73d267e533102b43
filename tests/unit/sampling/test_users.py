"""The records of a user, or of a unit: who is drawn, and which are kept."""

import numpy as np
import pytest

from keras_dp.sampling import UserBatches
from keras_dp.sampling.users import capped_rows, unit_numbers

# Ann has 3 records, bob 1, cid 8.
IDS = np.array(["cid", "ann", "cid", "bob", "ann", "cid", "ann", *["cid"] * 5])
OF = {name: set(np.flatnonzero(name == IDS)) for name in ("ann", "bob", "cid")}


def batches_of(**changes):
    arguments = {
        "user_ids": IDS,
        "sampling_probability": 0.5,
        "records_per_user": 3,
    }
    return UserBatches(np.arange(len(IDS)), **(arguments | changes))


def samples_of(batches, rounds):
    """Returns for each sample the records of each user who takes part."""
    found, present = [], {}
    for records, mask, ends_sample in batches:
        shape = (-1, batches.records_per_user)
        for group, here in zip(
            records.reshape(shape), mask.reshape(shape), strict=True
        ):
            if here.any():
                names = {IDS[record] for record in group[here]}
                (name,) = names  # No two users in the rows of one.
                assert name not in present
                present[name] = group[here].tolist()
        if ends_sample:
            found.append(present)
            present = {}
        if len(found) == rounds:
            return found
    raise AssertionError


class TestSamples:
    def test_draw_the_records_of_a_user_anew(self) -> None:
        seen = {
            tuple(sorted(sample["cid"]))
            for sample in samples_of(batches_of(), 400)
            if "cid" in sample
        }

        assert len(seen) > 30  # Of 56 subsets.
        assert {record for subset in seen for record in subset} == OF["cid"]

    def test_leave_others_as_they_were_without_a_user(self) -> None:
        """A million records of one user change nothing for the others."""
        many = np.concatenate([IDS, np.full(1_000_000, "dan")])
        huge = UserBatches(
            np.arange(len(many)),
            user_ids=many,
            sampling_probability=1.0,
            records_per_user=3,
        )

        records, mask, _ = next(iter(huge))

        assert mask.sum() == 3 + 1 + 3 + 3
        assert sum(many[r] == "dan" for r in records[mask]) == 3

    @pytest.mark.standard
    def test_follow_the_event(self) -> None:
        """Each user takes part as often as the event says."""
        rounds = 4000
        samples = samples_of(batches_of(sampling_probability=0.2), rounds)

        def deviation(name, probability) -> float:
            count = sum(name in sample for sample in samples)
            stddev = (rounds * probability * (1 - probability)) ** 0.5
            return abs(count - rounds * probability) / stddev

        for name in OF:
            assert deviation(name, 0.2) < 5
            assert deviation(name, 0.25) > 5  # Control.


# Caps on the rows of a unit.

ROWS = np.array(["a", "b", "a", "c", "a", "b", "a"])


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 9])
def test_keeps_as_many_as_it_may(cap) -> None:
    rows = capped_rows(ROWS, cap)

    assert list(rows) == sorted(set(rows))
    for unit in "abc":
        kept = np.count_nonzero(ROWS[rows] == unit)
        assert kept == min(cap, np.count_nonzero(unit == ROWS))


def test_chooses_each_row_equally_often() -> None:
    """4,000 draws of one row of four: 5 stddevs of 27 rows."""
    counts = np.zeros(7)
    for _ in range(4000):
        counts[capped_rows(ROWS, 1)] += 1

    for row in (0, 2, 4, 6):
        assert abs(counts[row] - 1000) < 137
    assert counts[3] == 4000


@pytest.mark.parametrize("ids", [[], [[1, 2]], 3], ids=str)
def test_refuses_ids_without_one_axis(ids) -> None:
    with pytest.raises(ValueError, match="`unit_ids` must be"):
        capped_rows(ids, 1)


def test_refuses_a_cap_of_none() -> None:
    with pytest.raises(ValueError, match="`rows_per_unit` must be"):
        capped_rows(ROWS, 0)


@pytest.mark.parametrize(
    "ids",
    [
        ["ann", ""],
        np.array([b"ann", b""]),
        np.array(["ann", ""], object),
        np.array(["ann", None], object),
        [1.0, np.nan],
    ],
    ids=repr,
)
def test_refuses_records_without_a_name(ids) -> None:
    with pytest.raises(ValueError, match="one for every record"):
        capped_rows(ids, 1)


@pytest.mark.parametrize(
    "ids",
    [[7, 0], ["7", "0"], [b"7", b"0"]],
    ids=repr,
)
def test_takes_numbers_and_text(ids) -> None:
    assert list(capped_rows(ids, 1)) == [0, 1]
    assert list(unit_numbers(user_ids=ids)) == [1, 0]
